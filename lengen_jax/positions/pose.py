"""PoSE: positions that skip at random places, to reach far distances."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax.positions import base
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Pose(base.PositionScheme):
  """Positional skip-wise training: p = i + skip [i >= first].

  A segment of n tokens is split into two chunks. The first has `first` tokens,
  uniform in {1 .. floor((n + 1) / 2)}; the second skips `skip` positions,
  uniform in {0 .. max_position - n}. At test time p = i.

  With more chunks, the length of a chunk before m - 1 others is uniform in
  {1 .. floor((r + 1) / m)} if r tokens are left, and each skip is uniform in
  what the earlier skips leave.

  If the contents of rows are chunks of a longer text, see `data.source_length`,
  the second chunk of the positions is that of the contents.

  Source: Zhu et al. (2023), arXiv:2309.10400, section 3.2, and its code.

  Attributes:
    max_position: size of the range, at least the longest segment length.
    chunks: number of chunks.
  """

  max_position: int | None = None
  chunks: int = 2

  formula = 'p = i + skip [i >= first], both random per segment'
  source = 'arXiv:2309.10400'
  test_time = 'i'
  needs_lengths = True
  random = True
  ranges = {'max_position': '>= 1', 'chunks': '>= 2'}

  @property
  def takes_chunks(self) -> bool:
    return self.chunks == 2

  def draw(
    self, rng: jax.Array, i: Array, lengths: Lengths, chunks: Any = None
  ) -> Draws:
    draws: dict[str, Array] = {}
    first = jnp.zeros_like(i)
    room = jnp.maximum(self.max_position - lengths, 0)
    for chunk, (name_of_first, name_of_skip) in enumerate(self._names()):
      left = self.chunks - chunk
      size = jnp.maximum((lengths - first + 1) // left, 1)
      skips = room + 1
      of_first, of_skip = (
        base.per_segment(
          base.per_token(
            base.below, jax.random.fold_in(rng, number), i.shape, bound
          ),
          i,
        )
        for number, bound in ((2 * chunk, size), (2 * chunk + 1, skips))
      )
      first, room = first + 1 + of_first, room - of_skip
      if chunks is not None:
        first = (chunks == 0).sum(-1, keepdims=True)
      draws |= {name_of_first: first, name_of_skip: of_skip}
    return draws

  def apply(
    self, draws: Draws, i: Array, *, lengths: Lengths = None, chunks: Any = None
  ) -> Array:
    positions = i
    for first, skip in self._names():
      positions = positions + jnp.where(i >= draws[first], draws[skip], 0)
    # Indices of padding continue beyond the segment.
    return jnp.minimum(positions, self.max_position - 1)

  def _names(self) -> list[tuple[str, str]]:
    """Returns the names of the draws of each chunk after the first."""
    numbers = [f'_{n}' if n else '' for n in range(self.chunks - 1)]
    return [(f'first{number}', f'skip{number}') for number in numbers]
