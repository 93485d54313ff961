"""Layers of a Transformer. Attention accepts any position encoding.

Shape suffixes: B batch, L length, Q new tokens, P slots of a cache, S length of
the encoder's rows, H heads, G key heads, D head_dim, E width.
"""

from collections.abc import Callable
import numbers
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import attention, encodings, errors, partitioning, specs
from lengen_jax.attention import scaling
from lengen_jax.models import config as config_lib
from lengen_jax.models import linear, norms
from lengen_jax.models.mlp import MLP
from lengen_jax.positions import contextual, PerHead, Positions
from lengen_jax.positions import tokens as tokens_lib
from lengen_jax.positions.tokens import Tokens
from lengen_jax.types import Array, Params

__all__ = ['MLP', 'Attention', 'CrossAttention', 'LayerCache', 'check_vectors']

# Keys, values and contextual positions of a layer; see `Attention.__call__`.
LayerCache = tuple[jax.Array, jax.Array, PerHead | None]


def check_vectors(name: str, x: Any) -> None:
  """Raises errors.ConfigError unless a layer's input is `[B, L, E]`."""
  if getattr(x, 'ndim', None) != 3:
    got = getattr(x, 'shape', type(x).__name__)
    raise errors.ConfigError(f'{name} must be an array [B, L, E]; got {got}')
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise errors.ConfigError(
      f'{name} is {x.dtype}; it must be floating-point, such as float32'
    )


class Attention(nn.Module):
  """Multi-head self-attention with a pluggable position encoding.

  Attributes:
    num_heads, head_dim: H and D.
    encoding: a spec, an Encoding, or a bare function of positions
      `(q_positions, k_positions) -> bias [H, Q, K] or [B, H, Q, K]`.
    attention_scale: a logit scale spec, or a LogitScale.
    contextual_positions: spec of a contextual position scheme, which computes
      positions from x.
    causal: whether keys after the query are masked.
    dtype: dtype of the computation. Parameters, logits and softmax are float32.
    implementation, bias_form, window, sinks, logit_cap: see
      `dot_product_attention`.
    sink_logits: learn a sink logit per head, initially 0.
    attention_chunk: tokens attend within consecutive chunks of this many tokens
      of their segment; None for no chunks.
    attention_bias: add biases to the projections, 'qkv' to those of queries,
      keys and values, 'all' to all, or None.
    query_key_norm: RMS norm of queries and keys before the rotation; see
      `norms.of_heads`. None for no norm.
    norm_epsilon: added to the mean square in these norms.
    zero_centered_norms: whether the scales of these norms are 1 plus their
      parameters.
    output_gate: multiply the output of each head ('head') or each of its
      dimensions ('element') by sigmoid of a linear map of x; None for no gate.
    out_init_scale: scales the initial output projection.
    scaled_logits: divide logits by sqrt(D). If False, as in T5, the initial
      query projection is divided by sqrt(D).
    key_heads: number of key and value heads, G; None for H.
    lora_rank, lora_alpha: those of the projections; see `linear.Linear`.
  """

  num_heads: int
  head_dim: int
  encoding: str | encodings.Encoding | Callable = 'nope'
  attention_scale: str | scaling.LogitScale = 'none'
  contextual_positions: str = 'none'
  causal: bool = True
  dtype: Any = jnp.float32
  implementation: str = 'auto'
  bias_form: str = 'exact'
  out_init_scale: float = 1.0
  scaled_logits: bool = True
  key_heads: int | None = None
  window: int | None = None
  sinks: int = 0
  sink_logits: bool = False
  logit_cap: float | None = None
  attention_chunk: int | None = None
  attention_bias: str | None = None
  query_key_norm: str | None = None
  norm_epsilon: float = 1e-6
  zero_centered_norms: bool = False
  output_gate: str | None = None
  lora_rank: int | None = None
  lora_alpha: float | None = None

  def __post_init__(self) -> None:
    for field in ('encoding', 'attention_scale', 'contextual_positions'):
      spec = getattr(self, field)
      if isinstance(spec, str) and len(specs.cycle(spec)) > 1:
        raise errors.SpecError(
          f'{field}={spec!r} has several specs; a layer takes one'
        )
    if isinstance(self.encoding, str):
      self.encoding = encodings.create(
        self.encoding,
        num_heads=self.num_heads,
        head_dim=self.head_dim,
        parent=None,
      )
    elif not isinstance(self.encoding, encodings.Encoding):
      if isinstance(self.encoding, type) or not callable(self.encoding):
        raise errors.SpecError(
          'encoding must be a spec, an Encoding or a function of positions, '
          f'got {self.encoding!r}'
        )
      self.encoding = encodings.FromFunction(
        self.num_heads, self.head_dim, function=self.encoding, parent=None
      )
    if self.encoding.embeds:
      raise errors.CombinationError(
        f'{specs.name(self.encoding)} acts at the input of a model, not in '
        'attention; call its embed(x, positions) on the input'
      )
    sizes = self.encoding.num_heads, self.encoding.head_dim
    if sizes != (self.num_heads, self.head_dim):
      raise errors.ConfigError(
        f'{specs.name(self.encoding)} was created with num_heads={sizes[0]} '
        f'and head_dim={sizes[1]}; the layer has {self.num_heads} and '
        f'{self.head_dim}; make them equal'
      )
    choices = config_lib.CHOICES | config_lib.LAYER_CHOICES
    for name in ('attention_bias', 'query_key_norm', 'output_gate'):
      if getattr(self, name) not in choices[name]:
        raise errors.ConfigError(
          errors.one_of(name, getattr(self, name), choices[name])
        )
    for name in ('attention_chunk', 'key_heads', 'lora_rank'):
      value = getattr(self, name)
      if value is not None and not (
        isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        and int(value) >= 1
      ):
        raise errors.ConfigError(
          f'{name} must be an integer, at least 1, or None; got {value!r}'
        )
    positive = isinstance(self.norm_epsilon, numbers.Real)
    if not (positive and self.norm_epsilon > 0):
      raise errors.ConfigError(
        f'norm_epsilon must be positive, got {self.norm_epsilon}'
      )
    if not isinstance(self.attention_scale, str | scaling.LogitScale):
      raise errors.SpecError(
        "attention_scale must be a spec, such as 'none' or 'ssmax', or a "
        f'LogitScale, got {self.attention_scale!r}'
      )
    if isinstance(self.attention_scale, str):
      self.attention_scale = scaling.create(
        self.attention_scale, num_heads=self.num_heads, parent=None
      )
    super().__post_init__()

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    positions: Positions | Tokens | None = None,
    *,
    segment_ids: Array | None = None,
    lengths: Array | None = None,
    shared: Params | None = None,
    cache: LayerCache | None = None,
  ) -> Any:
    """Attends from each token to the tokens of x and of the cache.

    Args:
      x: `[B, L, E]`.
      positions: int32 or float32, `[L]`, `[1, L]` or `[B, L]`; Distances; or
        per head, float32 `[B, L, H]` or PerHead. None for the standard
        positions. A `Tokens` struct contains positions, segment_ids and
        lengths.
      segment_ids: int32 `[B, L]` of packed rows.
      lengths: int32, `[B, 1]` or `[B, L]`, the length of each token's segment.
      shared: parameters of the encoding, if they belong to the model and not
        to this layer.
      cache: keys `[B, G, D, P]`, values `[B, G, P, D]` and contextual positions
        `[B, P, H]` or None, with P slots. Requires `Cache.new_tokens` as
        positions. Tokens beyond slot P are dropped.

    Returns:
      `[B, L, E]`; given a cache, also the new cache.

    Raises:
      errors.ConfigError: shapes do not agree.
      errors.LengthError: a position is beyond the encoding's table.
      errors.CombinationError: the encoding does not support the positions.
    """
    check_vectors('x', x)
    scheme = contextual.create(
      self.contextual_positions,
      num_heads=self.num_heads,
      width=x.shape[-1],
      name='positions',
    )
    if not scheme.is_none and not isinstance(positions, Tokens | None):
      raise errors.CombinationError(
        f'{self.contextual_positions} computes positions from contents; leave '
        'out positions'
      )
    given: Any = positions
    if isinstance(given, jax.Array | np.ndarray) and (
      given.shape == (*x.shape[:2], self.num_heads)
      and jnp.issubdtype(given.dtype, jnp.floating)
    ):
      # One layer does not take positions of several layers.
      given = PerHead(tokens_lib.position_array(given))
    tokens = Tokens.create(
      x.shape[:2], given, segment_ids=segment_ids, lengths=lengths
    )
    encoding: Any = self.encoding  # Always an Encoding after __post_init__.
    logit_scale: Any = self.attention_scale
    if cache is None:
      _check_tokens(encoding, tokens)
    encodings.check_contextual(encoding, scheme)
    tokens = tokens.with_positions()
    ids, q_offset = tokens.segment_ids, 0
    q_positions = k_positions = tokens.positions
    bias_form, implementation = self.bias_form, self.implementation
    if shared is not None:
      # Else the module would create parameters in this layer.
      encoding = encoding.unbound().bind({'params': shared})
    q_BxLxHxD, k_BxLxGxD, v_BxLxGxD = _queries_keys_values(self, x, x)
    if self.query_key_norm is not None:
      q_BxLxHxD = self._norm('query_norm')(q_BxLxHxD)
      k_BxLxGxD = self._norm('key_norm')(k_BxLxGxD)
    rotate = True
    if cache is not None:
      q_positions, ids, q_offset = tokens.selected(), None, tokens.index[:, 0]
      # Kernels are not faster for a few queries.
      implementation = 'auto' if implementation == 'pallas' else implementation
      bias_form = 'exact'
      rotate = encoding.caches_unrotated_keys or not scheme.is_none
    if not scheme.is_none:
      before = None
      if cache is not None and cache[2] is not None:
        before = _position_before(cache[2], tokens.index[:, 0])
      q_positions = k_positions = scheme.positions(x, ids, before)
    if cache is not None:
      if not rotate:
        # The cache holds rotated keys: their angles do not change later.
        q_BxLxHxD, k_BxLxGxD = attention.rotated(
          encoding,
          q_BxLxHxD,
          k_BxLxGxD,
          q_positions,
          q_positions,
          tokens.lengths,
        )
      cache = _appended(cache, tokens.index, k_BxLxGxD, v_BxLxGxD, q_positions)
      k_BxLxGxD = jnp.transpose(cache[0], (0, 3, 1, 2))
      v_BxLxGxD = jnp.swapaxes(cache[1], 1, 2)
      if cache[2] is not None:
        k_positions = cache[2]
    q_ids = k_ids = ids
    if self.attention_chunk is not None:
      q_ids, k_ids = _chunks(self.attention_chunk, len(x), tokens, ids, cache)
    y_BxLxHxD = self.attend(
      encoding,
      q_BxLxHxD,
      k_BxLxGxD,
      v_BxLxGxD,
      q_positions=q_positions,
      k_positions=k_positions,
      lengths=tokens.lengths,
      rotate=rotate,
      q_segment_ids=q_ids,
      k_segment_ids=k_ids,
      q_offset=q_offset,
      causal=self.causal,
      window=self.window,
      sinks=self.sinks,
      scale=self.head_dim**-0.5 if self.scaled_logits else 1.0,
      logit_scale=logit_scale(
        self._last_visible(tokens, logit_scale.counts_keys),
        lengths=tokens.lengths,
      ),
      sink_logits=self._sink_logits(),
      logit_cap=self.logit_cap,
      contiguous=tokens.contiguous and not encodings.is_per_head(q_positions),
      bias_form=bias_form,
      implementation=implementation,
    )
    if self.output_gate is not None:
      y_BxLxHxD *= self._gate(x)
    y_BxLxE = _output(self, y_BxLxHxD, x.shape[-1])
    return y_BxLxE if cache is None else (y_BxLxE, cache)

  def attend(self, *args: Any, **options: Any) -> jax.Array:
    """Calls `attention.with_encoding`, for interceptors of its arguments."""
    return attention.with_encoding(*args, **options)

  def _last_visible(self, tokens: Tokens, counts_keys: bool) -> jax.Array:
    """Returns the `index_in_segment` of `scaling.LogitScale`, `[1 or B, L]`."""
    index: Any = tokens.index
    last = index if self.causal else tokens.segment_ends()
    if not counts_keys:
      return last
    before, after, sinks = index, last - index, 0
    chunk = attention.MAX_REACH
    if self.attention_chunk is not None:
      chunk = min(self.attention_chunk, chunk)
      before = before % chunk
      after = jnp.minimum(after, chunk - 1 - before)
    if self.window is not None:
      reach = min(self.window, attention.MAX_REACH) - 1
      most = min(self.sinks, attention.MAX_REACH)
      sinks = jnp.clip(before - reach, 0, most)
      ahead = jnp.minimum(most - 1 - before, after)
      sinks += jnp.maximum(ahead - reach, 0)
      before, after = (jnp.minimum(one, reach) for one in (before, after))
    encoding: Any = self.encoding  # Always an Encoding after __post_init__.
    if encoding.masks:
      # At the standard positions, and without a second window.
      reach = min(encoding.window, attention.MAX_REACH) - 1
      # These sinks are the first positions, which a later chunk does not see.
      most = jnp.clip(encoding.sinks - (index - before), 0, chunk)
      sinks += jnp.clip(before - reach, 0, most)
      before = jnp.minimum(before, reach)
    return before + after + sinks

  def _norm(self, name: str) -> nn.Module:
    """Creates a norm of queries or keys."""
    return norms.of_heads(
      self.query_key_norm,
      self.zero_centered_norms,
      self.norm_epsilon,
      self.dtype,
      name,
    )

  def _sink_logits(self) -> Any:
    if not self.sink_logits:
      return None
    zeros = partitioning.named(nn.initializers.zeros, ('heads',))
    return self.param('sink_logits', zeros, (self.num_heads,), jnp.float32)

  def _gate(self, x: jax.Array) -> jax.Array:
    """Returns factors of the output, `[B, L, H, 1]` or `[B, L, H, D]`."""
    head_dim = 1 if self.output_gate == 'head' else self.head_dim
    gate = linear.Linear(
      (x.shape[-1], self.num_heads, head_dim),
      ('embed', 'heads', 'kv'),
      self.dtype,
      name='gate',
    )(x)
    return nn.sigmoid(gate)


def _chunks(
  size: int,
  batch: int,
  tokens: Tokens,
  ids: Array | None,
  cache: LayerCache | None,
) -> tuple[jax.Array, jax.Array]:
  """Returns ids of the chunks of queries and keys, int32 `[B, length]`.

  A chunk is `size` consecutive tokens of a segment.
  """
  size = min(size, attention.MAX_REACH)
  chunk = jnp.asarray(tokens.index // size)
  if ids is not None:
    # Chunks are numbered over the row. One begins where the index in the
    # segment is a multiple of the size.
    chunk = jnp.cumsum(tokens.index % size == 0, axis=1)
  chunk_BxQ = jnp.broadcast_to(chunk, (batch, chunk.shape[1]))
  if cache is None:
    return chunk_BxQ, chunk_BxQ
  slots = jnp.arange(cache[0].shape[-1]) // size
  return chunk_BxQ, jnp.broadcast_to(slots, (batch, len(slots)))


def _position_before(slots: PerHead, index_B: Array) -> PerHead:
  """Returns positions of the token before each row's first new one, or 0."""

  def before(x_BxPxH: jax.Array) -> jax.Array:
    at = jnp.maximum(index_B - 1, 0)[:, None, None]
    found = jnp.take_along_axis(x_BxPxH, at, axis=1)
    return jnp.where(index_B[:, None, None] > 0, found, 0.0)

  return jax.tree.map(before, slots)


def _appended(
  cache: LayerCache,
  index_BxQ: Array,
  k_BxQxGxD: Array,
  v_BxQxGxD: jax.Array,
  positions: Any,
) -> LayerCache:
  """Returns a cache with new tokens; `positions` are used if it has them."""
  keys, values, slots = cache
  if slots is not None:
    slots = jax.tree.map(
      lambda x, new: _put(x, index_BxQ, new), slots, positions
    )
  return (
    _write(keys, index_BxQ, jnp.asarray(k_BxQxGxD), axis=-1),
    _write(values, index_BxQ, v_BxQxGxD, axis=-2),
    slots,
  )


def _put(slots: jax.Array, index_BxQ: Any, new: jax.Array) -> jax.Array:
  """Writes `[B, Q, ...]` to slots `[B, P, ...]`; drops indices >= P."""
  rows = jnp.arange(len(slots))[:, None]
  return slots.at[rows, index_BxQ].set(new, mode='drop')


def _check_tokens(encoding: encodings.Encoding, tokens: Tokens) -> None:
  """Checks that an encoding supports the positions of a layer."""
  tokens_lib.check_one_layer(tokens.positions)
  encodings.check_positions(encoding, tokens.positions, tokens.index.shape[1])


def _write(slots: jax.Array, index_BxQ: Any, new: jax.Array, axis: int) -> Any:
  """Writes new keys or values `[B, Q, G, D]` to a cache; drops indices >= P.

  `axis`, -1 or -2, is the axis of the P slots.
  """
  new = new.astype(slots.dtype)
  if new.shape[1] > 1:
    by_slot = _put(jnp.moveaxis(slots, axis, 1), index_BxQ, new)
    return jnp.moveaxis(by_slot, 1, axis)

  def write(slots: jax.Array, slot: jax.Array, new: jax.Array) -> jax.Array:
    old = jax.lax.dynamic_slice_in_dim(slots, slot, 1, axis)
    new = jnp.where(slot < slots.shape[axis], jnp.expand_dims(new, axis), old)
    return jax.lax.dynamic_update_slice_in_dim(slots, new, slot, axis)

  # XLA updates several slices in place, but copies the cache for a single one.
  if len(slots) > 1:
    return jax.vmap(write)(slots, index_BxQ[:, 0], new[:, 0])
  slot_G = jnp.broadcast_to(index_BxQ[0], slots.shape[1])
  return jax.vmap(write)(slots[0], slot_G, new[0, 0])[None]


class CrossAttention(nn.Module):
  """Attention of a decoder to the output of an encoder.

  It has neither positions nor the other options of Attention, such as windows,
  caps, norms of queries and keys, and gates.

  Attributes:
    All are those of Attention.
  """

  num_heads: int
  head_dim: int
  dtype: Any = jnp.float32
  implementation: str = 'auto'
  out_init_scale: float = 1.0
  scaled_logits: bool = True
  key_heads: int | None = None
  attention_bias: str | None = None
  lora_rank: int | None = None
  lora_alpha: float | None = None

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    encoded: jax.Array,
    *,
    segment_ids: Array | None = None,
    encoded_segment_ids: Array | None = None,
  ) -> jax.Array:
    """Attends from x to `encoded`.

    Args:
      x: `[B, L, E]`.
      encoded: `[B, S, E]`.
      segment_ids: int32 `[B, L]` of packed or padded rows.
      encoded_segment_ids: int32 `[B, S]` of the encoder's rows.

    Returns:
      `[B, L, E]`.

    Raises:
      errors.ConfigError: shapes do not agree.
    """
    check_vectors('x', x)
    check_vectors('encoded', encoded)
    y_BxLxHxD = attention.dot_product_attention(
      *_queries_keys_values(self, x, encoded),
      q_segment_ids=segment_ids,
      k_segment_ids=encoded_segment_ids,
      causal=False,
      scale=None if self.scaled_logits else 1.0,
      implementation=self.implementation,
    )
    return _output(self, y_BxLxHxD, x.shape[-1])


def _queries_keys_values(
  module: Any, x: jax.Array, encoded: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the projections of an attention module, `[B, length, H, D]`."""

  def project(
    name: str, x: jax.Array, heads: int, init_scale: float = 1.0
  ) -> jax.Array:
    return linear.Linear(
      (x.shape[-1], heads, module.head_dim),
      ('embed', 'heads', 'kv'),
      module.dtype,
      init_scale,
      use_bias=module.attention_bias is not None,
      lora_rank=module.lora_rank,
      lora_alpha=module.lora_alpha,
      name=name,
    )(x)

  q_init_scale = 1.0 if module.scaled_logits else module.head_dim**-0.5
  key_heads = module.key_heads or module.num_heads
  return (
    project('query', x, module.num_heads, q_init_scale),
    project('key', encoded, key_heads),
    project('value', encoded, key_heads),
  )


def _output(module: Any, y: jax.Array, width: int) -> jax.Array:
  """Applies the output projection of an attention module, `[B, L, E]`."""
  return linear.Linear(
    (module.num_heads, module.head_dim, width),
    ('heads', 'kv', 'embed'),
    module.dtype,
    module.out_init_scale,
    use_bias=module.attention_bias == 'all',
    inputs=2,
    lora_rank=module.lora_rank,
    lora_alpha=module.lora_alpha,
    name='out',
  )(y)
