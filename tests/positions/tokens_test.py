"""Tests `lengen_jax/positions/tokens.py`."""

import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import positions as position_schemes
from lengen_jax.positions import tokens

B, L = 2, 6


def test_position_index():
  np.testing.assert_array_equal(tokens.position_index(3, None), [[0, 1, 2]])
  ids = jnp.array([[1, 1, 2], [1, 2, 2]])
  np.testing.assert_array_equal(
    tokens.position_index(3, ids), [[0, 1, 0], [0, 0, 1]]
  )


@pytest.mark.parametrize(
  'positions_shape', [None, (L,), (1, L), (B, L), (2, B, L), (2, 1, L)]
)
@pytest.mark.parametrize(
  'lengths_shape', [None, (1, 1), (1, L), (B, 1), (B, L)]
)
def test_what_goes_with_the_tokens(positions_shape, lengths_shape):
  def given(shape):
    return None if shape is None else jnp.zeros(shape, int)

  ids = given((B, L))
  tokens.check_tokens((B, L), given(positions_shape), ids, given(lengths_shape))
  if positions_shape and len(positions_shape) > 1:
    r = position_schemes.Distances(given(positions_shape))
    tokens.check_tokens((B, L), r, ids, given(lengths_shape))
