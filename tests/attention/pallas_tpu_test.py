"""Tests `lengen_jax/attention/pallas_tpu`: tiles from rows of distances."""

import jax
from jax.experimental import pallas as pl
import numpy as np
import pytest

from lengen_jax.attention.pallas_tpu import toeplitz


@pytest.mark.parametrize('rows, columns', [(128, 256), (256, 128)])
def test_a_tile_of_distances_and_back(rows, columns):
  def kernel(vector, cotangent, tile, summed):
    tile[...] = toeplitz.tile(vector[...], rows, columns)
    summed[...] = toeplitz.untile(cotangent[...])

  rng = np.random.default_rng(0)
  vector = rng.normal(size=(1, rows + columns)).astype(np.float32)
  cotangent = rng.normal(size=(rows, columns)).astype(np.float32)
  tile, summed = pl.pallas_call(
    kernel,
    out_shape=[
      jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (cotangent, vector)
    ],
    interpret=True,
  )(vector, cotangent)
  r, c = np.indices((rows, columns))
  np.testing.assert_array_equal(tile, vector[0, c - r + rows])
  want = np.zeros_like(vector[0])
  np.add.at(want, c - r + rows, cotangent)
  np.testing.assert_allclose(summed[0], want, rtol=1e-4, atol=1e-5)
