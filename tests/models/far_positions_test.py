"""Models in bfloat16 at contextual positions beyond 8,192.

There, numbers of bfloat16 are 64 apart.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import models
from lengen_jax.models import cache as cache_lib
from lengen_jax.positions import contextual, PerHead
from tests import helpers

V, E, H, D, L = 13, 32, 2, 8, 24
FAR = 10_000.0
# Relative error of all logits, after several activations of precision 2^-9.
LIMIT = 0.015
# A bias per key, a bias by an MLP, and a rotation; one for each scheme.
KINDS = (
  ('linear', 'forget'),
  ('fire(init_threshold=8.)', 'repo'),
  ('rope', 'selective'),
)
# And terms of contents, bands, and a bias without parameters.
PAIRS = [
  KINDS[0],
  *(
    pytest.param(*pair, marks=pytest.mark.slow)
    for pair in (
      *KINDS[1:],
      ('pope', 'repo'),
      ('transformer_xl', 'forget'),
      ('dual_chunk(chunk=9, window=3)', 'selective'),
      ('alibi', 'repo'),
    )
  ),
]


def create(encoding, scheme, dtype):
  return models.ModelConfig(
    vocab_size=V,
    num_layers=1,
    num_heads=H,
    head_dim=D,
    width=E,
    mlp_width=E,
    encoding=encoding,
    contextual_positions=scheme,
    norm='rms',
    dtype=dtype,
  )


def tokens():
  """Token 0, and others after it."""
  drawn = np.random.default_rng(1).integers(1, V, (1, L), np.int32)
  drawn[:, 0] = 0
  return drawn


def far_params(config):
  """Parameters of a model whose positions are all near 10,000.

  The scheme's input has entries 1 and -1, which bfloat16 represents: positions
  in both dtypes are computed from the same input. Its first entry is 1; the
  second is 1 for token 0 and -1 for the others. The increment of token 0 is
  10,000 (`forget`, `selective`), or 10,000 is added to each position (`repo`).
  """
  params = jax.tree.map(jnp.asarray, helpers.params_of(config))
  table = np.random.default_rng(2).choice(np.float32([-1, 1]), (V, E))
  table[:, 0], table[0, 1], table[1:, 1] = 1, 1, -1
  params['embed']['table'] = jnp.asarray(table)
  layer = params['layer_0']
  layer['attention_norm']['scale'] = jnp.ones(E)
  own = layer['attention']
  # Positions have a larger effect than other rounding.
  own['query']['kernel'] *= 2
  own['out']['kernel'] *= 8
  for name in {'encoding', 'positions'} & own.keys():
    own[name] = jax.tree.map(lambda leaf: 4 * leaf, own[name])
  scheme = own['positions']
  if 'out' in scheme:
    for name, size in (('gate', 8), ('content', 1)):
      kernel = scheme[name]['kernel'].at[:, 0].set(0)
      scheme[name]['kernel'] = kernel.at[0, 0].set(size)
    scheme['out']['kernel'] = (scheme['out']['kernel'] / 2).at[0].set(FAR / 8)
  else:
    inner, sign = (scheme, -1) if 'bias' in scheme else (scheme['steps'], 1)
    inner['kernel'] = inner['kernel'].at[:2].set(sign * FAR / 2)
  return params


@functools.cache
def run(encoding, scheme, dtype='float32', rounded=False):
  """Logits and positions of a whole pass, float32."""
  config = create(encoding, scheme, dtype)

  def computes_positions(module, method):
    return isinstance(module, contextual.Contextual) and method == 'positions'

  @jax.jit
  def apply(params):
    return models.DecoderLM(config).apply(
      {'params': params},
      tokens(),
      lengths=jnp.full((1, 1), L),
      capture_intermediates=computes_positions,
      mutable='intermediates',
    )

  with pytest.MonkeyPatch.context() as patch:
    if rounded:
      patch.setattr(contextual.Contextual, 'positions', rounded_positions)
    logits, found = apply(far_params(config))
  (own,) = jax.tree.leaves(found, is_leaf=lambda x: isinstance(x, PerHead))
  assert own.value.dtype == jnp.float32
  assert 8192 < own.value.min() and own.value.max() < 16384
  return np.asarray(logits, np.float32)


exact_positions = contextual.Contextual.positions


def rounded_positions(self, *args):
  """Positions in bfloat16."""
  return jax.tree.map(
    lambda x: jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7),
    exact_positions(self, *args),
  )


def error(got, want):
  return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize('encoding, scheme', PAIRS)
def test_logits(encoding, scheme):
  want = run(encoding, scheme)
  assert error(run(encoding, scheme, 'bfloat16'), want) < LIMIT
  # The control: positions that are rounded, and nothing else.
  assert error(run(encoding, scheme, rounded=True), want) > 2 * LIMIT


@pytest.mark.parametrize(
  'encoding, scheme',
  [
    KINDS[0],
    pytest.param(*KINDS[1], marks=pytest.mark.slow),
    pytest.param(*KINDS[2], marks=pytest.mark.slow),
  ],
)
def test_decoding(encoding, scheme):
  """The cache holds positions of all tokens."""
  config = create(encoding, scheme, 'bfloat16')

  @jax.jit
  def step(params, inputs, cache):
    return models.DecoderLM(config).apply(
      {'params': params}, inputs, cache, method='decode'
    )

  cache, parts = cache_lib.create(config, 1, L), []
  for part in np.split(tokens(), 2, axis=1):
    logits, cache = step(far_params(config), part, cache)
    parts.append(np.asarray(logits, np.float32))
  got = np.concatenate(parts, axis=1)
  assert error(got, run(encoding, scheme)) < LIMIT
