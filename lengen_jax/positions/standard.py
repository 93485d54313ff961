"""Standard positions: 0, 1, 2, ... in every segment."""

from lengen_jax.positions import base
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array


class Standard(base.PositionScheme):
  """Position = index of the token in its segment."""

  formula = 'p = i'
  contiguous = True

  def apply(self, draws: Draws, i: Array, *, lengths: Lengths = None) -> Array:
    return i
