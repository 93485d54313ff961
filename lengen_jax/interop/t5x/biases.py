"""A bias of all pairs, as T5X's networks ask for it.

Shape suffixes: B batch, H heads, Q queries, K keys.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax import specs
from lengen_jax.interop.t5x import given
from lengen_jax.interop.t5x import params


class RelativePositionBiases(nn.Module):
  """Any additive encoding, where T5X has its relative position biases.

  Takes the place of T5X's class of this name, called as that is. Parameters are
  those of the encoding, `relpos_bias/mlp_0/kernel` and so on; of 't5' T5X's
  own, `relpos_bias/rel_embedding [H, num_buckets]`. Whether layers share them
  is up to the network, which makes one of these for all layers or one for each.

  Attributes:
    encoding: spec of an additive encoding.
    num_heads: H.
    dtype: of the bias returned; it is computed in float32.
    positions: int32 or float32, `[L]`, `[1, L]` or `[B, L]`, or Distances, of
      the tokens at hand; None for 0, 1, 2, ... Packed rows need the position of
      each token within its segment, T5X's `decoder_positions`, wherever a bias
      goes by more than distance. While decoding they are read when the cache
      is made, and are the same for all rows.
    num_buckets: of 't5', unless its spec says so; others ignore it.
    max_distance: likewise.
    embedding_init: likewise, of the table; None for normal(0.02).
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
    """The bias of all pairs.

    Args:
      qlen: queries, Q.
      klen: keys, K.
      bidirectional: whether keys after the query are visible.
      decode: keep the bias in the collection 'cache' and read it from there.

    Returns:
      `[1 or B, H, Q, K]` in `dtype`; None where the encoding has no bias.

    Raises:
      errors.ConfigError: positions of another length, or of each row while
        decoding; decoding both ways, or while initialising.
      errors.CombinationError: an encoding that is no bias.
    """
    encoding = self._encoding()
    nn.share_scope(self, encoding)
    if decode and bidirectional:
      raise errors.ConfigError(
        'decode=True goes from left to right; pass bidirectional=False'
      )
    if decode and self.is_initializing():
      raise errors.ConfigError(
        'decode=True while parameters are made would keep the bias of the first'
        ' ones; make the cache by apply({"params": params}, ..., decode=True, '
        'mutable=["cache"])'
      )
    shape = (1, self.num_heads, qlen, klen)
    if decode and self.has_variable('cache', 'cached_bias'):
      cached: Any = self.get_variable('cache', 'cached_bias')
      if cached.shape != shape:
        raise errors.ConfigError(
          f'the bias in the cache has shape {cached.shape}; num_heads='
          f'{self.num_heads} and {qlen} x {klen} pairs make it {shape}'
        )
      return cached
    if self.positions is not None and qlen != klen:
      raise errors.ConfigError(
        f'positions are those of one sequence of tokens; a bias of {qlen} '
        f'queries and {klen} keys is of two'
      )
    length = max(qlen, klen)
    positions = given.positions_of(self.positions, None, length, encoding)
    rows = given.shape(positions)[0]
    if decode and rows > 1:
      raise errors.ConfigError(
        f'positions of {rows} rows do not fit the bias that T5X keeps while '
        'decoding, which is one for all rows: give [1, L], or give them to '
        'MultiHeadDotProductAttention(encoding=, positions=), which computes '
        'one row of a bias at a time'
      )
    index = jnp.arange(length, dtype=jnp.int32)[None]
    bias_BxHxQxK = encoding.bias(
      position_schemes.take(positions, index[:, :qlen]),
      position_schemes.take(positions, index[:, :klen]),
      bidirectional=bidirectional,
    )
    if bias_BxHxQxK is None:
      return None
    bias_BxHxQxK = bias_BxHxQxK.astype(self.dtype)
    if decode:
      self.variable('cache', 'cached_bias', lambda: bias_BxHxQxK)
    return bias_BxHxQxK

  def _encoding(self):
    name, values = specs.parse(specs.imported(self.encoding))
    if name != 't5':
      return given.additive(self.encoding, self.num_heads)
    fields = {
      key: getattr(self, key)
      for key in ('num_buckets', 'max_distance')
      if key not in values
    }
    table = params.RelEmbedding(self.embedding_init)
    return given.additive(
      self.encoding, self.num_heads, make_param=table, **fields
    )
