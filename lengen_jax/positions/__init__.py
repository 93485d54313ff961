"""Position schemes: which position each token is given, before the model."""

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
