"""The cache of decoding: keys and values, and what was fixed at its start.

Positions are data here too: they are laid down for the whole planned length
when the cache is made, so that a scheme that draws them, or goes by the length
of a sequence, gives every token what a full forward pass over that length
would. A plan is never guessed.
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
  """What decoding carries from call to call. Each row is one sequence.

  Attributes:
    layers: (keys, values) of each layer, `[B, P, H, D]` each, P the slots; keys
      are unrotated where the rotation depends on the length. Of scanned layers,
      one pair per encoding in turn, stacked along a new first axis.
    positions: of all slots, `[1 or B, P]`, `[layers, 1 or B, P]`, or Distances.
    length: int32 `[B]`, tokens that each row holds.
    planned: int32 `[B, 1]`, the length that each row is planned to reach.
  """

  layers: Any
  positions: Any
  length: Any
  planned: Any

  def new_tokens(self, count: int) -> Tokens:
    """Returns the next `count` tokens of each row; their index is the slot."""
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
  """An empty cache.

  Args:
    config: a ModelConfig.
    batch_size: rows, B.
    max_length: slots of each row, P.
    scheme: a PositionScheme or its spec; None for the standard positions.
    planned: the length that each row is planned to reach, prompt included,
      `[B]`; None for `max_length`. What depends on the length of a sequence
      goes by it.
    rng: a PRNG key, for schemes that draw at test time.

  Returns:
    A Cache.

  Raises:
    errors.LengthError: a planned length over `max_length`, or `max_length` over
      what an encoding or the scheme can take.
    errors.CombinationError: scheme and encoding do not go together.
    errors.ConfigError: a model that does not decode, or no rows.
  """
  if config.architecture == 'encoder':
    raise errors.ConfigError('an encoder does not decode; it has no cache')
  if batch_size < 1 or isinstance(planned, jax.core.Tracer):
    raise errors.ConfigError(
      f'a cache needs rows and planned lengths that are known; got '
      f'batch_size={batch_size} and planned={planned}'
    )
  scheme = 'standard' if scheme is None else scheme
  if isinstance(scheme, str):
    scheme = position_schemes.create(scheme)
  distinct = list(dict.fromkeys(blocks.create_encodings(config)))
  for encoding in distinct:
    encodings.check_scheme(encoding, scheme)
    encodings.check_extent(encoding, scheme, max_length, train=False)
  alike = planned is None and not scheme.draws(train=False)
  planned = np.full(batch_size, max_length) if planned is None else planned
  planned = np.asarray(planned)
  if planned.shape != (batch_size,) or planned.dtype.kind not in 'iu':
    raise errors.ConfigError(
      f'planned is {planned.dtype} {planned.shape}; it must be whole numbers, '
      f'shape {(batch_size,)}'
    )
  if planned.max() > max_length or planned.min() < 1:
    raise errors.LengthError(
      f'planned lengths go from {planned.min()} to {planned.max()}; they must '
      f'be between 1 and max_length={max_length}'
    )
  for encoding in distinct:
    if not encoding.tileable and planned.min() < max_length:
      raise errors.LengthError(
        f'{specs.describe(encoding)} goes by the number of slots: max_length='
        f'{max_length} must be the planned length of every row'
      )
  planned = jnp.asarray(planned, jnp.int32)[:, None]
  # Rows that are alike share their positions, and so their bias.
  rows = 1 if alike else batch_size
  index = jnp.broadcast_to(
    jnp.arange(max_length, dtype=jnp.int32)[None], (rows, max_length)
  )
  positions = scheme(
    index,
    lengths=planned[:rows],
    rng=rng,
    train=False,
    num_layers=config.num_layers,
  )
  turn, shape = config.num_layers, ()
  if config.scan_layers:
    turn = len(config.encoding)
    shape = (config.num_layers // turn,)
  key_heads = config.key_heads or config.num_heads
  shape += (batch_size, max_length, key_heads, config.head_dim)
  return Cache(
    layers=tuple(
      tuple(jnp.zeros(shape, config.dtype) for _ in range(2))
      for _ in range(turn)
    ),
    positions=positions,
    length=jnp.zeros(batch_size, jnp.int32),
    planned=planned,
  )
