"""The bias of all pairs, as T5X's networks request it.

Shape suffixes: B batch, H heads, Q queries, K keys.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors, specs
from lengen_jax import positions as position_schemes
from lengen_jax.interop.t5x import params
from lengen_jax.positions import tokens


class RelativePositionBiases(nn.Module):
  """Any additive encoding in place of T5X's relative position biases.

  It is called like T5X's class of this name. Parameters are those of the
  encoding, such as `relpos_bias/mlp_0/kernel`. 't5' has T5X's parameter,
  `relpos_bias/rel_embedding [H, num_buckets]`. The network decides whether
  layers share them, by creating one instance for all layers or one per layer.

  Attributes:
    encoding: spec of an additive encoding.
    num_heads: H.
    dtype: dtype of the returned bias; it is computed in float32.
    positions: of the tokens of the call: int32 or float32, `[L]`, `[1, L]` or
      `[B, L]`; float32 `[1 or B, L, H]`, one per head; or Distances. None for
      0, 1, 2, ... In packed rows, a bias that depends on more than distance
      needs the position of each token within its segment, T5X's
      `decoder_positions`. During decoding, positions are read when the cache is
      created and must be equal in all rows.
    num_buckets: buckets of 't5'; a value in its spec takes precedence.
    max_distance: likewise of 't5'. Other encodings ignore both.
    embedding_init: initializer of T5's table; None for normal(0.02).
  """

  encoding: str = 'fire'
  num_heads: int = dataclasses.field(kw_only=True)
  dtype: Any = jnp.float32
  positions: Any = None
  num_buckets: int = 32
  max_distance: int = 128
  embedding_init: Callable | None = None

  @nn.compact
  def __call__(
    self, qlen: int, klen: int, bidirectional: bool = True, decode: bool = False
  ) -> jax.Array | None:
    """Computes the bias of all pairs.

    Args:
      qlen: number of queries, Q.
      klen: number of keys, K.
      bidirectional: whether keys after the query are visible.
      decode: keep the bias in the collection 'cache' and read it from there.

    Returns:
      `[1 or B, H, Q, K]` in `dtype`; None if the encoding has no bias.

    Raises:
      errors.ConfigError: positions have another length, or differ between rows
        during decoding; decoding is bidirectional, or occurs in initialization.
      errors.CombinationError: the encoding is not an additive bias.
    """
    encoding = self._create()
    nn.share_scope(self, encoding)
    if decode and bidirectional:
      raise errors.ConfigError(
        'decode=True requires a causal bias; pass bidirectional=False'
      )
    if decode and self.is_initializing():
      raise errors.ConfigError(
        'decode=True during initialization would cache the bias of the initial '
        'parameters; create the cache by apply({"params": params}, ..., '
        'decode=True, mutable=["cache"])'
      )
    shape = (1, self.num_heads, qlen, klen)
    if decode and self.has_variable('cache', 'cached_bias'):
      cached: Any = self.get_variable('cache', 'cached_bias')
      if cached.shape != shape:
        raise errors.ConfigError(
          f'the bias in the cache has shape {cached.shape}; num_heads='
          f'{self.num_heads} and {qlen} x {klen} pairs require {shape}'
        )
      return cached
    if self.positions is not None and qlen != klen:
      raise errors.ConfigError(
        f'positions belong to one sequence; a bias of {qlen} queries and '
        f'{klen} keys relates two'
      )
    length = max(qlen, klen)
    positions = positions_of(self.positions, None, length, encoding)
    if decode and positions.shape[0] > 1:
      raise errors.ConfigError(
        f'positions have {positions.shape[0]} rows, and T5X caches one bias for'
        ' all rows while decoding: give [1, L], or give them to '
        'MultiHeadDotProductAttention(encoding=, positions=), which computes '
        'one row of a bias at a time'
      )
    index = jnp.arange(length, dtype=jnp.int32)[None]
    bias_BxHxQxK = encoding.bias(
      at(positions, index[:, :qlen]),
      at(positions, index[:, :klen]),
      bidirectional=bidirectional,
    )
    if bias_BxHxQxK is None:
      return None
    bias_BxHxQxK = bias_BxHxQxK.astype(self.dtype)
    if decode:
      self.variable('cache', 'cached_bias', lambda: bias_BxHxQxK)
    return bias_BxHxQxK

  def _create(self) -> encodings.Encoding:
    name, values = specs.parse(specs.imported(self.encoding))
    if name != 't5':
      return additive(self.encoding, self.num_heads)
    fields = {
      key: getattr(self, key)
      for key in ('num_buckets', 'max_distance')
      if key not in values
    }
    table = params.RelEmbedding(self.embedding_init)
    return additive(self.encoding, self.num_heads, make_param=table, **fields)


def additive(
  spec: str,
  num_heads: int,
  head_dim: int = 64,
  make_param: Callable = params.param,
  **fields: Any,
) -> encodings.Encoding:
  """Creates an encoding that adds a bias, or 'nope'.

  Args:
    spec: spec of the encoding.
    num_heads: H.
    head_dim: D; arbitrary if unknown, because no bias depends on it.
    make_param: creates the parameters of the encoding.
    **fields: further fields of the encoding.

  Raises:
    errors.SpecError: an unknown encoding.
    errors.CombinationError: the encoding is not an additive bias.
  """
  encoding = encodings.create(
    spec,
    num_heads=num_heads,
    head_dim=head_dim,
    make_param=make_param,
    **fields,
  )
  encodings.check_width(encoding, "T5X's attention")
  instead = {
    'rotation': 'rotates queries and keys: use MultiHeadDotProductAttention('
    f'rotary={spec!r})',
    'bands': 'rotates queries and keys by bands of distance: use '
    'lengen_jax.models.layers.Attention',
    'embedding': 'acts at the input of a model: add its embed(x, positions) to '
    'the embeddings there',
    'content': 'depends on queries and keys, which T5X does not pass to a '
    'bias: use lengen_jax.models.layers.Attention',
  }.get(encodings.kind(encoding))
  if instead:
    raise errors.CombinationError(
      f'{spec} is not an additive bias; it {instead}'
    )
  return encoding


def positions_of(
  positions: Any,
  batch: int | None,
  length: int,
  *users: encodings.Encoding,
  beams: bool = False,
) -> position_schemes.Positions | position_schemes.PerHead:
  """Returns checked positions `[1 or B, length]`, Distances or PerHead.

  Args:
    positions: positions given to a module, or None for 0, 1, 2, ...
    batch: number of rows, B; None for any number.
    length: number of tokens per row.
    *users: encodings that must support the positions.
    beams: whether the batch may hold several adjacent beams per row.

  Raises:
    errors.ConfigError: the number of rows or the length differs.
    errors.LengthError: a position is beyond the table of an encoding.
    errors.CombinationError: an encoding does not support the positions.
  """
  if positions is None:
    return jnp.arange(length, dtype=jnp.int32)[None]
  positions = tokens.position_array(positions)
  if len(positions.shape) == 1:
    positions = positions[None]
  rows, *inner, _ = positions.shape
  heads = {encoding.num_heads for encoding in users}
  is_per_head = inner == [length] and heads == {positions.shape[-1]}
  if is_per_head and getattr(positions, 'dtype', None) == jnp.float32:
    positions = position_schemes.PerHead(positions)
  elif inner and not isinstance(positions, position_schemes.PerHead):
    raise errors.ConfigError(
      f'positions have shape {positions.shape}: some for each layer, or not '
      f'float32 [1 or B, {length}, num_heads]; give each layer its own, '
      f'[1 or B, {length}] or one per head'
    )
  if beams and rows and batch % rows == 0:
    # The starts of distances may have one row for all.
    positions = jax.tree.map(
      lambda x: jnp.repeat(x, batch // rows, 0) if len(x) == rows else x,
      positions,
    )
    rows = batch
  tokens.check_tokens((batch or rows, length), positions, None, None)
  for encoding in users:
    encodings.check_positions(encoding, positions)
  return positions


def at(
  positions: position_schemes.Positions | position_schemes.PerHead,
  index: jax.Array,
) -> Any:
  """Returns positions at indices `[1 or B, N]`: `[1 or B, N]` or with H."""
  if isinstance(positions, position_schemes.PerHead):
    return jnp.take_along_axis(positions.value, index[..., None], axis=1)
  return position_schemes.take(positions, index)
