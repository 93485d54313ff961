"""Tests `lengen_jax/models/assign.py`, with losses, gradients and decoding.

Tokens 4 to 13 are digits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, models, positions
from lengen_jax.data import windows
from lengen_jax.models import cache as cache_lib
from lengen_jax.models import objective, stacking
from lengen_jax.models.assign import assign
from tests import helpers

KEY = jax.random.key(3)
LENGTH = 12
PLANNED = np.array([9, 12])
BOTH = 'learned(max_position=200) + fire(shared=True)'


def create(encoding, **kwargs):
  return helpers.tiny_model(encoding=encoding, num_layers=2, **kwargs)


def numbers(rows=2, length=LENGTH):
  return np.random.default_rng(1).integers(2, 14, (rows, length), np.int32)


def roles(rows):
  drawn = np.random.default_rng(2).integers(-1, 8, (rows, 2, LENGTH), np.int32)
  return jnp.asarray(drawn)


@functools.partial(jax.jit, static_argnames=('config', 'scheme', 'train'))
def losses(params, batch, *, config, scheme, train=False):
  return objective.token_losses(
    config,
    positions.create(scheme),
    params,
    batch,
    rng=KEY,
    train=train,
    packed=True,
  )


def packed_batch():
  """Rows of two segments; numbers touch across the border."""
  row = np.array([5, 6, 2, 7, 8, 9, 10, 2, 11, 12, 2, 2])
  batch = windows.lm_batch(np.stack([row, row]).astype(np.int32))
  ids = np.array([[1] * 5 + [2] * 6] * 2, np.int32)
  index, lengths = (
    np.asarray(of(jnp.asarray(ids)))
    for of in (positions.segment_positions, positions.segment_lengths)
  )
  return batch | {
    'segment_ids': ids,
    'segment_positions': index,
    'lengths': lengths,
  }


@pytest.mark.parametrize(
  'encoding, scheme, given',
  [
    (BOTH, 'abacus + standard', None),
    ('learned(max_position=200) + rope', 'coupled(max_position=32)', 1),
    (
      'learned(max_position=32, rows=2) + rope',
      'coupled(max_position=32) + standard',
      2,
    ),
  ],
)
def test_packed_segments_equal_single_ones(
  encoding, scheme, given, assert_close
):
  config, batch = create(encoding), packed_batch()
  if given:
    batch |= {'roles': np.asarray(roles(given))[..., :11]}
  params = helpers.params_of(config)
  got = losses(params, batch, config=config, scheme=scheme)
  for first, last in ((0, 5), (5, 11)):
    # One program: each segment stands alone at the start of a row.
    alone = {}
    for name, value in batch.items():
      fill = -1 if name == 'roles' else 0
      pads = [(0, 0)] * (value.ndim - 1) + [(0, 11 - last + first)]
      alone[name] = np.pad(value[..., first:last], pads, constant_values=fill)
    alone['lengths'] = np.maximum(alone['lengths'], 1)
    want = losses(params, alone, config=config, scheme=scheme)
    assert_close(got[:, first:last], want[:, : last - first], 1e-5)


def test_gradients_reach_both_encodings():
  """And only the rows of digits and of other tokens."""
  config = create(BOTH)
  batch = packed_batch()

  @jax.jit
  @jax.grad
  def gradient(params):
    return losses(
      params, batch, config=config, scheme='abacus + standard'
    ).sum()

  found = gradient(helpers.params_of(config))
  table = np.abs(found['encoding']['table']).max(-1)
  np.testing.assert_array_equal(np.flatnonzero(table), [0, 1, 2])
  for leaf in jax.tree.leaves(found['encoding_1']):
    assert np.abs(leaf).max() > 0


def test_rows_of_roles_have_tables_of_their_own():
  config = create('learned(max_position=32, rows=2)')
  params = helpers.params_of(config)
  assert helpers.shapes(params['encoding']) == {
    'table': (32, 32),
    'table_1': (32, 32),
  }
  batch = windows.lm_batch(numbers(length=LENGTH + 1))
  batch['roles'] = roles(2)

  @jax.jit
  @jax.grad
  def gradient(params):
    scheme = 'coupled(max_position=32)'
    return losses(params, batch, config=config, scheme=scheme).sum()

  found = gradient(params)['encoding']
  for name, row in (('table', 0), ('table_1', 1)):
    used = np.unique(np.maximum(roles(2)[row] + 1, 0))
    reached = np.flatnonzero(np.abs(found[name]).max(-1))
    np.testing.assert_array_equal(reached, used)


@functools.partial(jax.jit, static_argnames='config')
def step(config, params, inputs, cache, new_lengths):
  return models.create(config).apply(
    {'params': params}, inputs, cache, new_lengths=new_lengths, method='decode'
  )


def decoded(config, params, cache):
  """Logits of all planned tokens; the first call takes prompts."""
  logits, new = [[], []], np.array([3, 5])
  padded = np.pad(numbers(), ((0, 0), (0, 5)), constant_values=7)
  while new.any():
    at = np.asarray(cache.length)[:, None] + np.arange(5)
    # Padding of a call is not part of the row.
    inputs = np.take_along_axis(padded, at, axis=1)
    inputs = np.where(np.arange(5) < new[:, None], inputs, 7)
    got, cache = step(config, params, inputs, cache, jnp.asarray(new))
    for row in range(2):
      logits[row] += [*np.asarray(got[row, : new[row]])]
    new = np.minimum(1, PLANNED - np.asarray(cache.length))
  return [np.stack(row) for row in logits]


@pytest.mark.some(4)
@pytest.mark.parametrize(
  'encoding, scheme, given, kwargs',
  [
    (BOTH, 'abacus + standard', None, {'scan_layers': True}),
    ('rope', 'abacus', None, {}),
    ('learned(max_position=32)', 'coupled(max_position=32)', 1, {}),
    (
      'learned(max_position=32, rows=2) + fire',
      'coupled(max_position=32) + randomized(max_position=64)',
      2,
      {},
    ),
    pytest.param(
      'sinusoidal + rope(dynamic=True, train_length=4)',
      "abacus + randomized(max_position=64, draw='layer')",
      None,
      {},
      marks=pytest.mark.slow,
    ),
    pytest.param(
      'sinusoidal, alibi',
      'coupled(max_position=32)',
      1,
      {},
      marks=pytest.mark.slow,
    ),
  ],
)
def test_decoding_equals_a_full_pass(
  encoding, scheme, given, kwargs, assert_close
):
  config = create(encoding, **kwargs)
  params = helpers.params_of(create(encoding))
  if config.scan_layers:
    params = stacking.stack(params, config)
  named = {'roles': roles(given)} if given else {}
  lengths = jnp.asarray(PLANNED)[:, None]

  @jax.jit
  def full(tokens):
    placed = assign(
      config,
      positions.create(scheme),
      helpers.rows(2, LENGTH),
      lengths=lengths,
      rng=KEY,
      train=False,
      equal_rows=False,
      tokens=tokens,
      **named,
    )
    model = models.create(config)
    return model.apply({'params': params}, tokens, placed, lengths=lengths)

  want = full(numbers())
  cache = cache_lib.create(
    config, 2, LENGTH, scheme=scheme, planned=PLANNED, rng=KEY, **named
  )
  got = decoded(config, params, cache)
  for row, planned in enumerate(PLANNED):
    assert_close(got[row], want[row, :planned], 1e-5)


@pytest.mark.parametrize('train', [False, True])
def test_parts_that_are_equal_in_all_rows_are_computed_once(train):
  """Attention's positions, and so its bias, do not depend on the tokens."""
  placed = assign(
    create(BOTH),
    positions.create('abacus + standard'),
    helpers.rows(2, LENGTH),
    lengths=jnp.full((2, 1), LENGTH),
    rng=KEY,
    train=train,
    equal_rows=True,
    tokens=numbers(),
  )
  assert placed.at_input.shape == (2, LENGTH)
  assert placed.in_attention.shape == (1, LENGTH)


@pytest.mark.parametrize(
  'encoding, scheme, given, error, message',
  [
    (
      'learned(max_position=100) + rope',
      'abacus + standard',
      {},
      errors.LengthError,
      'no entry for position 111; give it max_position=112',
    ),
    (
      'rope',
      'coupled(max_position=32)',
      {'roles': roles(2)},
      errors.CombinationError,
      r'2 rows of positions and rope, .* part: coupled\(.*\) . standard',
    ),
    (
      'learned(max_position=32)',
      'coupled(max_position=32)',
      {'roles': roles(2)},
      errors.CombinationError,
      'adds 1 rows of positions and gets 2; give it rows=2',
    ),
    (
      'learned(max_position=32)',
      'coupled(max_position=32)',
      {},
      errors.ConfigError,
      'needs roles',
    ),
  ],
)
def test_refuses(encoding, scheme, given, error, message):
  with pytest.raises(error, match=message):
    assign(
      create(encoding),
      positions.create(scheme),
      helpers.rows(2, LENGTH),
      lengths=jnp.full((2, 1), LENGTH),
      rng=KEY,
      train=True,
      equal_rows=True,
      tokens=numbers(),
      **given,
    )


@pytest.mark.parametrize(
  'encoding, scheme, message',
  [
    ('rope', 'abacus + standard', r'rope acts in attention only; leave out ab'),
    (
      'learned(max_position=32, rows=2) + rope',
      'abacus + standard',
      'adds 2 rows of positions and gets 1',
    ),
    (
      'learned(max_position=16) + rope',
      'coupled(max_position=32) + standard',
      'below 32 and learned has max_position=16',
    ),
    (
      'learned(max_position=16) + rope',
      'standard + cape',
      None,
    ),
    (
      'learned(max_position=16) + rope',
      'cape + standard',
      'cape has fractional positions and learned requires integers',
    ),
  ],
)
def test_checks_of_a_model_and_a_scheme(encoding, scheme, message):
  if message is None:
    objective.check(create(encoding), scheme)
    return
  with pytest.raises(errors.CombinationError, match=message):
    objective.check(create(encoding), scheme)


def test_decoding_refuses_tokens_with_random_positions():
  class Drawn(positions.SCHEMES['abacus']):
    random_at_test = True

  with pytest.raises(errors.CombinationError, match='decoding does not supp'):
    cache_lib.create(create('rope'), 2, LENGTH, scheme=Drawn(), rng=KEY)


def test_a_cache_needs_roles():
  with pytest.raises(errors.ConfigError, match='needs roles'):
    cache_lib.create(
      create('rope'), 2, LENGTH, scheme='coupled(max_position=32)'
    )
