"""Tests `lengen_jax/attention/pallas_gpu`: sums along diagonals."""

import jax.numpy as jnp
import numpy as np

from lengen_jax.attention.pallas_gpu import calls


def test_sums_along_diagonals():
  rng = np.random.default_rng(0)
  n, apart = 4, 3
  sums = rng.normal(size=(2, apart, n, n)).astype(np.float32)
  # What is before the first entry and after the last one is of no pair.
  r, c = np.indices((n, n))
  entry = np.arange(apart)[:, None, None] * n + r - c
  inside = (entry >= 0) & (entry < (apart - 1) * n)
  want = np.zeros((2, (apart - 1) * n + 1), np.float32)
  for row in range(2):
    np.add.at(want[row], entry[inside], sums[row][inside])
  np.testing.assert_allclose(
    calls.by_distance(calls.along_diagonals(jnp.array(sums))),
    want,
    rtol=1e-5,
    atol=1e-6,
  )
