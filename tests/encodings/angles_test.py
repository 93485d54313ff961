"""Tests `lengen_jax/encodings/angles.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings
from lengen_jax.encodings import angles as angles_lib

W = 10000.0 ** (-np.arange(0, 64, 2) / 64)


def distance(a, b):
  """Differences of angles, up to multiples of 2 pi."""
  return np.abs((a - b + np.pi) % (2 * np.pi) - np.pi)


@pytest.mark.parametrize(
  'p, most',
  [
    (np.arange(131070, 131075, dtype=np.int32), 0.01),
    (np.int32([10**6, 3 * 10**6, 10**7]), 0.002),
    (np.int32([-(10**7)]), 0.002),
    (np.float32([-1000000.25]), 0.002),
    (np.float32([2**17 + 0.125, 999999.75]), 0.001),
    (np.int32([2**25 + 1, 2**30 + 1]), 0.2),
  ],
)
def test_far_positions(p, most):
  found = angles_lib.angles(p, W)
  assert found.shape == (len(p), 32) and found.dtype == jnp.float32
  want = p.astype(np.float64)[:, None] * W
  assert distance(np.float64(found), want).max() < most


def test_near_positions_are_products():
  for p in (np.arange(2**17, dtype=np.int32), np.float32([0.25, 131071.5])):
    found = angles_lib.angles(p[-1000:], W)
    want = p[-1000:, None].astype(np.float32) * W.astype(np.float32)
    np.testing.assert_array_equal(found, want)


def test_gradients_of_positions():
  for p in (5.5, 2**20 + 0.5):
    slope = jax.jacobian(lambda p: angles_lib.angles(p, W))(jnp.float32(p))
    np.testing.assert_allclose(slope, W, rtol=1e-6)


@pytest.mark.parametrize('name', ['rope', 'pope', 'sinusoidal'])
def test_neighbours_beyond_float32_differ(name):
  encoding = encodings.create(name, num_heads=1, head_dim=8)
  x = np.ones((1, 2, 1, 8), np.float32)
  p = np.int32([[2**25, 2**25 + 1]])
  if name == 'sinusoidal':
    found = encoding.apply({}, x[:, :, 0], p, method='embed')
  else:
    variables = encoding.init(jax.random.key(0), x, x, p, p, method='rotate')
    _, found = encoding.apply(variables, x, x, p, p, method='rotate')
  assert np.abs(found[:, 0] - found[:, 1]).max() > 0.3
