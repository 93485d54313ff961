"""T5X's attention, with any additive or rotary encoding.

Shape suffixes: B batch, Q queries, K keys, H heads, D head_dim, E width, L
length of a cache in slots.
"""

from collections.abc import Callable
import math
from typing import Any

from flax import linen as nn
from flax.linen import partitioning
import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors
from lengen_jax import positions as position_schemes
from lengen_jax.interop.t5x import biases, params
from lengen_jax.interop.t5x import cache as cache_lib
from lengen_jax.types import Array

_MASKED = -1e10


class MultiHeadDotProductAttention(nn.Module):
  """T5X's attention with rotary and additive encodings.

  Fields, parameters, cache and call signature are those of T5X's class. Without
  `rotary` and `encoding`, outputs equal those of T5X in float32 or with
  `float32_logits`. As in T5X, logits are not divided by sqrt(D); the initial
  query kernel is smaller by that factor. Logits and softmax are float32.

  During decoding, `encoding` computes one row of the bias per new token. A bias
  passed as an argument must instead cover all query-key pairs; for a cache of
  32,768 tokens and 16 heads, it takes 64 GiB in float32.

  Attributes:
    num_heads: H.
    head_dim: D.
    dtype: dtype of the computation.
    dropout_rate: rate of attention dropout; all queries share one mask.
    kernel_init: `(key, shape, dtype)`; the shape is [inputs, outputs].
    float32_logits: ignored, for compatibility with T5X; logits are float32.
    rotary: spec of an encoding that rotates queries and keys, for
      self-attention. The cache holds rotated keys.
    encoding: spec of an additive encoding, for self-attention, with parameters
      `encoding/...`. Its bias is added to the bias of the call.
    positions: see RelativePositionBiases. Each step of decoding takes the
      positions of all slots, `[1 or B, L]`. All beams of a row share its
      positions.
    bidirectional: whether keys after the query are visible to `encoding`.
    joined_kv: whether kernels are [E, H D], as in T5X's t5 and decoder_only, or
      [E, H, D], as in its scalable_t5.
  """

  num_heads: int
  head_dim: int
  dtype: Any = jnp.float32
  dropout_rate: float = 0.0
  kernel_init: Callable = nn.initializers.variance_scaling(
    1.0, 'fan_in', 'normal'
  )
  float32_logits: bool = False
  rotary: str = 'nope'
  encoding: str = 'nope'
  positions: Any = None
  bidirectional: bool = False
  joined_kv: bool = True

  @nn.compact
  def __call__(
    self,
    inputs_q: Array,
    inputs_kv: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    decode: bool = False,
    deterministic: bool = False,
    prefill: bool = False,
    prefill_lengths: Array | None = None,
  ) -> jax.Array:
    """Computes attention.

    Args:
      inputs_q: `[B, Q, E]`.
      inputs_kv: `[B, K, E]`.
      mask: `[B, 1 or H, Q, K]`; pairs with mask 0 are masked.
      bias: `[1 or B, H, Q, K]`, added to the logits. During decoding, Q and K
        must both be the length of the cache.
      decode: the first call creates the cache; each later one takes one token
        per row.
      deterministic: disables dropout.
      prefill: fill the cache with the first tokens of each row.
      prefill_lengths: int32 `[B]`, the number of these tokens; None for the
        number of keys visible to the first query.

    Returns:
      `[B, Q, E]`.

    Raises:
      errors.ConfigError: shapes or options do not agree.
      errors.CombinationError: this class does not support an encoding.
    """
    self._check_mode(decode, prefill)
    query_init = _scaled(self.kernel_init, self.head_dim**-0.5)
    query_BxQxHxD = self._project('query', query_init, inputs_q)
    key_BxKxHxD = self._project('key', self.kernel_init, inputs_kv)
    value_BxKxHxD = self._project('value', self.kernel_init, inputs_kv)

    cache: Any = None
    if decode or prefill:
      cache = cache_lib.Cache(self, key_BxKxHxD)
    step = decode and not cache.is_new
    if step:
      cache.check_step(inputs_q, bias)
      q_index, k_index = cache.step_index()
    else:
      q_index, k_index = (
        jnp.arange(x.shape[1], dtype=jnp.int32)[None]
        for x in (inputs_q, inputs_kv)
      )
    rotary, encoding = self._encodings(inputs_q, inputs_kv)
    q_positions, k_positions = self._positions(
      inputs_q.shape[0], q_index, k_index, rotary, encoding, beams=step
    )
    new_positions = q_positions if step else k_positions
    query_BxQxHxD, key_BxKxHxD = rotary.rotate(
      query_BxQxHxD, key_BxKxHxD, q_positions, new_positions
    )
    if step:
      key_BxKxHxD, value_BxKxHxD = cache.append(key_BxKxHxD, value_BxKxHxD)
      mask, bias = _of_step(mask, bias, q_index, k_index)
    elif prefill and not cache.is_new:
      cache.fill(key_BxKxHxD, value_BxKxHxD, mask, prefill_lengths)
    term = encoding.bias(
      q_positions, k_positions, bidirectional=self.bidirectional
    )
    if term is not None:
      bias = term if bias is None else bias + term
    weights_BxHxQxK = self._weights(query_BxQxHxD, key_BxKxHxD, mask, bias)
    weights_BxHxQxK = nn.Dropout(self.dropout_rate, broadcast_dims=(-2,))(
      weights_BxHxQxK, deterministic=deterministic
    )
    y_BxQxHxD = jnp.einsum('bhqk,bkhd->bqhd', weights_BxHxQxK, value_BxKxHxD)
    return self._output(y_BxQxHxD, inputs_q.shape[-1])

  def _check_mode(self, decode: bool, prefill: bool) -> None:
    if prefill and decode:
      raise errors.ConfigError(
        'prefill and decode are two calls: fill the cache with prefill=True, '
        'then continue with decode=True'
      )
    if decode and self.bidirectional:
      raise errors.ConfigError(
        'decode=True is causal; leave out bidirectional=True'
      )

  def _encodings(
    self, inputs_q: Array, inputs_kv: Array
  ) -> tuple[encodings.Encoding, encodings.Encoding]:
    """Returns the rotary encoding and the additive one."""
    rotary = encodings.create(
      self.rotary,
      num_heads=self.num_heads,
      head_dim=self.head_dim,
      parent=None,
    )
    if self.rotary != 'nope' and encodings.kind(rotary) != 'rotation':
      hint = ''
      if encodings.kind(rotary) == 'bias':
        hint = f'; it adds a bias: encoding={self.rotary!r}'
      raise errors.CombinationError(
        f'rotary={self.rotary!r} does not rotate queries and keys{hint}'
      )
    encodings.check_width(rotary, "T5X's attention")
    if rotary.length_dependent:
      raise errors.CombinationError(
        f'{self.rotary} depends on the length of each sequence, which T5X does '
        'not pass to attention, and would rotate the cached keys anew at each '
        'step; use a fixed scale'
      )
    encoding = biases.additive(
      self.encoding, self.num_heads, self.head_dim, name='encoding'
    )
    queries, keys = inputs_q.shape[1], inputs_kv.shape[1]
    if self._has_positions and queries != keys:
      raise errors.CombinationError(
        f'rotary={self.rotary!r} and encoding={self.encoding!r} require '
        f'self-attention; {queries} queries and {keys} keys are two sequences'
      )
    return rotary, encoding

  @property
  def _has_positions(self) -> bool:
    return (self.rotary, self.encoding) != ('nope', 'nope')

  def _positions(
    self,
    batch: int,
    q_index: jax.Array,
    k_index: jax.Array,
    *users: encodings.Encoding,
    beams: bool,
  ) -> tuple[position_schemes.Positions, position_schemes.Positions]:
    """Returns the positions of queries and keys, given their slots."""
    positions = biases.positions_of(
      self.positions if self._has_positions else None,
      batch,
      max(q_index.shape[1], k_index.shape[1]),
      *users,
      beams=beams,
    )
    return biases.at(positions, q_index), biases.at(positions, k_index)

  def _project(self, name: str, init: Callable, x_BxLxE: Array) -> jax.Array:
    """Returns queries, keys or values, `[B, L, H, D]`."""
    kernel_ExHxD = _Kernel(
      init,
      (x_BxLxE.shape[-1], self.num_heads, self.head_dim),
      ('embed', 'heads', 'kv'),
      1,
      self.joined_kv,
      name=name,
    )()
    y_BxLxHxD = jnp.einsum(
      'ble,ehd->blhd',
      x_BxLxE.astype(self.dtype),
      kernel_ExHxD.astype(self.dtype),
    )
    return partitioning.with_sharding_constraint(
      y_BxLxHxD, ('batch', 'length', 'heads', 'kv')
    )

  def _weights(
    self,
    query_BxQxHxD: Array,
    key_BxKxHxD: Array,
    mask: Array | None,
    bias: Array | None,
  ) -> jax.Array:
    """Returns softmax(q k + bias) over the visible keys, `[B, H, Q, K]`."""
    logits_BxHxQxK = jnp.einsum(
      'bqhd,bkhd->bhqk',
      query_BxQxHxD,
      key_BxKxHxD,
      preferred_element_type=jnp.float32,
    )
    shape = logits_BxHxQxK.shape
    for name, term in (('bias', bias), ('mask', mask)):
      fits = term is None or (
        term.ndim == 4
        and all(n in (1, m) for n, m in zip(term.shape, shape, strict=True))
      )
      if not fits:
        raise errors.ConfigError(
          f'{name} has shape {term.shape}; it must broadcast to {shape}, that '
          f'is [B, num_heads={self.num_heads}, queries, keys]'
        )
    if bias is not None:
      logits_BxHxQxK += bias.astype(jnp.float32)
    if mask is not None:
      logits_BxHxQxK = jnp.where(mask > 0, logits_BxHxQxK, _MASKED)
    return jax.nn.softmax(logits_BxHxQxK).astype(self.dtype)

  def _output(self, y_BxQxHxD: jax.Array, width: int) -> jax.Array:
    """Applies the output projection; returns `[B, Q, E]`."""
    kernel_HxDxE = _Kernel(
      self.kernel_init,
      (self.num_heads, self.head_dim, width),
      ('heads', 'kv', 'embed'),
      2,
      self.joined_kv,
      name='out',
    )()
    return jnp.einsum(
      'bqhd,hde->bqe', y_BxQxHxD, kernel_HxDxE.astype(self.dtype)
    )


class _Kernel(nn.Module):
  """A kernel with H and D joined as in T5X's t5, or not as in scalable_t5.

  Attributes:
    kernel_init: `(key, [inputs, outputs], dtype)`.
    shape: shape of the returned kernel, such as (E, H, D).
    axes: logical names of its axes.
    inputs: number of leading axes that count as inputs.
    joined: store H and D as one axis.
  """

  kernel_init: Callable
  shape: tuple
  axes: tuple
  inputs: int
  joined: bool

  @nn.compact
  def __call__(self) -> jax.Array:
    size = math.prod(self.shape[: self.inputs])
    flat = (size, math.prod(self.shape) // size)
    if self.joined:
      axes = tuple(
        'joined_kv' if axis == 'heads' else axis
        for axis in self.axes
        if axis != 'kv'
      )
      kernel = params.param(self, 'kernel', self.kernel_init, flat, axes)
      return kernel.reshape(self.shape)

    def init(key: Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
      return self.kernel_init(key, flat, dtype).reshape(shape)

    return params.param(self, 'kernel', init, self.shape, self.axes)


def _scaled(init: Callable, factor: float) -> Callable:
  return lambda *args: init(*args) * factor


def _of_step(
  mask: Array | None, bias: Array | None, q_index: Array, k_index: Array
) -> tuple[Array, Array | None]:
  """Returns the mask and the row of the bias for a step of decoding."""
  filled_Bx1x1xL = (k_index <= q_index)[:, None, None]
  mask = filled_Bx1x1xL if mask is None else (mask > 0) & filled_Bx1x1xL
  if bias is not None:
    bias = jnp.take_along_axis(bias, q_index[:, None, :, None], axis=2)
  return mask, bias
