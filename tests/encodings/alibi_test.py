"""Tests `lengen_jax/encodings/alibi.py`.

Golden arrays: `golden/encodings/README.json`, files alibi_hf and
ruoss_official.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings
from lengen_jax.encodings import alibi
from tests import helpers

GOLDEN = np.load(helpers.GOLDEN / 'encodings' / 'alibi_hf.npz')
RUOSS = np.load(helpers.GOLDEN / 'encodings' / 'ruoss_official.npz')
HEADS = sorted(
  int(key.split('/')[1][1:]) for key in GOLDEN if key.endswith('/slopes')
)


def bias(num_heads, q_positions, k_positions, spec='alibi', **kwargs):
  encoding = encodings.create(spec, num_heads=num_heads, head_dim=8)
  return np.asarray(
    encoding.apply({}, q_positions, k_positions, method='bias', **kwargs)
  )


@pytest.mark.parametrize('num_heads', HEADS)
def test_golden_slopes(num_heads):
  want = GOLDEN[f'bloom/H{num_heads}/slopes']
  np.testing.assert_allclose(alibi.slopes(num_heads), want, rtol=1e-6)


@pytest.mark.parametrize('num_heads', HEADS)
def test_golden_bias(num_heads, assert_close):
  p = jnp.arange(64)
  got = bias(num_heads, p, p)
  # One source counts from the last query, the other leaves each query's own
  # position out, which softmax does not see.
  assert_close(got[:, 63], GOLDEN[f'mpt/H{num_heads}/alibi_n64'], 1e-6)
  by_key = GOLDEN[f'bloom/H{num_heads}/alibi_n64']
  want = by_key[:, None, :] - by_key[:, :, None]
  assert_close(np.tril(got), np.tril(want), 1e-6)


def test_golden_slopes_of_a_third_source():
  slopes = RUOSS['alibi_slopes/H8']
  np.testing.assert_allclose(alibi.slopes(8), slopes, rtol=1e-6)


@pytest.mark.parametrize(
  'key', sorted(key for key in RUOSS if key.startswith('alibi_symmetric/'))
)
def test_golden_in_both_directions(key):
  want = RUOSS[key]
  num_heads, queries, keys = want.shape
  p = jnp.arange(queries), jnp.arange(keys)
  spec = 'alibi(official_compat=True)'
  got = bias(num_heads, *p, spec=spec, bidirectional=True)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  # It makes no difference where keys after the query are hidden.
  causal = bias(num_heads, *p, spec=spec)
  np.testing.assert_array_equal(causal, bias(num_heads, *p))


def test_half_a_step_tells_directions_apart():
  p = jnp.arange(9)
  plain = bias(4, p, p, bidirectional=True)
  np.testing.assert_array_equal(plain, plain.swapaxes(1, 2))
  spec = 'alibi(official_compat=True)'
  official = bias(4, p, p, spec=spec, bidirectional=True)
  # Keys after the query are where they were, those before it are nearer.
  nearer = 0.5 * alibi.slopes(4)[:, None, None] * np.tri(9, k=-1)
  np.testing.assert_array_equal(official, plain + nearer)


@pytest.mark.parametrize('bidirectional', [False, True])
def test_formula(bidirectional):
  # Six heads: four slopes of four heads, then every other one of eight.
  slopes = [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
  rng = np.random.default_rng(0)
  q = np.float32(rng.uniform(0, 300, (2, 5)))
  k = np.float32(rng.uniform(0, 300, (2, 7)))
  want = np.zeros((2, 6, 5, 7))
  for b, h, i, j in np.ndindex(2, 6, 5, 7):
    d = abs(np.float64(q[b, i]) - np.float64(k[b, j]))
    want[b, h, i, j] = -slopes[h] * d
  got = bias(6, q, k, bidirectional=bidirectional)
  np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize('num_heads', range(1, 40))
def test_slopes_fall_from_one_half_to_one_256th(num_heads):
  slopes = alibi.slopes(num_heads)
  assert slopes.shape == (num_heads,)
  assert len(set(slopes)) == num_heads
  assert slopes.min() == 2**-8 and slopes.max() < 1
  power = 2 ** (num_heads.bit_length() - 1)
  np.testing.assert_array_equal(slopes[:power], alibi.slopes(power))


def test_far_positions_are_exact():
  p = np.arange(20_000, 20_065)
  got = bias(8, jnp.asarray(p), jnp.asarray(p))
  want = -alibi.slopes(8)[:, None, None] * abs(p[:, None] - p)
  np.testing.assert_array_equal(got, want)
