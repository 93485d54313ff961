"""Relative encodings that depend on contents: Shaw, Transformer-XL."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.encodings import base
from lengen_jax.positions import Distances, Positions
from lengen_jax.types import Array, Params


class Shaw(base.Encoding):
  """Learned vectors per clipped distance, added to keys and to values.

  logits = q (k + a^K_r) / sqrt(D), y = sum w (v + a^V_r) with
  r = clip(j - i, -left, right). The tables are shared by the heads.

  Source: Shaw et al. (2018), arXiv:1803.02155, eq. 3-4.
  """

  left: int = 16
  right: int = 16

  formula = 'logits + q a_r / sqrt(D), values + w a_r, r = clip(j - i)'
  source = 'arXiv:1803.02155'
  parameters = 'key_table [left + right + 1, D], value_table [same]'
  beyond = 'all share the last vector'
  needs_content = True
  fractional_positions = False
  takes_distances = True
  ranges = {'left': '>= 0', 'right': '>= 0'}

  def setup(self) -> None:
    shape = (self.left + self.right + 1, self.head_dim)
    axes = ('relpos_buckets', 'kv')
    init = nn.initializers.normal(self.head_dim**-0.5)
    self.key_table = self.make_param(self, 'key_table', init, shape, axes)
    self.value_table = self.make_param(self, 'value_table', init, shape, axes)

  def content_params(self) -> base.NamedLeaves | None:
    axes = ('relpos_buckets', 'kv')
    return {
      'key_table': (self.key_table, axes),
      'value_table': (self.value_table, axes),
    }

  @nn.nowrap
  def content_logits(
    self, params: Params, q: Array, k: Array, q_pos: Positions, k_pos: Positions
  ) -> jax.Array:
    row = self._row(q_pos, k_pos)
    # Products with all rows of the table, of which each pair selects one.
    q_BxHxQxR = jnp.einsum(
      'bqhd,rd->bhqr', q.astype(jnp.float32), params['key_table']
    )
    row = jnp.broadcast_to(row, q_BxHxQxR.shape[:3] + row.shape[-1:])
    return jnp.take_along_axis(q_BxHxQxR, row, axis=3)

  @nn.nowrap
  def content_sums(
    self, params: Params, weights: Array, q_pos: Positions, k_pos: Positions
  ) -> jax.Array | None:
    row = jnp.broadcast_to(self._row(q_pos, k_pos), weights.shape)
    rows = params['value_table'].shape[0]

    def total(weights_K: jax.Array, row_K: jax.Array) -> jax.Array:
      return jnp.zeros(rows, jnp.float32).at[row_K].add(weights_K)

    for _ in range(3):
      total = jax.vmap(total)
    weights_BxHxQxR = total(jnp.asarray(weights, jnp.float32), row)
    return jnp.einsum('bhqr,rd->bqhd', weights_BxHxQxR, params['value_table'])

  @nn.nowrap
  def _row(self, q_pos: Positions, k_pos: Positions) -> jax.Array:
    """Returns the table row of each pair, int32 `[1 or B, 1, Q, K]`."""
    back = base.signed_distance(q_pos, k_pos).astype(jnp.int32)
    back = back.reshape((-1, 1, *back.shape[-2:]))
    return jnp.clip(-back, -self.left, self.right) + self.left


class TransformerXL(base.Encoding):
  """Transformer-XL's relative encoding.

  logits = ((q + u) k + (q + v) R(j - i)) / sqrt(D) with
  R(t) = [sin(t w), cos(t w)] W, of width H D. The second term is computed as a
  product of query features and key features by the addition theorem.

  Source: Dai et al. (2019), arXiv:1901.02860, section 3.3, as in Ruoss et al.
  (2023), arXiv:2305.16843.

  Attributes:
    official_compat: compute R(n - 1 - (i - j)) for n keys, as the code of Ruoss
      et al. does in causal attention only, which makes a distance's meaning
      depend on the length. With randomized distances below P, compute R(P - r),
      and R(P - 1) for the query's own key and all keys after it.
  """

  official_compat: bool = False

  formula = 'logits + (u k + (q + v) R(j - i)) / sqrt(D), R = sin/cos W'
  source = 'arXiv:1901.02860'
  parameters = 'u [H, D], v [H, D], projection/kernel [H D, H D]'
  beyond = 'sines never seen'
  at_decoding = 'nothing; with official_compat as many slots as planned'
  needs_content = True
  takes_distances = True

  @property
  def tileable(self) -> bool:
    # The official quirk depends on the number of all keys.
    return not self.official_compat

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.num_heads * self.head_dim % 2:
      raise errors.SpecError(
        f'transformer_xl needs num_heads * head_dim to be even, got '
        f'{self.num_heads} * {self.head_dim}'
      )

  def setup(self) -> None:
    shape = (self.num_heads, self.head_dim)
    inner = self.num_heads * self.head_dim
    init, axes = nn.initializers.normal(0.02), ('heads', 'kv')
    self.u = self.make_param(self, 'u', init, shape, axes)
    self.v = self.make_param(self, 'v', init, shape, axes)
    self.projection = _Projection(inner, self.make_param)
    # Set up now, whichever hook runs first.
    _ = self.projection.kernel

  def content_params(self) -> base.NamedLeaves | None:
    inner = self.num_heads * self.head_dim
    kernel = self.projection.kernel.reshape(inner, self.num_heads, -1)
    return {
      'u': (self.u, ('heads', 'kv')),
      'v': (self.v, ('heads', 'kv')),
      'kernel': (kernel, ('relpos_buckets', 'heads', 'kv')),
    }

  @nn.nowrap
  def content_logits(
    self, params: Params, q: Array, k: Array, q_pos: Positions, k_pos: Positions
  ) -> jax.Array:
    q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    # (q + v) R(j - i) = a sin(j - i) + b cos(j - i), frequency by frequency.
    q_plus_v = q + params['v'][None, None]
    features = jnp.einsum('bqhd,fhd->bqhf', q_plus_v, params['kernel'])
    a, b = jnp.split(features, 2, -1)
    if isinstance(q_pos, Distances):
      position = self._by_distance(a, b, q_pos, k_pos)
    else:
      if self.official_compat:
        q_pos = q_pos - (k.shape[1] - 1)
      position = self._by_position(a, b, q_pos, k_pos)
    content = jnp.einsum('hd,bkhd->bhk', params['u'], k)
    return position + content[:, :, None]

  @nn.nowrap
  def _by_position(
    self, a_BxQxHxF: Array, b_BxQxHxF: Array, q_pos: Array, k_pos: Any
  ) -> jax.Array:
    """Computes a sin(j - i) + b cos(j - i) from positions, `[B, H, Q, K]`."""
    # Positions are counted from the first query, so that angles stay small. The
    # result does not depend on it, and rounding must not give it a gradient.
    origin = jax.lax.stop_gradient(q_pos[..., :1])
    (sin_i, cos_i), (sin_j, cos_j) = (
      self._features(jnp.atleast_2d((p - origin).astype(jnp.float32)))
      for p in (q_pos, k_pos)
    )
    on_sin_j = a_BxQxHxF * cos_i + b_BxQxHxF * sin_i
    on_cos_j = b_BxQxHxF * cos_i - a_BxQxHxF * sin_i
    features_i = jnp.concatenate([on_sin_j, on_cos_j], -1)
    features_j = jnp.concatenate([sin_j, cos_j], -1)
    return _products('bqhf,bkf->bhqk', features_i, features_j)

  @nn.nowrap
  def _by_distance(
    self, a_BxQxHxF: Array, b_BxQxHxF: Array, q_pos: Distances, k_pos: Any
  ) -> jax.Array:
    """Computes a sin(j - i) + b cos(j - i) from distances, `[B, H, Q, K]`.

    The terms of all distances are computed, from which each pair selects one.
    """
    row, apart = q_pos.rows(k_pos)
    r_BxL = q_pos.r.astype(jnp.float32)
    sign = jnp.sign(apart).astype(jnp.float32)
    if self.official_compat:
      if q_pos.size is None:
        raise errors.CombinationError(
          'transformer_xl(official_compat=True) needs the size of Distances'
        )
      # The query itself and later keys are all at distance 1.
      r_BxL = jnp.maximum(r_BxL, 1) - q_pos.size
      row = jnp.where(apart > 0, row, row - jnp.abs(apart))
      sign = jnp.ones_like(sign)

    def by_pair(x_BxQxHxF: Array, features: jax.Array) -> jax.Array:
      terms_BxHxQxL = _products('bqhf,blf->bhql', x_BxQxHxF, features)
      shape = terms_BxHxQxL.shape[:3] + row.shape[-1:]
      rows = jnp.broadcast_to(row[:, None], shape)
      return jnp.take_along_axis(terms_BxHxQxL, rows, axis=3)

    sin_r, cos_r = self._features(r_BxL)
    # The sine of j - i, which is -sign r.
    return by_pair(b_BxQxHxF, cos_r) - sign[:, None] * by_pair(a_BxQxHxF, sin_r)

  @nn.nowrap
  def _features(self, positions_BxL: Array) -> tuple[jax.Array, jax.Array]:
    """Returns sin and cos of all frequencies, `[B, L, 1, H D / 2]` each."""
    inner = self.num_heads * self.head_dim
    frequency = 10000.0 ** (-np.arange(0, inner, 2) / inner)
    angle = positions_BxL[..., None, None] * jnp.asarray(
      frequency[None, None, None], jnp.float32
    )
    return jnp.sin(angle), jnp.cos(angle)


def _products(subscripts: str, x: Array, features: jax.Array) -> jax.Array:
  """Returns products with features `[1 or B, L, 1, F]`, in full precision.

  By default an accelerator would round positions to 16 bits.
  """
  features = features[:, :, 0]
  features = jnp.broadcast_to(features, (x.shape[0], *features.shape[1:]))
  return jnp.einsum(subscripts, x, features, precision='highest')


class _Projection(nn.Module):
  """The matrix W."""

  size: int
  make_param: Callable

  def setup(self) -> None:
    init = nn.initializers.normal(self.size**-0.5)
    shape, axes = (self.size, self.size), ('embed', 'joined_kv')
    self.kernel = self.make_param(self, 'kernel', init, shape, axes)
