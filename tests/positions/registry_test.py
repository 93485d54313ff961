"""Tests `lengen_jax/positions/registry.py`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax import positions

SPECS = {
  'standard': 'standard',
  'interpolated': 'interpolated(scale=2.)',
  'randomized': 'randomized(max_position=99)',
}


@pytest.mark.parametrize('name', sorted(positions.SCHEMES))
def test_create(name):
  scheme = positions.create(SPECS[name])
  assert type(scheme) is positions.SCHEMES[name]
  assert scheme.formula
  hash(scheme)


@pytest.mark.parametrize('name', sorted(positions.SCHEMES))
def test_facts_hold(name):
  """What a scheme says of its positions is true of them."""
  scheme = positions.create(SPECS[name])
  index = jnp.arange(6)[None]
  for train in (False, True):
    got = scheme(
      index, lengths=jnp.array([[6]]), rng=jax.random.key(0), train=train
    )
    assert got.shape == index.shape
    assert got.dtype == (jnp.float32 if scheme.fractional else jnp.int32)
    if scheme.contiguous:
      np.testing.assert_array_equal(np.diff(got), 1)
    if scheme.max_position is not None:
      assert got.max() < scheme.max_position
  if not scheme.needs_lengths and not scheme.random:
    np.testing.assert_array_equal(scheme(index), got)


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
  with pytest.raises(errors.SpecError, match='no class derived from') as caught:
    positions.register('mine', thing)
  assert repr(thing) in str(caught.value)
  assert 'mine' not in positions.SCHEMES
