"""T5X's attention, with any additive or rotary encoding.

Shape suffixes: B batch, Q queries, K keys, H heads, D head_dim, E width, L
slots of a cache.
"""

from collections.abc import Callable
import math
from typing import Any

from flax import linen as nn
from flax.linen import partitioning
import jax
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax.hints import Array
from lengen_jax.interop.t5x import cache as cache_lib
from lengen_jax.interop.t5x import given
from lengen_jax.interop.t5x import params

_MASKED = -1e10


class MultiHeadDotProductAttention(nn.Module):
  """T5X's attention with a pluggable encoding, which may also turn.

  Fields, parameters, cache and call are those of T5X's class of this name, and
  without `rotary` and `encoding` so are its numbers, in float32 or with T5X's
  `float32_logits`. As there, logits are not divided by sqrt(D); queries start
  smaller by as much. Logits and softmax are float32.

  While decoding, one row of the bias is computed for each new token, where the
  bias handed in from outside is one of all pairs: at 32,768 slots and 16 heads
  that is 64 GiB in float32.

  Attributes:
    num_heads: H.
    head_dim: D.
    dtype: of the computation.
    dropout_rate: of attention weights, the same for all queries.
    kernel_init: `(key, shape, dtype)`; the shape is [inputs, outputs].
    float32_logits: taken for T5X's sake; logits are float32 in any case.
    rotary: spec of an encoding that turns queries and keys, for self-attention.
      Keys are kept turned in the cache.
    encoding: spec of an additive encoding, for self-attention; its parameters
      are this module's `encoding/...`. It adds to the bias handed in.
    positions: as of RelativePositionBiases. While decoding of all slots, `[1 or
      B, L]`, the same at each step; the beams of a row take its positions.
    bidirectional: whether `encoding` is to tell keys after the query.
    joined_kv: kernels are [E, H D], as in T5X's t5 and decoder_only; False for
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
    """Attends.

    Args:
      inputs_q: `[B, Q, E]`.
      inputs_kv: `[B, K, E]`.
      mask: `[B, 1 or H, Q, K]`; pairs where it is 0 are masked.
      bias: `[1 or B, H, Q, K]`, added to the logits; of all pairs of slots
        while decoding.
      decode: the first call makes the cache, the next ones take one token each.
      deterministic: no dropout.
      prefill: fill the cache with the first tokens of each row.
      prefill_lengths: int32 `[B]`, how many; None to count the keys that the
        mask shows to the first query.

    Returns:
      `[B, Q, E]`.

    Raises:
      errors.ConfigError: shapes that do not go together.
      errors.CombinationError: an encoding that cannot be had here.
    """
    if prefill and decode:
      raise errors.ConfigError(
        'prefill and decode are two calls: fill the cache with prefill=True, '
        'then go on with decode=True'
      )
    if decode and self.bidirectional:
      raise errors.ConfigError(
        'decode=True goes from left to right; leave out bidirectional=True'
      )
    query_init = _scaled(self.kernel_init, self.head_dim**-0.5)
    query_BxQxHxD = _project(self, 'query', query_init, inputs_q)
    key_BxKxHxD = _project(self, 'key', self.kernel_init, inputs_kv)
    value_BxKxHxD = _project(self, 'value', self.kernel_init, inputs_kv)

    cache = cache_lib.Cache(self, key_BxKxHxD) if decode or prefill else None
    filling = prefill and not cache.is_new
    step = decode and not cache.is_new
    # The slots in which queries and keys stand.
    q_index = jnp.arange(inputs_q.shape[1], dtype=jnp.int32)[None]
    k_index = jnp.arange(inputs_kv.shape[1], dtype=jnp.int32)[None]
    if step:
      cache.check_step(inputs_q, bias)
      # Rows that have filled their cache go on while others have not.
      q_index = jnp.reshape(cache.index.value, (-1, 1))
      q_index = jnp.minimum(q_index, cache.length - 1)
      k_index = jnp.arange(cache.length, dtype=jnp.int32)[None]
    rotary, encoding = self._encodings()
    placed = (self.rotary, self.encoding) != ('nope', 'nope')
    if placed and inputs_q.shape[1] != inputs_kv.shape[1]:
      raise errors.CombinationError(
        f'rotary={self.rotary!r} and encoding={self.encoding!r} are of '
        f'self-attention; {inputs_q.shape[1]} queries and {inputs_kv.shape[1]} '
        'keys are two sequences, whose attention takes neither'
      )
    positions = given.positions_of(
      self.positions if placed else None,
      inputs_q.shape[0],
      max(q_index.shape[1], k_index.shape[1]),
      rotary,
      encoding,
      beams=step,
    )
    q_positions = position_schemes.take(positions, q_index)
    k_positions = position_schemes.take(positions, k_index)
    query_BxQxHxD, key_BxKxHxD = rotary.rotate(
      query_BxQxHxD,
      key_BxKxHxD,
      q_positions,
      q_positions if step else k_positions,
    )
    if step:
      key_BxKxHxD, value_BxKxHxD = cache.append(key_BxKxHxD, value_BxKxHxD)
      seen_Bx1x1xL = (k_index <= q_index)[:, None, None]
      mask = seen_Bx1x1xL if mask is None else (mask > 0) & seen_Bx1x1xL
      if bias is not None:
        bias = jnp.take_along_axis(bias, q_index[:, None, :, None], axis=2)
    elif filling:
      cache.fill(key_BxKxHxD, value_BxKxHxD, mask, prefill_lengths)

    term = encoding.bias(
      q_positions, k_positions, bidirectional=self.bidirectional
    )
    if term is not None:
      bias = term if bias is None else bias + term
    y_BxQxHxD = _attend(
      self, query_BxQxHxD, key_BxKxHxD, value_BxKxHxD, mask, bias, deterministic
    )
    return _output(self, y_BxQxHxD, inputs_q.shape[-1])

  def _encodings(self):
    """What turns, and what adds."""
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
        f'rotary={self.rotary!r} does not turn queries and keys{hint}'
      )
    if rotary.length_dependent:
      raise errors.CombinationError(
        f'{self.rotary} goes by the length of each sequence, which T5X does '
        'not tell its attention, and would turn the cached keys anew at each '
        'step; use a fixed scale'
      )
    encoding = given.additive(
      self.encoding, self.num_heads, self.head_dim, name='encoding'
    )
    return rotary, encoding


class _Kernel(nn.Module):
  """A matrix, kept flat as T5X's t5 has it or by heads as its scalable_t5.

  Attributes:
    kernel_init: `(key, [inputs, outputs], dtype)`.
    shape: of the kernel, such as (E, H, D).
    axes: a name for each.
    inputs: leading axes of the shape that count as inputs.
    joined: keep H and D as one axis.
  """

  kernel_init: Callable
  shape: tuple
  axes: tuple
  inputs: int
  joined: bool

  @nn.compact
  def __call__(self):
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

    def init(key, shape, dtype):
      return self.kernel_init(key, flat, dtype).reshape(shape)

    return params.param(self, 'kernel', init, self.shape, self.axes)


def _project(module, name, init, x_BxLxE):
  """Queries, keys or values, `[B, L, H, D]`."""
  kernel_ExHxD = _Kernel(
    init,
    (x_BxLxE.shape[-1], module.num_heads, module.head_dim),
    ('embed', 'heads', 'kv'),
    1,
    module.joined_kv,
    name=name,
  )()
  y_BxLxHxD = jnp.einsum(
    'ble,ehd->blhd',
    x_BxLxE.astype(module.dtype),
    kernel_ExHxD.astype(module.dtype),
  )
  return partitioning.with_sharding_constraint(
    y_BxLxHxD, ('batch', 'length', 'heads', 'kv')
  )


def _output(module, y_BxQxHxD, width):
  """Output projection, `[B, Q, E]`."""
  kernel_HxDxE = _Kernel(
    module.kernel_init,
    (module.num_heads, module.head_dim, width),
    ('heads', 'kv', 'embed'),
    2,
    module.joined_kv,
    name='out',
  )()
  return jnp.einsum(
    'bqhd,hde->bqe', y_BxQxHxD, kernel_HxDxE.astype(module.dtype)
  )


def _scaled(init, factor):
  return lambda *args: init(*args) * factor


def _attend(module, query, key, value, mask, bias, deterministic):
  """softmax(q k + bias) v over the pairs the mask shows, `[B, Q, H, D]`."""
  logits_BxHxQxK = jnp.einsum(
    'bqhd,bkhd->bhqk', query, key, preferred_element_type=jnp.float32
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
        f'is [B, num_heads={module.num_heads}, queries, keys]'
      )
  if bias is not None:
    logits_BxHxQxK += bias.astype(jnp.float32)
  if mask is not None:
    logits_BxHxQxK = jnp.where(mask > 0, logits_BxHxQxK, _MASKED)
  weights_BxHxQxK = jax.nn.softmax(logits_BxHxQxK).astype(module.dtype)
  weights_BxHxQxK = nn.Dropout(module.dropout_rate, broadcast_dims=(-2,))(
    weights_BxHxQxK, deterministic=deterministic
  )
  return jnp.einsum('bhqk,bkhd->bqhd', weights_BxHxQxK, value)
