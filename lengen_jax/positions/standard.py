"""Standard positions: 0, 1, 2, ... in every segment."""

import dataclasses

from lengen_jax.positions import base
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Standard(base.PositionScheme):
  """Position = index of the token in its segment."""

  formula = 'p = i'
  contiguous = True

  def apply(
    self, draws: Draws, segment_positions: Array, *, lengths: Lengths = None
  ) -> Array:
    return segment_positions
