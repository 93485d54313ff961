"""Cache of keys, values and positions for decoding.

`create` computes the positions of the whole planned length. Each token has the
same position as in a full forward pass over that length, also with schemes that
are random or depend on the length.
"""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import encodings, errors, specs
from lengen_jax import positions as position_schemes
from lengen_jax.models import blocks
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import tokens as tokens_lib
from lengen_jax.positions.tokens import Tokens
from lengen_jax.types import Array


class Cache(struct.PyTreeNode):
  """State of decoding. Each row is one sequence.

  Attributes:
    layers: keys `[B, G, D, P]`, values `[B, G, P, D]` and contextual positions
      of each layer, with G key heads and P slots; see `layers.LayerCache`. A
      product with queries or weights reads keys and values in order. Keys are
      unrotated if their angles may change or depend on contents.
    positions: `[1 or B, P]`, `[layers, 1 or B, P]`, or Distances, of all slots.
    length: int32 `[B]`, number of tokens in each row.
    planned: int32 `[B, 1]`, planned length of each row.
  """

  layers: Any
  positions: Any
  length: Any
  planned: Any

  def new_tokens(self, count: int) -> Tokens:
    """Returns the next `count` tokens of each row; `index` is their slots."""
    index = self.length[:, None] + tokens_lib.position_index(count, None)
    return Tokens(self.positions, index, lengths=self.planned)


def create(
  config: ModelConfig,
  batch_size: int,
  max_length: int,
  *,
  scheme: position_schemes.PositionScheme | str | None = None,
  planned: Array | None = None,
  rng: jax.Array | None = None,
) -> Cache:
  """Creates an empty cache.

  Args:
    config: a ModelConfig.
    batch_size: rows, B.
    max_length: number of slots of each row, P.
    scheme: a PositionScheme or its spec; None for the standard positions.
    planned: length of each row including the prompt, `[B]`, for methods that
      depend on it; None for `max_length`.
    rng: a PRNG key, for schemes that are random at test time.

  Raises:
    errors.LengthError: a planned length exceeds `max_length`, or `max_length`
      exceeds the limit of an encoding or of the scheme.
    errors.CombinationError: an encoding does not support the scheme.
    errors.ConfigError: the model is an encoder, or `batch_size` is below 1.
  """
  if config.architecture == 'encoder':
    raise errors.ConfigError('an encoder does not decode; it has no cache')
  if batch_size < 1 or isinstance(planned, jax.core.Tracer):
    raise errors.ConfigError(
      'a cache requires at least one row and concrete planned lengths; got '
      f'batch_size={batch_size} and planned={planned}'
    )
  scheme = 'standard' if scheme is None else scheme
  if isinstance(scheme, str):
    scheme = position_schemes.create(scheme)
  distinct = list(dict.fromkeys(blocks.create_encodings(config)))
  for encoding in distinct:
    encodings.check_scheme(encoding, scheme)
    encodings.check_extent(encoding, scheme, max_length, train=False)
  equal_rows = planned is None and not scheme.draws(train=False)
  planned = np.full(batch_size, max_length) if planned is None else planned
  planned = np.asarray(planned)
  if planned.shape != (batch_size,) or planned.dtype.kind not in 'iu':
    raise errors.ConfigError(
      f'planned is {planned.dtype} {planned.shape}; it must be integers, '
      f'shape {(batch_size,)}'
    )
  if planned.max() > max_length or planned.min() < 1:
    raise errors.LengthError(
      f'planned lengths range from {planned.min()} to {planned.max()}; they '
      f'must be between 1 and max_length={max_length}'
    )
  for encoding in distinct:
    if not encoding.tileable and planned.min() < max_length:
      raise errors.LengthError(
        f'{specs.describe(encoding)} depends on the number of slots: '
        f'max_length={max_length} must be the planned length of every row'
      )
  planned = jnp.asarray(planned, jnp.int32)[:, None]
  # Rows with equal positions share one array of positions and one bias.
  rows = 1 if equal_rows else batch_size
  index = jnp.broadcast_to(
    tokens_lib.position_index(max_length, None), (rows, max_length)
  )
  positions = scheme(
    index, lengths=planned[:rows], rng=rng, num_layers=config.num_layers
  )
  shapes = layer_shapes(config, batch_size, max_length)
  return Cache(
    layers=tuple(
      (
        *(jnp.zeros(shape, config.dtype) for shape in shapes),
        scheme.slots(batch_size, max_length),
      )
      for scheme in blocks.create_contextual(config)
    ),
    positions=positions,
    length=jnp.zeros(batch_size, jnp.int32),
    planned=planned,
  )


def layer_shapes(
  config: ModelConfig, batch_size: int, max_length: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
  """Returns the shapes of the keys and of the values of a layer."""
  rows = batch_size, config.key_heads or config.num_heads
  head_dim = config.head_dim
  return (*rows, head_dim, max_length), (*rows, max_length, head_dim)
