"""Position schemes: which position each token is given, before the model."""

from lengen_jax.positions.base import Distances
from lengen_jax.positions.base import Positions
from lengen_jax.positions.base import PositionScheme
from lengen_jax.positions.base import segment_lengths
from lengen_jax.positions.base import segment_positions
from lengen_jax.positions.base import take
from lengen_jax.positions.registry import create
from lengen_jax.positions.registry import register
from lengen_jax.positions.registry import SCHEMES
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
