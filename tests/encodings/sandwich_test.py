"""Tests `lengen_jax/encodings/sandwich.py`.

Golden arrays: `golden/encodings/README.json`, file sandwich; float32 sums, good
to 6e-5.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors
from tests import helpers

FOLDER = helpers.GOLDEN / 'encodings'
GOLDEN = np.load(FOLDER / 'sandwich.npz')


@pytest.mark.parametrize('dbar', [8, 64, 128])
def test_golden(dbar):
  encoding = encodings.create(f'sandwich(dbar={dbar})', num_heads=8, head_dim=4)
  p = jnp.arange(64)
  got = encoding.apply({}, p, p, method='bias')
  np.testing.assert_allclose(got, GOLDEN[f'H8/dbar{dbar}/n64'], atol=1e-4)
  bias_fn = encoding.apply({}, method='bias_fn')
  distances = GOLDEN['distances']
  got = encoding.strip(bias_fn.params, jnp.asarray(distances, jnp.float32))
  np.testing.assert_allclose(
    got, GOLDEN[f'H8/dbar{dbar}/by_distance'], atol=2e-4
  )


def test_formula(assert_close):
  encoding = encodings.create('sandwich(dbar=6)', num_heads=3, head_dim=4)
  q, k = np.float32([0.5, 30, 7]), np.float32([2, 90.25])
  want = np.zeros((3, 3, 2))
  for h, i, j in np.ndindex(*want.shape):
    d = np.float64(q[i]) - k[j]
    total = sum(np.cos(d * 10000 ** (-2 * n / 6)) for n in range(3))
    want[h, i, j] = 3 / (8 * (h + 1)) * total
  got = encoding.apply({}, jnp.asarray(q), jnp.asarray(k), method='bias')
  assert_close(got, want)


def test_bad_width():
  with pytest.raises(
    errors.SpecError, match='dbar of sandwich is 7; it must be even'
  ):
    encodings.create('sandwich(dbar=7)', num_heads=1, head_dim=4)
