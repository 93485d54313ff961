"""Tests `lengen_jax/positions/__init__.py`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions

# Keys without a default.
SPECS = {
  'interpolated': 'interpolated(scale=2.)',
  'randomized': 'randomized(max_position=99)',
  'shape': 'shape(max_shift=9)',
  'random_padding': 'random_padding(max_position=99)',
  'head_warp': 'head_warp(train_length=4)',
  'tail_warp': 'tail_warp(train_length=4)',
  'head_tail_warp': 'head_tail_warp(train_length=4)',
  'pose': 'pose(max_position=99)',
  'coupled': 'coupled(max_position=99)',
}


def create(name):
  return positions.create(SPECS.get(name, name))


@pytest.mark.parametrize('name', sorted(positions.SCHEMES))
def test_create(name):
  scheme = create(name)
  assert type(scheme) is positions.SCHEMES[name]
  assert scheme.formula
  hash(scheme)


@pytest.mark.parametrize('name', sorted(positions.SCHEMES))
def test_facts_hold(name):
  """What a scheme says of its positions is true of them."""
  scheme = create(name)
  index, lengths = jnp.tile(jnp.arange(6), (2, 1)), jnp.array([[6], [6]])
  seen = {'tokens': index + 3, 'roles': index[None] - 1}
  for train in (False, True):
    got, again, other = (
      scheme(index, lengths=lengths, rng=jax.random.key(n), train=train, **seen)
      for n in (0, 0, 1)
    )
    want = seen['roles'] if scheme.needs_roles else index
    assert got.shape == want.shape
    assert got.dtype == (jnp.float32 if scheme.fractional else jnp.int32)
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(again, got)
    if not scheme.draws(train):
      np.testing.assert_array_equal(other, got)
    if scheme.contiguous:
      np.testing.assert_array_equal(np.diff(got), 1)
    if not scheme.fractional:
      assert got.min() >= 0 and got.max() < scheme.extent(6, train)
    if not scheme.needs_lengths:
      np.testing.assert_array_equal(
        scheme(index, rng=jax.random.key(0), train=train, **seen), got
      )


@pytest.mark.parametrize(
  'spec',
  [
    'randomized(max_position=7)',
    'random_padding(max_position=7)',
    'pose(max_position=7)',
    'pose(max_position=7, chunks=3)',
  ],
)
def test_padding_is_in_the_range(spec):
  """Its indices continue beyond the segment; a table would lack them."""
  scheme = positions.create(spec)
  index, lengths = jnp.tile(jnp.arange(7), (50, 1)), jnp.full((50, 1), 4)
  got = scheme(index, lengths=lengths, rng=jax.random.key(0), train=True)
  assert got[:, :4].max() == scheme.max_position - 1
  assert 0 <= got.min() and got.max() < scheme.max_position
  # Padding changes no token.
  index = index[:, :4]
  short = scheme(index, lengths=lengths, rng=jax.random.key(0), train=True)
  np.testing.assert_array_equal(got[:, :4], short)


def test_create_refuses():
  with pytest.raises(errors.SpecError) as caught:
    positions.create('randomised(max_position=9)')
  message = str(caught.value)
  assert "unknown position scheme 'randomised'" in message
  assert "did you mean 'randomized'" in message
  assert all(name in message for name in positions.SCHEMES)
  with pytest.raises(errors.SpecError, match='standard takes no keys'):
    positions.create('standard(scale=2.)')
  with pytest.raises(errors.SpecError, match="did you mean 'max_position'"):
    positions.create('randomized(max_positions=9)')


def test_register():
  @dataclasses.dataclass(frozen=True)
  class Doubled(positions.PositionScheme):
    factor: int = 2

    def apply(self, draws, segment_positions, *, lengths=None):
      return segment_positions * self.factor

  try:
    positions.register('doubled', Doubled)
    got = positions.create('doubled(factor=3)')(jnp.arange(3)[None])
    np.testing.assert_array_equal(got, [[0, 3, 6]])
    with pytest.raises(errors.SpecError, match="'standard' is registered"):
      positions.register('standard', Doubled)
  finally:
    positions.SCHEMES.pop('doubled', None)


@pytest.mark.parametrize('thing', [dict, lambda x: x, 'standard'])
def test_register_refuses_what_is_no_scheme(thing):
  with pytest.raises(errors.SpecError, match='not a subclass of') as caught:
    positions.register('mine', thing)
  assert repr(thing) in str(caught.value)
  assert 'mine' not in positions.SCHEMES
