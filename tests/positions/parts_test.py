"""Tests `lengen_jax/positions/parts.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from lengen_jax.positions.tokens import Tokens
from tests import helpers

KEY = jax.random.key(0)
INDEX = helpers.rows(2, 6)
TOKENS = np.array([[5, 6, 2, 7, 8, 2]] * 2)


def test_each_part_has_the_positions_of_its_scheme():
  scheme = positions.create('abacus + randomized(max_position=64)')
  given = scheme(INDEX, lengths=6, tokens=TOKENS, rng=KEY, train=True)
  first = scheme.at_input(INDEX, tokens=TOKENS, rng=KEY, train=True)
  np.testing.assert_array_equal(given.at_input, first)
  other = jax.random.fold_in(KEY, 1)
  second = scheme.in_attention(INDEX, lengths=6, rng=other, train=True)
  np.testing.assert_array_equal(given.in_attention, second)
  tokens = Tokens.create(INDEX.shape, given)
  np.testing.assert_array_equal(tokens.input_positions, first)
  np.testing.assert_array_equal(tokens.positions, second)


def test_facts_are_those_of_both():
  scheme = positions.create('abacus + pose(max_position=9)')
  assert scheme.random and scheme.needs_tokens and scheme.needs_lengths
  assert not (scheme.random_at_test or scheme.needs_roles or scheme.same_rows)
  assert scheme.limit(True) == 9 and scheme.limit(False) is None
  assert str(scheme) == 'abacus + pose(max_position=9)'
  assert positions.create(str(scheme)) == scheme
  contiguous = positions.create('abacus + standard')
  assert contiguous.contiguous and not scheme.contiguous


def test_of_positions_per_layer_the_input_has_those_of_layer_0():
  spec = "randomized(max_position=64, draw='layer')"
  scheme = positions.create(f'{spec} + {spec}')
  given = scheme(INDEX, lengths=6, rng=KEY, train=True, num_layers=3)
  assert given.in_attention.shape == (3, 2, 6)
  alone = positions.create(spec)
  want = alone(INDEX, lengths=6, rng=KEY, train=True, num_layers=3)
  tokens = Tokens.create(INDEX.shape, given)
  np.testing.assert_array_equal(tokens.input_positions, want[0])


@pytest.mark.parametrize('rows', [1, 2])
def test_rows_of_roles(rows):
  roles = jnp.stack([INDEX, INDEX[:, ::-1]][:rows])
  coupled = 'coupled(max_position=9)'
  given = positions.create(f'{coupled} + standard')(INDEX, roles=roles)
  tokens = Tokens.create(INDEX.shape, given)
  want = 1 + (roles[0] if rows == 1 else roles)
  np.testing.assert_array_equal(tokens.input_positions, want)
  np.testing.assert_array_equal(tokens.positions, INDEX)
  second = positions.create(f'standard + {coupled}')
  if rows == 1:
    np.testing.assert_array_equal(
      second(INDEX, roles=roles).in_attention, 1 + INDEX
    )
  else:
    with pytest.raises(errors.ConfigError, match='2 rows of positions; atten'):
      second(INDEX, roles=roles)


@pytest.mark.parametrize(
  'spec, message',
  [
    ('abacus + standard + standard', 'at_input . in_attention'),
    ('abacus +', "cannot read 'abacus .'"),
    ('abacus + forget', 'forget computes positions from contents'),
  ],
)
def test_refuses(spec, message):
  with pytest.raises(errors.SpecError, match=message):
    positions.create(spec)


@pytest.mark.parametrize('rng', [3, np.int64(3), jnp.int32(3)])
def test_refuses_what_is_no_key(rng):
  scheme = positions.create('standard + shape(max_shift=4)')
  with pytest.raises(errors.ConfigError, match='rng must be a key, got .*3'):
    scheme(INDEX, rng=rng, train=True)


def test_input_positions_fit_the_tokens():
  parts = positions.Parts(jnp.zeros((2, 5), int))
  with pytest.raises(errors.ConfigError, match=r'got \(2, 5\); 2 rows of 6'):
    Tokens.create((2, 6), parts)
