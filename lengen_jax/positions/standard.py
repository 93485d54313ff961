"""Standard positions: 0, 1, 2, ... in every segment."""

from collections.abc import Mapping
import dataclasses

from lengen_jax.positions import base
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Standard(base.PositionScheme):
  """Position = index of the token in its segment."""

  formula = 'p = i'
  contiguous = True

  def apply(
    self,
    draws: Mapping[str, Array],
    segment_positions: Array,
    *,
    lengths: int | Array | None = None,
  ) -> Array:
    return segment_positions
