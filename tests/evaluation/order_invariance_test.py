"""Tests `lengen_jax/evaluation/order_invariance.py`."""

import jax
import numpy as np
import pytest

from lengen_jax import errors, positions
from lengen_jax.data import windows
from lengen_jax.evaluation import order_invariance
from lengen_jax.models import objective
from tests import helpers

L = 12
RANDOMIZED = 'randomized(max_position=64)'


def batch(sizes=None, length=L):
  tokens = np.random.default_rng(1).integers(0, 255, (3, length + 1))
  return windows.lm_batch(tokens, sizes)


def measure(
  given,
  scheme=RANDOMIZED,
  architecture='decoder',
  packed=False,
  draws=2,
  **fields,
):
  fields = {'num_layers': 1, 'architecture': architecture} | fields
  config = helpers.tiny_model(**fields)
  params = helpers.params_of(config)
  return order_invariance.measure(
    config,
    positions.create(scheme),
    params,
    objective.masked(config, given, jax.random.key(3)),
    seed=5,
    draws=draws,
    packed=packed,
  )


def test_an_encoder_without_positions_sees_neither():
  """It has no order, and no positions that could be drawn anew."""
  found = measure(batch(), architecture='encoder')
  for change in (found.redrawn, found.permuted):
    assert change.total_variation < 1e-4 and change.kl < 1e-4
  assert found.compared == 6


def test_a_decoder_of_one_layer_without_positions_has_no_order():
  """Its last token sees a set; from two layers on, sets of different sizes."""
  found = measure(batch())
  assert found.permuted.total_variation < 1e-4
  assert measure(batch(), num_layers=2).permuted.total_variation > 1e-3


def test_what_a_decoder_does_not_see_stays_where_it_is():
  """Tokens behind the last that is scored."""
  given = batch()
  given['weights'][:, 6:] = 0
  assert measure(given).permuted.total_variation < 1e-4


def test_change():
  p, q = np.log([[0.5, 0.5], [0.2, 0.8]]), np.log([[0.25, 0.75], [0.2, 0.8]])
  found = order_invariance.change(p, q)
  # ln(4 / 3) / 2 for the first row, 0 for the second.
  np.testing.assert_allclose(found, [0.125, np.log(4 / 3) / 4])


def test_distances_do_not_change_under_a_shift():
  found = measure(batch(), 'shape(max_shift=32)', encoding='alibi')
  assert found.redrawn.total_variation < 1e-4
  assert found.permuted.total_variation > 1e-3


@pytest.mark.parametrize('architecture', ['decoder', 'encoder'])
def test_positions_that_matter_are_seen(architecture):
  found = measure(batch(), architecture=architecture, encoding='rope')
  for change in (found.redrawn, found.permuted):
    assert 1e-3 < change.total_variation < 1
    assert change.kl > 1e-5
    # Pinsker's inequality.
    assert change.total_variation <= np.sqrt(change.kl / 2)


def test_draws_are_those_of_training_without_dropout():
  """At test time this scheme draws nothing."""
  found = measure(batch(), 'equal_mean', encoding='rope', dropout_rate=0.5)
  assert found.redrawn.total_variation > 1e-3
  nope = measure(batch(), 'equal_mean', dropout_rate=0.5)
  assert nope.redrawn.total_variation < 1e-4


def test_padding_takes_no_part():
  """Rows of 12, 7 and no tokens; in a row of one none changes places."""
  given = batch(np.array([13, 8, 1]))
  found = measure(given, encoding='rope')
  other = {
    **given,
    'inputs': np.where(given['weights'] > 0, given['inputs'], 9),
  }
  again = measure(other, encoding='rope')
  assert found.compared == 4
  assert found.permuted.kl == pytest.approx(again.permuted.kl, rel=1e-4)
  alone = measure(batch(np.array([2, 2, 2])), encoding='rope')
  assert alone.permuted.total_variation == 0


def test_of_packed_rows_one_segment_is_permuted():
  ids = np.array([[1] * 10 + [2] * 2] * 3, np.int32)
  given = {
    **batch(),
    'segment_ids': ids,
    'segment_positions': np.array([[*range(10), 0, 1]] * 3, np.int32),
    'lengths': np.array([[10] * 10 + [2] * 2] * 3, np.int32),
  }
  # One token changes places with itself.
  found = measure(given, encoding='rope', packed=True)
  assert found.permuted.total_variation == 0
  assert found.redrawn.total_variation > 1e-4


@pytest.mark.parametrize(
  'scheme, fields, message',
  [
    ('standard', {}, 'standard is not random'),
    (RANDOMIZED, {'architecture': 'encoder_decoder'}, 'an encoder_decoder has'),
  ],
)
def test_refuses_what_cannot_be_measured(scheme, fields, message):
  with pytest.raises(errors.CombinationError, match=message):
    measure(batch(), scheme, **fields)


def test_refuses_a_batch_without_anything_scored():
  with pytest.raises(errors.ConfigError, match='weight above 0'):
    measure(batch(np.array([1, 1, 1])))


def test_refuses_no_draws():
  with pytest.raises(errors.ConfigError, match='draws must be at least 1'):
    measure(batch(), draws=0)


def test_each_pair_of_draws_is_new():
  one, two = (measure(batch(), encoding='rope', draws=n) for n in (1, 2))
  assert one.redrawn != two.redrawn
