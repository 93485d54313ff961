"""Layers of a Transformer. Attention takes any encoding and knows none.

Shape suffixes: B batch, L length, H heads, D head_dim, E width, F mlp_width,
V vocab_size.
"""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import attention
from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax import partitioning
from lengen_jax import positions as position_schemes
from lengen_jax import specs
from lengen_jax.attention import scaling
from lengen_jax.hints import Array
from lengen_jax.models import linear
from lengen_jax.models import tokens
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import Positions


class Attention(nn.Module):
  """Multi-head self-attention with a pluggable position encoding.

  Attributes:
    num_heads: H.
    head_dim: D.
    encoding: a spec, an Encoding, or a bare function of positions
      `(q_positions, k_positions) -> bias [H, Q, K] or [B, H, Q, K]`.
    attention_scale: a logit scale spec, or a LogitScale.
    causal: whether keys after the query are masked.
    dtype: of the computation; parameters, logits and softmax are float32.
    implementation: see `dot_product_attention`.
    bias_form: see `dot_product_attention`.
    out_init_scale: scales the initial output projection.
    scaled_logits: divide logits by sqrt(D). T5 does not, and starts with
      queries smaller by as much.
    key_heads: heads of keys and values, G; None for H.
    window: see `dot_product_attention`.
    sinks: likewise.
  """

  num_heads: int
  head_dim: int
  encoding: str | encodings.Encoding | Callable = 'nope'
  attention_scale: str | scaling.LogitScale = 'none'
  causal: bool = True
  dtype: Any = jnp.float32
  implementation: str = 'auto'
  bias_form: str = 'exact'
  out_init_scale: float = 1.0
  scaled_logits: bool = True
  key_heads: int | None = None
  window: int | None = None
  sinks: int = 0

  def __post_init__(self):
    if isinstance(self.encoding, str):
      if len(specs.split(self.encoding)) > 1:
        raise errors.SpecError(
          f'{self.encoding!r} is several specs; a layer has one encoding'
        )
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
        f'{specs.name(self.encoding)} acts at the input of a model '
        'and not in attention; call its embed(x, positions) there'
      )
    sizes = self.encoding.num_heads, self.encoding.head_dim
    if sizes != (self.num_heads, self.head_dim):
      raise errors.ConfigError(
        f'{specs.name(self.encoding)} was created with num_heads={sizes[0]} '
        f'and head_dim={sizes[1]}, and the layer has '
        f'{self.num_heads} and {self.head_dim}; make them the same'
      )
    if isinstance(self.attention_scale, str):
      self.attention_scale = scaling.create(
        self.attention_scale, num_heads=self.num_heads, parent=None
      )
    super().__post_init__()

  def __call__(
    self,
    x: jax.Array,
    positions: Positions | None = None,
    *,
    segment_ids: Array | None = None,
    lengths: Array | None = None,
    shared: tuple[encodings.BiasFn | None, encodings.ContentFn | None]
    | None = None,
    contiguous: bool | None = None,
  ) -> jax.Array:
    """Attends within x.

    Args:
      x: `[B, L, E]`.
      positions: int32 or float32, `[L]`, `[1, L]` or `[B, L]`, or Distances;
        None for the standard ones.
      segment_ids: int32 `[B, L]` where rows are packed.
      lengths: int32, `[B, 1]` or `[B, L]`: the length of each token's
        segment, for methods that depend on it.
      shared: (BiasFn or None, ContentFn or None) of an encoding shared by
        all layers, whose parameters then live with its owner.
      contiguous: see `dot_product_attention`; None is True where positions
        are None.

    Returns:
      `[B, L, E]`.

    Raises:
      errors.ConfigError: shapes that do not go together.
      errors.LengthError: a position beyond the encoding's table.
      errors.CombinationError: positions that the encoding cannot take.
    """
    tokens.check_vectors('x', x)
    if positions is not None:
      positions = tokens.position_array(positions)
    tokens.check_tokens(x.shape[:2], positions, segment_ids, lengths)
    index = tokens.position_index(x.shape[1], segment_ids)
    if contiguous is None:
      contiguous = positions is None
    encoding: Any = self.encoding  # A spec no more.
    if positions is None:
      encodings.check_positions(
        encoding, None if segment_ids is None else index, x.shape[1]
      )
      positions = index
    else:
      tokens.check_one_layer(positions)
      encodings.check_positions(encoding, positions)
    y, _ = self._attend(
      x, positions, index, segment_ids, lengths, shared, contiguous=contiguous
    )
    return y

  def extend(
    self,
    x: jax.Array,
    cache: tuple[jax.Array, jax.Array],
    index: jax.Array,
    positions: Positions,
    *,
    lengths: Array | None = None,
    shared: tuple[encodings.BiasFn | None, encodings.ContentFn | None]
    | None = None,
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Attends from new tokens to themselves and to the cached ones.

    Args:
      x: `[B, Q, E]`, the new tokens.
      cache: (keys, values), `[B, P, G, D]` each, P the slots.
      index: int32 `[B, Q]`, the slots of the new tokens: consecutive, and
        those before them filled. Slots from P on are not written.
      positions: of all slots, `[1 or B, P]`, or Distances.
      lengths: int32 `[B, 1]`, the planned length of each row.
      shared: see `__call__`.

    Returns:
      `[B, Q, E]` and the new cache.
    """
    return self._attend(x, positions, index, None, lengths, shared, cache=cache)

  @nn.compact
  def _attend(
    self,
    x,
    positions,
    index,
    segment_ids,
    lengths,
    shared,
    *,
    contiguous=False,
    cache=None,
  ):
    q_BxQxHxD, k_BxKxHxD, v_BxKxHxD = _queries_keys_values(self, x, x)
    encoding = self.encoding
    if segment_ids is not None and not encoding.tileable:
      raise errors.CombinationError(
        f'{specs.describe(encoding)} goes by the number of all keys, so that '
        'rows cannot be packed or padded; leave out segment_ids'
      )
    if shared is None:
      bias_fn = encoding.bias_fn(bidirectional=not self.causal)
      content_fn = encoding.content_fn()
    else:
      bias_fn, content_fn = shared
      # The parameters live elsewhere; touching the bound module makes more.
      encoding = encoding.unbound()

    q_positions = k_positions = positions
    if cache is not None:
      q_positions = position_schemes.take(positions, index)
      if isinstance(positions, position_schemes.Distances):
        slots = tokens.position_index(cache[0].shape[1], None)
        k_positions = positions.at(slots)
    if cache is None or not encoding.length_dependent:
      # Turned once and for all: angles do not depend on the length.
      q_BxQxHxD, k_BxKxHxD = encoding.rotate(
        q_BxQxHxD, k_BxKxHxD, q_positions, q_positions, lengths
      )
    if cache is not None:
      rows = jnp.arange(x.shape[0])[:, None]
      cache = tuple(
        slots.at[rows, index].set(new.astype(slots.dtype), mode='drop')
        for slots, new in zip(cache, (k_BxKxHxD, v_BxKxHxD), strict=True)
      )
      k_BxKxHxD, v_BxKxHxD = cache
      if encoding.length_dependent:
        q_BxQxHxD, k_BxKxHxD = encoding.rotate(
          q_BxQxHxD, k_BxKxHxD, q_positions, k_positions, lengths
        )

    last_visible = index
    if not self.causal:
      ends = lengths
      if lengths is None and segment_ids is None:
        ends = jnp.full((1, 1), x.shape[1])
      elif lengths is None:
        ends = position_schemes.segment_lengths(segment_ids)
      shape = jnp.broadcast_shapes(ends.shape, index.shape)
      last_visible = jnp.broadcast_to(ends - 1, shape)
    bias_form, implementation = self.bias_form, self.implementation
    if cache is not None:
      # A few new rows are soon computed, and kernels are for many.
      bias_form = 'exact'
      implementation = 'auto' if implementation == 'pallas' else implementation
    y_BxQxHxD = attention.dot_product_attention(
      q_BxQxHxD,
      k_BxKxHxD,
      v_BxKxHxD,
      bias=bias_fn,
      content=content_fn,
      q_positions=q_positions,
      k_positions=k_positions,
      q_segment_ids=segment_ids,
      k_segment_ids=segment_ids,
      q_offset=0 if cache is None else index[:, 0],
      causal=self.causal,
      window=self.window,
      sinks=self.sinks,
      scale=None if self.scaled_logits else 1.0,
      logit_scale=self.attention_scale(last_visible, lengths=lengths),
      contiguous=contiguous,
      bias_form=bias_form,
      implementation=implementation,
    )
    return _output(self, y_BxQxHxD, x.shape[-1]), cache


class CrossAttention(nn.Module):
  """Attention of a decoder to an encoder's output, without positions.

  Attributes:
    num_heads: H.
    head_dim: D.
    dtype: see Attention.
    implementation: see Attention.
    out_init_scale: see Attention.
    scaled_logits: see Attention.
    key_heads: see Attention.
  """

  num_heads: int
  head_dim: int
  dtype: Any = jnp.float32
  implementation: str = 'auto'
  out_init_scale: float = 1.0
  scaled_logits: bool = True
  key_heads: int | None = None

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
      segment_ids: int32 `[B, L]` where rows are packed or padded.
      encoded_segment_ids: int32 `[B, S]`, likewise.

    Returns:
      `[B, L, E]`.
    """
    tokens.check_vectors('x', x)
    tokens.check_vectors('encoded', encoded)
    y_BxLxHxD = attention.dot_product_attention(
      *_queries_keys_values(self, x, encoded),
      q_segment_ids=segment_ids,
      k_segment_ids=encoded_segment_ids,
      causal=False,
      scale=None if self.scaled_logits else 1.0,
      implementation=self.implementation,
    )
    return _output(self, y_BxLxHxD, x.shape[-1])


def _queries_keys_values(module, x, encoded):
  """Projections of an attention module, `[B, length, H, D]` each."""

  def project(name, x, heads, init_scale=1.0):
    return linear.Einsum(
      'ble,ehd->blhd',
      (x.shape[-1], heads, module.head_dim),
      ('embed', 'heads', 'kv'),
      module.dtype,
      init_scale,
      name=name,
    )(x)

  q_init_scale = 1.0 if module.scaled_logits else module.head_dim**-0.5
  key_heads = module.key_heads or module.num_heads
  return (
    project('query', x, module.num_heads, q_init_scale),
    project('key', encoded, key_heads),
    project('value', encoded, key_heads),
  )


def _output(module, y, width):
  """Output projection of an attention module, `[B, length, E]`."""
  return linear.Einsum(
    'blhd,hde->ble',
    (module.num_heads, module.head_dim, width),
    ('heads', 'kv', 'embed'),
    module.dtype,
    module.out_init_scale,
    name='out',
  )(y)


ACTIVATIONS = {'gelu': nn.gelu, 'relu': nn.relu, 'swiglu': nn.silu}


class MLP(nn.Module):
  """Two layers with an activation between, which may be a gate.

  With 'swiglu' the output is down(silu(gate(x)) up(x)), else
  down(activation(up(x))).

  Source: Shazeer (2020), arXiv:2002.05202, eq. 6.

  Attributes:
    hidden: hidden units, F.
    activation: 'gelu', 'relu' or 'swiglu'.
    use_bias: add biases.
    dtype: of the computation.
    out_init_scale: scales the initial output projection.
  """

  hidden: int
  activation: str = 'gelu'
  use_bias: bool = False
  dtype: Any = jnp.float32
  out_init_scale: float = 1.0

  def __post_init__(self):
    if self.activation not in ACTIVATIONS:
      raise errors.ConfigError(
        errors.one_of('activation', self.activation, ACTIVATIONS)
      )
    super().__post_init__()

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    width = x.shape[-1]
    activate = ACTIVATIONS[self.activation]

    def expand(name):
      h_BxLxF = linear.Einsum(
        'ble,ef->blf',
        (width, self.hidden),
        ('embed', 'mlp'),
        self.dtype,
        use_bias=self.use_bias,
        name=name,
      )(x)
      return partitioning.constrain(h_BxLxF, 'batch', 'length', 'mlp')

    h_BxLxF = expand('up')
    if self.activation == 'swiglu':
      h_BxLxF *= activate(expand('gate'))
    else:
      h_BxLxF = activate(h_BxLxF)
    return linear.Einsum(
      'blf,fe->ble',
      (self.hidden, width),
      ('mlp', 'embed'),
      self.dtype,
      self.out_init_scale,
      use_bias=self.use_bias,
      name='down',
    )(h_BxLxF)


def norm(config: ModelConfig, name: str | None) -> nn.Module:
  """Norm of a ModelConfig, with logical axis names; statistics in float32."""
  dtype, epsilon = jnp.dtype(config.dtype), config.norm_epsilon
  scale = partitioning.named(nn.initializers.ones, ('embed',))
  if config.norm == 'rms':
    return nn.RMSNorm(epsilon, dtype=dtype, scale_init=scale, name=name)
  return nn.LayerNorm(
    epsilon,
    dtype=dtype,
    scale_init=scale,
    bias_init=partitioning.named(nn.initializers.zeros, ('embed',)),
    name=name,
  )
