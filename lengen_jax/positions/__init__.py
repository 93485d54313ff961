"""Position schemes, which assign positions to tokens before the model runs."""

from lengen_jax.positions.base import (
  Distances,
  Positions,
  PositionScheme,
  segment_lengths,
  segment_positions,
  take,
)
from lengen_jax.positions.registry import create, register, SCHEMES
from lengen_jax.positions.tokens import Tokens

__all__ = [
  'SCHEMES',
  'Distances',
  'PositionScheme',
  'Positions',
  'Tokens',
  'create',
  'register',
  'segment_lengths',
  'segment_positions',
  'take',
]
