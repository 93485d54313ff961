"""Position interpolation (PI): long sequences scaled to the trained range."""

import dataclasses

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.positions import base
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Interpolated(base.PositionScheme):
  """Scaled positions: i / scale, or dynamic PI if `train_length` is given.

  Dynamic PI multiplies i by min(1, train_length / length), with the length of
  the segment and the longest training length.

  Source: Chen et al. (2023), arXiv:2306.15595, eq. 4.
  """

  scale: float | None = None
  train_length: int | None = None

  formula = 'p = i / scale, or i min(1, train_length / length)'
  source = 'arXiv:2306.15595'
  at_decoding = 'with train_length the planned length'
  fractional = True
  interpolates = True
  ranges = {'scale': 'None or > 0', 'train_length': 'None or >= 1'}

  def __post_init__(self) -> None:
    super().__post_init__()
    if (self.scale is None) == (self.train_length is None):
      raise errors.SpecError(
        'interpolated requires exactly one of scale and train_length'
      )

  @property
  def needs_lengths(self) -> bool:
    return self.train_length is not None

  def apply(self, draws: Draws, i: Array, *, lengths: Lengths = None) -> Array:
    positions = i.astype(jnp.float32)
    if self.scale is not None:
      return positions / self.scale
    return positions * ratio(self.train_length, lengths)


def ratio(train_length: int, lengths: int | Array) -> jax.Array:
  """Returns the factor of dynamic PI, min(1, train_length / length)."""
  lengths = jnp.maximum(lengths, 1).astype(jnp.float32)
  return jnp.minimum(1.0, train_length / lengths)
