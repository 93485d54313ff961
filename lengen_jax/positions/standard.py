"""Standard positions: 0, 1, 2, ... in every segment."""

import dataclasses

from lengen_jax.positions import base


@dataclasses.dataclass(frozen=True)
class Standard(base.PositionScheme):
  """The index of the token within its segment."""

  formula = 'p = i'
  contiguous = True

  def apply(self, draws, segment_positions, *, lengths=None):
    return segment_positions
