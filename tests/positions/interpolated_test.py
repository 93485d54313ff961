"""Tests `lengen_jax/positions/interpolated.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from lengen_jax.positions import interpolated

INDEX = jnp.arange(6)[None]


def test_scale():
  scheme = positions.create('interpolated(scale=4.)')
  got = scheme(INDEX)
  assert got.dtype == jnp.float32
  np.testing.assert_array_equal(got, np.arange(6)[None] / 4)
  np.testing.assert_array_equal(scheme(INDEX, train=True), got)
  assert not scheme.needs_lengths


def test_train_length_goes_by_each_row(assert_close):
  scheme = positions.create('interpolated(train_length=4)')
  index = jnp.tile(INDEX, (3, 1))
  got = scheme(index, lengths=jnp.array([[3], [4], [6]]))
  want = np.arange(6)[None] * np.array([[1], [1], [4 / 6]])
  assert got.dtype == jnp.float32
  assert_close(got, want, 1e-6)
  # Shorter than in training is left as it is.
  np.testing.assert_array_equal(got[0], np.arange(6))


def test_train_length_goes_by_each_segment(assert_close):
  scheme = positions.create('interpolated(train_length=2)')
  index = jnp.array([[0, 1, 2, 3, 0, 1]])
  lengths = jnp.array([[4, 4, 4, 4, 2, 2]])
  got = scheme(index, lengths=lengths)
  assert_close(got, np.array([[0, 0.5, 1, 1.5, 0, 1]]), 1e-6)


def test_padding_changes_nothing(assert_close):
  scheme = positions.create('interpolated(train_length=4)')
  lengths = jnp.array([[6]])
  short = scheme(INDEX, lengths=lengths)
  long = scheme(jnp.arange(9)[None], lengths=lengths)
  assert_close(long[:, :6], short, 1e-7)


def test_works_inside_jit(assert_close):
  scheme = positions.create('interpolated(train_length=4)')
  apply = jax.jit(lambda x, n: scheme(x, lengths=n))
  lengths = jnp.array([[6]])
  assert_close(apply(INDEX, lengths), scheme(INDEX, lengths=lengths), 1e-7)


def test_train_length_needs_lengths():
  scheme = positions.create('interpolated(train_length=4)')
  assert scheme.needs_lengths
  with pytest.raises(errors.LengthError, match='train_length=4.*lengths'):
    scheme(INDEX)


def test_ratio():
  got = interpolated.ratio(8, jnp.array([0, 1, 8, 9, 16, 800]))
  assert got.dtype == jnp.float32
  want = [1, 1, 1, 8 / 9, 0.5, 0.01]
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_facts():
  scheme = positions.create('interpolated(scale=2.)')
  assert scheme.fractional and scheme.interpolates and not scheme.random


@pytest.mark.parametrize(
  'keys, value',
  [
    ('', 'exactly one of scale and train_length'),
    ('scale=2., train_length=8', 'exactly one of scale and train_length'),
    ('scale=-2.', 'scale of interpolated is -2.0; .* > 0'),
    ('scale=0.', 'scale of interpolated is 0.0'),
    ('train_length=0', 'train_length of interpolated is 0; .* >= 1'),
    ('train_length=-8', 'train_length of interpolated is -8'),
  ],
)
def test_refuses(keys, value):
  with pytest.raises(errors.SpecError, match=value):
    positions.create(f'interpolated({keys})')
