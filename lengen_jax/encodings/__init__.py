"""Position encodings: how a model uses the positions of its tokens."""

from lengen_jax.encodings.base import BiasFn, ContentFn, Encoding, FromFunction
from lengen_jax.encodings.checks import (
  check_extent,
  check_positions,
  check_scheme,
  kind,
)
from lengen_jax.encodings.registry import (
  create,
  create_layers,
  ENCODINGS,
  register,
)

__all__ = [
  'ENCODINGS',
  'BiasFn',
  'ContentFn',
  'Encoding',
  'FromFunction',
  'check_extent',
  'check_positions',
  'check_scheme',
  'create',
  'create_layers',
  'kind',
  'register',
]
