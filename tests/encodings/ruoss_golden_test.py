"""Encodings against the official code of Ruoss et al. (2023).

Golden arrays: `golden/chomsky/README.md`.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors, positions
from lengen_jax.encodings import alibi
from tests import helpers

GOLDEN = np.load(helpers.GOLDEN / 'chomsky' / 'positional_encodings.npz')
Q, K = GOLDEN['q'], GOLDEN['k']
DRAWN = GOLDEN['noisy_positions_key42_T7']


def create(spec, width=None):
  return encodings.create(
    spec, num_heads=Q.shape[2], head_dim=Q.shape[3], width=width
  )


def embed(positions, width):
  x = jnp.zeros((1, len(positions), width))
  encoding = create('sinusoidal', width)
  return encoding.apply({}, x, jnp.asarray(positions), method='embed')[0]


def rotate(spec, positions):
  p = jnp.asarray(positions)
  return create(spec).apply({}, Q, K, p, p, method='rotate')


@pytest.mark.parametrize('num_heads', [4, 6, 8, 12])
def test_alibi_slopes(num_heads):
  want = GOLDEN[f'alibi_slopes_{num_heads}']
  np.testing.assert_allclose(alibi.slopes(num_heads), want, rtol=1e-12)


def test_alibi_in_both_directions():
  p = jnp.arange(7)
  got = create('alibi(official_compat=True)').apply(
    {}, p, p, bidirectional=True, method='bias'
  )
  np.testing.assert_allclose(got, GOLDEN['alibi_bias_h8_t7'], rtol=1e-6)


def test_sines_of_every_position():
  want = GOLDEN['sincos_2048_64']
  got = embed(np.arange(2048), 64)
  # A float32 angle of 2047 is good to 1.2e-4.
  np.testing.assert_allclose(got[:100], want[:100], atol=1e-5)
  np.testing.assert_allclose(got, want, atol=2e-4)


@pytest.mark.parametrize('dtype', [np.int32, np.float32])
def test_sines_of_negative_positions(dtype):
  got = embed(np.arange(-7, 7, dtype=dtype), 64)
  np.testing.assert_allclose(got, GOLDEN['sincos_neg_7_64'], atol=2e-6)


@pytest.mark.parametrize('dtype', [np.int32, np.float32])
def test_sines_of_drawn_positions(dtype):
  got = embed(DRAWN.astype(dtype), 64)
  np.testing.assert_allclose(got, GOLDEN['noisy_sincos_key42_T7'], atol=2e-4)


@pytest.mark.parametrize(
  'prefix, positions', [('rotary', np.arange(7)), ('noisy_rotary', DRAWN)]
)
def test_rope(prefix, positions):
  got = rotate("rope(layout='interleaved')", positions)
  for y, name in zip(got, 'qk', strict=True):
    want = GOLDEN[f'{prefix}_{name}']
    tolerance = 2e-6 + 3e-7 * positions.max()
    np.testing.assert_allclose(y, want, atol=tolerance)
    # Pairs of the other layout are turned elsewhere.
    other = rotate('rope', positions)['qk'.index(name)]
    assert np.abs(other - want).max() > 0.1


def relative_logits(spec, p=None):
  params = {
    'u': GOLDEN['relative_param_relpos_contentbias'],
    'v': GOLDEN['relative_param_relpos_relativebias'],
    'projection': {'kernel': GOLDEN['relative_param_w']},
  }
  p = jnp.arange(7) if p is None else p
  content = create(spec).apply(
    {'params': params}, Q, K, p, p, method='content_bias'
  )
  return np.einsum('bqhd,bkhd->bhqk', Q, K) + content


def test_transformer_xl(assert_close):
  assert_close(
    relative_logits('transformer_xl'), GOLDEN['relative_logits'], 2e-6
  )


def test_transformer_xl_causal(assert_close):
  want = np.tril(GOLDEN['relative_causal_logits'])
  got = np.tril(relative_logits('transformer_xl(official_compat=True)'))
  assert_close(got, want, 2e-6)
  # The quirk of the official code, and not what the paper has.
  plain = np.tril(relative_logits('transformer_xl'))
  assert np.abs(plain - want).max() > 0.1


def noisy(name):
  """The official sample of distances as the scheme gives it."""
  scheme = positions.create("randomized(max_position=2048, mode='distances')")
  r = np.concatenate([[0], GOLDEN[f'noisy_{name}_distances_sorted'].ravel()])
  return scheme.apply(
    {'distances': jnp.asarray(r, jnp.int32)[None]},
    jnp.arange(7)[None],
    lengths=jnp.full((1, 7), 7),
  )


def test_randomized_alibi(assert_close):
  encoding = create('alibi(official_compat=True)')
  p = noisy('alibi')
  got = encoding.apply({}, p, p, method='bias', bidirectional=True)
  assert_close(got[0], GOLDEN['noisy_alibi_bias'], 1e-6)


def test_randomized_transformer_xl(assert_close):
  got = relative_logits('transformer_xl', noisy('relative'))
  # Sines of distances up to 2047 in float32.
  assert_close(got, GOLDEN['noisy_relative_logits_INTENDED'], 2e-5)


def test_randomized_transformer_xl_as_the_official_code_has_it(assert_close):
  spec = 'transformer_xl(official_compat=True)'
  got = relative_logits(spec, noisy('relative'))
  want = GOLDEN['noisy_relative_logits_OFFICIAL']
  assert_close(got, want, 2e-5)
  assert np.abs(want - GOLDEN['noisy_relative_logits_INTENDED']).max() > 1
  with pytest.raises(errors.CombinationError, match='needs the size'):
    relative_logits(spec, noisy('relative').replace(size=None))
