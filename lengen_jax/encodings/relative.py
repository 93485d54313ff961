"""Relative encodings that look at contents: Shaw, Transformer-XL."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax.encodings import base
from lengen_jax.hints import Array
from lengen_jax.hints import Params
from lengen_jax.positions import Positions


class Shaw(base.Encoding):
  """Learned vectors per clipped distance, added to keys and to values.

  logits = q (k + a^K_r) / sqrt(D), y = sum w (v + a^V_r) with
  r = clip(j - i, -left, right). The tables are shared by the heads.

  Source: Shaw et al. (2018), arXiv:1803.02155, eq. 3-4.

  Attributes:
    left: distances further back share a vector.
    right: distances further ahead share a vector.
  """

  left: int = 16
  right: int = 16

  formula = 'logits + q a_r / sqrt(D), values + w a_r, r = clip(j - i)'
  source = 'arXiv:1803.02155'
  parameters = 'key_table [left + right + 1, D], value_table likewise'
  beyond = 'the last vector serves all'
  needs_content = True
  fractional_positions = False
  takes_distances = True

  def __post_init__(self):
    if self.left < 0 or self.right < 0:
      raise errors.SpecError(
        f'left={self.left} and right={self.right} must not be negative'
      )
    super().__post_init__()

  def setup(self) -> None:
    shape = (self.left + self.right + 1, self.head_dim)
    axes = ('relpos_buckets', 'kv')
    init = nn.initializers.normal(self.head_dim**-0.5)
    self.key_table = self.make_param(self, 'key_table', init, shape, axes)
    self.value_table = self.make_param(self, 'value_table', init, shape, axes)

  def content_params(self) -> dict[str, tuple[jax.Array, tuple]] | None:
    axes = ('relpos_buckets', 'kv')
    return {
      'key_table': (self.key_table, axes),
      'value_table': (self.value_table, axes),
    }

  @nn.nowrap
  def content_logits(
    self,
    params: Params,
    q: Array,
    k: Array,
    q_positions: Positions,
    k_positions: Positions,
  ) -> jax.Array:
    del k
    row = self._row(q_positions, k_positions)
    # Products with all rows of the table, then a choice per pair.
    q_BxHxQxR = jnp.einsum(
      'bqhd,rd->bhqr', q.astype(jnp.float32), params['key_table']
    )
    row = jnp.broadcast_to(row, q_BxHxQxR.shape[:3] + row.shape[-1:])
    return jnp.take_along_axis(q_BxHxQxR, row, axis=3)

  @nn.nowrap
  def content_sums(
    self,
    params: Params,
    weights: Array,
    q_positions: Positions,
    k_positions: Positions,
  ) -> jax.Array | None:
    row = self._row(q_positions, k_positions)
    row = jnp.broadcast_to(row, weights.shape)
    rows = params['value_table'].shape[0]

    def total(weights_K, row_K):
      return jnp.zeros(rows, jnp.float32).at[row_K].add(weights_K)

    for _ in range(3):
      total = jax.vmap(total)
    weights_BxHxQxR = total(weights.astype(jnp.float32), row)
    return jnp.einsum('bhqr,rd->bqhd', weights_BxHxQxR, params['value_table'])

  @nn.nowrap
  def _row(self, q_positions, k_positions):
    """Row of the tables per pair, int32 `[1 or B, 1, Q, K]`."""
    back = base.signed_distance(q_positions, k_positions).astype(jnp.int32)
    back = back.reshape((-1, 1, *back.shape[-2:]))
    return jnp.clip(-back, -self.left, self.right) + self.left


class TransformerXL(base.Encoding):
  """Transformer-XL's relative encoding.

  logits = ((q + u) k + (q + v) R(j - i)) / sqrt(D) with
  R(t) = [sin(t w), cos(t w)] W, of width H D. The sines of a difference are
  expanded into products of sines, so that the second term is a matrix product
  of query and key features and no array over pairs is as wide as R.

  Source: Dai et al. (2019), arXiv:1901.02860, section 3.3, as in Ruoss et al.
  (2023), arXiv:2305.16843.

  Attributes:
    official_compat: R(n - 1 - (i - j)) for n keys, as the code of Ruoss et al.
      has it in causal attention: what a distance means goes with the length.
      With randomized distances below P likewise R(P - r), and R(P - 1) for
      all keys from the query on, which that code cannot tell apart.
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
    # The official quirk counts from the number of all keys.
    return not self.official_compat

  def __post_init__(self):
    if self.num_heads * self.head_dim % 2:
      raise errors.SpecError(
        f'transformer_xl needs num_heads * head_dim to be even, got '
        f'{self.num_heads} * {self.head_dim}'
      )
    super().__post_init__()

  def setup(self) -> None:
    shape = (self.num_heads, self.head_dim)
    inner = self.num_heads * self.head_dim
    init, axes = nn.initializers.normal(0.02), ('heads', 'kv')
    self.u = self.make_param(self, 'u', init, shape, axes)
    self.v = self.make_param(self, 'v', init, shape, axes)
    self.projection = _Projection(inner, self.make_param)
    # Set up now, whichever hook comes first.
    _ = self.projection.kernel

  def content_params(self) -> dict[str, tuple[jax.Array, tuple]] | None:
    inner = self.num_heads * self.head_dim
    kernel = self.projection.kernel.reshape(inner, self.num_heads, -1)
    return {
      'u': (self.u, ('heads', 'kv')),
      'v': (self.v, ('heads', 'kv')),
      'kernel': (kernel, ('relpos_buckets', 'heads', 'kv')),
    }

  @nn.nowrap
  def content_logits(
    self,
    params: Params,
    q: Array,
    k: Array,
    q_positions: Positions,
    k_positions: Positions,
  ) -> jax.Array:
    q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    # (q + v) R(j - i) = a sin(j - i) + b cos(j - i), frequency by frequency.
    a, b = jnp.split(
      jnp.einsum(
        'bqhd,fhd->bqhf', q + params['v'][None, None], params['kernel']
      ),
      2,
      -1,
    )
    if isinstance(q_positions, position_schemes.Distances):
      position = self._by_distance(a, b, q_positions, k_positions)
    else:
      if self.official_compat:
        q_positions = q_positions - (k.shape[1] - 1)
      position = self._by_position(a, b, q_positions, k_positions)
    content = jnp.einsum('hd,bkhd->bhk', params['u'], k)
    return position + content[:, :, None]

  @nn.nowrap
  def _by_position(self, a, b, q_positions, k_positions):
    """A product of features of queries and of keys, `[B, H, Q, K]`."""
    # Differences are all that matters: count from the first query, exactly,
    # so that angles stay small.
    origin = q_positions[..., :1]
    i, j = (
      jnp.atleast_2d((p - origin).astype(jnp.float32))
      for p in (q_positions, k_positions)
    )
    sin_i, cos_i = self._features(i)
    sin_j, cos_j = self._features(j)
    # a sin(j - i) + b cos(j - i) as products of features of i and of j.
    on_sin_j = a * cos_i + b * sin_i
    on_cos_j = b * cos_i - a * sin_i
    features_j = jnp.concatenate([sin_j, cos_j], -1)[:, :, 0]
    features_j = jnp.broadcast_to(
      features_j, (a.shape[0], *features_j.shape[1:])
    )
    return jnp.einsum(
      'bqhf,bkf->bhqk',
      jnp.concatenate([on_sin_j, on_cos_j], -1),
      features_j,
      # Not rounded to 16 bits by an accelerator: these are positions.
      precision='highest',
    )

  @nn.nowrap
  def _by_distance(self, a, b, q_positions, k_positions):
    """Every distance for every query, then a choice per pair."""
    row, apart = q_positions.rows(k_positions)
    r = q_positions.r.astype(jnp.float32)
    sign = jnp.sign(apart).astype(jnp.float32)
    if self.official_compat:
      if q_positions.size is None:
        raise errors.CombinationError(
          'transformer_xl(official_compat=True) needs the size of Distances'
        )
      # The query itself and later keys are all at distance 1.
      r = jnp.maximum(r, 1) - q_positions.size
      row = jnp.where(apart > 0, row, row - jnp.abs(apart))
      sign = jnp.ones_like(sign)
    sin_r, cos_r = self._features(r)
    shape = (a.shape[0], *sin_r.shape[1:])
    sin_BxHxQxR, cos_BxHxQxR = (
      jnp.einsum(
        'bqhf,brf->bhqr',
        x,
        jnp.broadcast_to(r, shape)[:, :, 0],
        precision='highest',
      )
      for x, r in ((a, sin_r), (b, cos_r))
    )
    row = jnp.broadcast_to(row[:, None], sin_BxHxQxR.shape[:3] + row.shape[-1:])
    sin, cos = (
      jnp.take_along_axis(x, row, axis=3) for x in (sin_BxHxQxR, cos_BxHxQxR)
    )
    # The sine of j - i, which is -sign r.
    return cos - sign[:, None] * sin

  @nn.nowrap
  def _features(self, positions_BxL):
    """Sin and cos of every frequency, `[B, L, 1, H D / 2]` each."""
    inner = self.num_heads * self.head_dim
    frequency = 10000.0 ** (-np.arange(0, inner, 2) / inner)
    angle = positions_BxL[..., None, None] * jnp.asarray(
      frequency[None, None, None], jnp.float32
    )
    return jnp.sin(angle), jnp.cos(angle)


class _Projection(nn.Module):
  """The matrix W."""

  size: int
  make_param: object

  def setup(self):
    self.kernel = self.make_param(
      self,
      'kernel',
      nn.initializers.normal(self.size**-0.5),
      (self.size, self.size),
      ('relpos_buckets', 'joined_kv'),
    )
