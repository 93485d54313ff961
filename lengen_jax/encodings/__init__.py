"""Position encodings: how a model uses the positions of its tokens."""

from lengen_jax.encodings.base import BiasFn
from lengen_jax.encodings.base import ContentFn
from lengen_jax.encodings.base import Encoding
from lengen_jax.encodings.base import FromFunction
from lengen_jax.encodings.checks import check_extent
from lengen_jax.encodings.checks import check_positions
from lengen_jax.encodings.checks import check_scheme
from lengen_jax.encodings.checks import kind
from lengen_jax.encodings.registry import create
from lengen_jax.encodings.registry import create_layers
from lengen_jax.encodings.registry import ENCODINGS
from lengen_jax.encodings.registry import register

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
