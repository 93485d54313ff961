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
from lengen_jax.models.assign import assign
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import tokens as tokens_lib
from lengen_jax.positions.tokens import Tokens
from lengen_jax.types import Array


class Cache(struct.PyTreeNode):
  """State of decoding. Each row is one sequence.

  Attributes:
    layers: keys `[B, G, D, P]`, values `[B, G, P, D]` and contextual positions
      of each layer, with G key heads and P slots; see `layers.LayerCache`. In
      this layout, the products with queries and attention weights read memory
      sequentially. Keys are unrotated if their angles may change or depend on
      contents.
    positions: `[1 or B, P]`, `[layers, 1 or B, P]`, or Distances, of all slots.
    length: int32 `[B]`, number of tokens in each row.
    planned: int32 `[B, 1]`, planned length of each row.
    input_positions: positions for the encoding at the input, if they differ;
      see `Tokens`.
    tokens: int32 `[B, P]`, the tokens so far, if positions depend on them.
    scheme: the position scheme, if positions depend on tokens.
  """

  layers: Any
  positions: Any
  length: Any
  planned: Any
  input_positions: Any = None
  tokens: Any = None
  scheme: Any = struct.field(pytree_node=False, default=None)

  def new_tokens(self, count: int) -> Tokens:
    """Returns the next `count` tokens of each row; `index` is their slots."""
    index = self.length[:, None] + tokens_lib.position_index(count, None)
    return Tokens(
      self.positions,
      index,
      lengths=self.planned,
      input_positions=self.input_positions,
    )

  def with_tokens(self, inputs: Array) -> 'Cache':
    """Returns the cache with the positions of the next tokens, `[B, Q]`.

    If positions depend on tokens, they are computed from those so far.
    """
    if self.scheme is None:
      return self
    rows = jnp.arange(len(inputs))[:, None]
    slots = self.new_tokens(inputs.shape[1]).index
    tokens = jnp.asarray(self.tokens).at[rows, slots].set(inputs, mode='drop')
    index = jnp.broadcast_to(
      tokens_lib.position_index(tokens.shape[1], None), tokens.shape
    )

    def place(scheme: position_schemes.PositionScheme, before: Any) -> Any:
      if before is None or not scheme.needs_tokens:
        return before
      return scheme(index, lengths=self.planned, tokens=tokens)

    return self.replace(
      positions=place(self.scheme.in_attention, self.positions),
      input_positions=place(self.scheme.at_input, self.input_positions),
      tokens=tokens,
    )


def create(
  config: ModelConfig,
  batch_size: int,
  max_length: int,
  *,
  scheme: position_schemes.PositionScheme | str | None = None,
  planned: Array | None = None,
  roles: Array | None = None,
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
    roles: int32 `[R, B, P]`, roles of the tokens of all slots, for schemes that
      need them; -1 for a token without a role.
    rng: a PRNG key, for schemes that are random at test time.

  Raises:
    errors.LengthError: a planned length exceeds `max_length`, or `max_length`
      exceeds the limit of an encoding or of the scheme.
    errors.CombinationError: an encoding does not support the scheme, or the
      scheme needs tokens and is random at test time.
    errors.ConfigError: the model is an encoder, `batch_size` is below 1, or
      roles are missing.
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
  distinct = blocks.distinct_encodings(config)
  for encoding in distinct:
    encodings.check_scheme(encoding, scheme)
  for part in (scheme.at_input, scheme.in_attention):
    if part.needs_tokens and (part.needs_roles or part.draws(train=False)):
      raise errors.CombinationError(
        f'{part} depends on tokens, and on roles or random numbers too; '
        'decoding does not support it'
      )
  equal_rows = planned is None
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
  shape = batch_size, max_length
  empty = jnp.zeros(shape, jnp.int32)
  # Rows with equal positions share one array of positions and one bias.
  positions = assign(
    config,
    scheme,
    jnp.broadcast_to(tokens_lib.position_index(max_length, None), shape),
    lengths=planned,
    rng=rng,
    train=False,
    equal_rows=equal_rows,
    tokens=empty,
    roles=roles,
  )
  tokens = Tokens.create(shape, positions)
  shapes = layer_shapes(config, batch_size, max_length)
  return Cache(
    layers=tuple(
      (
        *(jnp.zeros(shape, config.dtype) for shape in shapes),
        scheme.slots(batch_size, max_length),
      )
      for scheme in blocks.create_contextual(config)
    ),
    positions=tokens.positions,
    length=jnp.zeros(batch_size, jnp.int32),
    planned=planned,
    input_positions=tokens.input_positions,
    tokens=empty if scheme.needs_tokens else None,
    scheme=scheme if scheme.needs_tokens else None,
  )


def layer_shapes(
  config: ModelConfig, batch_size: int, max_length: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
  """Returns the shapes of the keys and of the values of a layer."""
  rows = batch_size, config.key_heads or config.num_heads
  head_dim = config.head_dim
  return (*rows, head_dim, max_length), (*rows, max_length, head_dim)
