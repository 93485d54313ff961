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
from lengen_jax import positions as position_schemes
from lengen_jax.attention import scaling


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

  def __post_init__(self):
    if isinstance(self.encoding, str):
      self.encoding = encodings.create(
        self.encoding,
        num_heads=self.num_heads,
        head_dim=self.head_dim,
        parent=None,
      )
    elif not isinstance(self.encoding, encodings.Encoding):
      self.encoding = encodings.FromFunction(
        self.num_heads, self.head_dim, function=self.encoding, parent=None
      )
    if self.encoding.embeds:
      raise errors.CombinationError(
        f'{type(self.encoding).__name__.lower()} acts at the input of a model '
        'and not in attention; call its embed(x, positions) there'
      )
    if isinstance(self.attention_scale, str):
      self.attention_scale = scaling.create(
        self.attention_scale, num_heads=self.num_heads, parent=None
      )
    super().__post_init__()

  @nn.compact
  def __call__(
    self, x, positions=None, *, segment_ids=None, lengths=None, shared=None
  ):
    """Attends.

    Args:
      x: `[B, L, E]`.
      positions: int32 or float32, `[L]`, `[1, L]` or `[B, L]`; None for the
        standard ones.
      segment_ids: int32 `[B, L]` where rows are packed.
      lengths: int32, `[B, 1]` or `[B, L]`: the length of each token's
        segment, for methods that depend on it.
      shared: (BiasFn or None, ContentFn or None) of an encoding shared by
        all layers, whose parameters then live with its owner.

    Returns:
      `[B, L, E]`.
    """
    width = x.shape[-1]
    index = position_index(x.shape[1], segment_ids)
    if positions is None:
      encodings.check_positions(
        self.encoding, None if segment_ids is None else index, x.shape[1]
      )
      positions = index
    else:
      positions = position_array(positions)
      encodings.check_positions(self.encoding, positions)

    last_visible = index
    if not self.causal:
      ends = x.shape[1] if lengths is None else lengths
      last_visible = jnp.broadcast_to(jnp.atleast_2d(ends) - 1, index.shape)

    def project(name):
      return Einsum(
        'ble,ehd->blhd',
        (width, self.num_heads, self.head_dim),
        ('embed', 'heads', 'kv'),
        self.dtype,
        name=name,
      )(x)

    q_BxLxHxD, k_BxLxHxD, v_BxLxHxD = map(project, ('query', 'key', 'value'))
    encoding = self.encoding
    if shared is None:
      bias_fn = encoding.bias_fn(bidirectional=not self.causal)
      content_fn = encoding.content_fn()
    else:
      bias_fn, content_fn = shared
      # The parameters live elsewhere; touching the bound module makes more.
      encoding = encoding.unbound()
    q_BxLxHxD, k_BxLxHxD = encoding.rotate(
      q_BxLxHxD, k_BxLxHxD, positions, positions, lengths
    )
    y_BxLxHxD = attention.dot_product_attention(
      q_BxLxHxD,
      k_BxLxHxD,
      v_BxLxHxD,
      bias=bias_fn,
      content=content_fn,
      q_positions=positions,
      k_positions=positions,
      q_segment_ids=segment_ids,
      k_segment_ids=segment_ids,
      causal=self.causal,
      logit_scale=self.attention_scale(last_visible, lengths=lengths),
      bias_form=self.bias_form,
      implementation=self.implementation,
    )
    return Einsum(
      'blhd,hde->ble',
      (self.num_heads, self.head_dim, width),
      ('heads', 'kv', 'embed'),
      self.dtype,
      self.out_init_scale,
      name='out',
    )(y_BxLxHxD)


class MLP(nn.Module):
  """Two layers with GeLU between.

  Attributes:
    hidden: hidden units, F.
    dtype: of the computation.
    out_init_scale: scales the initial output projection.
  """

  hidden: int
  dtype: Any = jnp.float32
  out_init_scale: float = 1.0

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1]
    h_BxLxF = Einsum(
      'ble,ef->blf',
      (width, self.hidden),
      ('embed', 'mlp'),
      self.dtype,
      name='up',
    )(x)
    return Einsum(
      'blf,fe->ble',
      (self.hidden, width),
      ('mlp', 'embed'),
      self.dtype,
      self.out_init_scale,
      name='down',
    )(nn.gelu(h_BxLxF))


class Embed(nn.Module):
  """Token embedding, tied to the output head.

  Attributes:
    vocab_size: V.
    width: E.
    dtype: of the activations.
  """

  vocab_size: int
  width: int
  dtype: Any = jnp.float32

  def setup(self):
    self.table = self.param(
      'table',
      nn.with_logical_partitioning(
        nn.initializers.normal(0.02), ('vocab', 'embed')
      ),
      (self.vocab_size, self.width),
      jnp.float32,
    )

  def __call__(self, tokens):
    """Embeds tokens, scaled by sqrt(E): `[B, L] -> [B, L, E]`.

    A token outside the table reads NaN.
    """
    x = jnp.take(self.table, tokens, axis=0, mode='fill')
    return (x * self.width**0.5).astype(self.dtype)

  def logits(self, x):
    """Logits of the next token, float32: `[B, L, E] -> [B, L, V]`."""
    return jnp.einsum(
      'ble,ve->blv',
      x.astype(self.dtype),
      self.table.astype(self.dtype),
      preferred_element_type=jnp.float32,
    )


class Einsum(nn.Module):
  """A linear map without bias, its kernel at its natural rank.

  The kernel's axes that the output lacks are the fan-in; its entries start
  normal with standard deviation init_scale / sqrt(fan-in).

  Attributes:
    equation: einsum of the input and the kernel.
    shape: of the kernel.
    axes: logical axis names of the kernel.
    dtype: of the computation.
    init_scale: see above.
  """

  equation: str
  shape: tuple
  axes: tuple
  dtype: Any = jnp.float32
  init_scale: float = 1.0

  @nn.compact
  def __call__(self, x):
    kernel_axes, output_axes = self.equation.split(',')[1].split('->')
    fan_in = 1
    for axis, size in zip(kernel_axes, self.shape, strict=True):
      fan_in *= 1 if axis in output_axes else size
    kernel = self.param(
      'kernel',
      nn.with_logical_partitioning(
        nn.initializers.normal(self.init_scale * fan_in**-0.5), self.axes
      ),
      self.shape,
      jnp.float32,
    )
    return jnp.einsum(
      self.equation, x.astype(self.dtype), kernel.astype(self.dtype)
    )


def norm(dtype, name):
  """Layer norm with logical axis names; statistics in float32."""
  return nn.LayerNorm(
    dtype=dtype,
    scale_init=nn.with_logical_partitioning(nn.initializers.ones, ('embed',)),
    bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ('embed',)),
    name=name,
  )


def position_index(length, segment_ids):
  """Index of each token in its segment, int32 `[1, L]` or packed `[B, L]`."""
  if segment_ids is not None:
    return position_schemes.segment_positions(segment_ids)
  return jax.lax.broadcasted_iota(jnp.int32, (1, length), 1)


def position_array(positions):
  """Positions as jax has them: numpy's 64 bits become 32."""
  is_array = isinstance(positions, jax.Array)
  return positions if is_array else jnp.asarray(positions)
