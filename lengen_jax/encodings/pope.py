"""PoPE: polar coordinates, in which contents set only the magnitudes."""

import math

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.encodings import base
from lengen_jax.encodings.angles import angles
from lengen_jax.types import Array, Params


class Pope(base.Encoding):
  """Polar position embedding.

  logits = sum_c softplus(q_c) softplus(k_c) cos((i - j) w_c - delta_hc) /
  sqrt(D), with w_c = base^(-c/D), c < D, and learned delta in [-2 pi, 0].
  Queries and keys are rotated to width 2 D, and scaled as if it were D. The
  phase delta is subtracted from the angles of queries.

  Source: Gopalakrishnan et al. (2025), arXiv:2509.10534. The forward pass does
  not clamp delta, which would cut its gradient at the initial value 0; it is
  projected after each optimizer step.
  """

  base: float = 10000.0

  formula = (
    'logits = sum_c sp(q_c) sp(k_c) cos((i - j) w_c - delta_c) / sqrt(D)'
  )
  source = 'arXiv:2509.10534'
  parameters = 'delta [H, D]'
  beyond = 'angles never seen'
  at_decoding = 'nothing; keys are kept unrotated'
  caches_unrotated_keys = True
  widens = True
  ranges = {'base': '> 1'}

  def setup(self) -> None:
    self.delta = self.make_param(
      self,
      'delta',
      nn.initializers.zeros,
      (self.num_heads, self.head_dim),
      ('heads', 'kv'),
    )

  def rotate(
    self,
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    lengths: Array | None = None,
  ) -> tuple[Array, Array]:
    """Returns queries `[B, Q, H, 2 D]` and keys `[B, K, H', 2 D]`."""
    base.check_distances(self, q_positions, k_positions)
    q = self._polar(q, q_positions, self.delta[None, None])
    return q, self._polar(k, k_positions, jnp.float32(0))

  @nn.nowrap
  def project(self, params: Params) -> Params:
    return {**params, 'delta': jnp.clip(params['delta'], -2 * math.pi, 0.0)}

  @nn.nowrap
  def _polar(
    self, x_BxLxHxD: Array, positions: Array, delta: jax.Array
  ) -> jax.Array:
    w_D = self.base ** (-np.arange(self.head_dim) / self.head_dim)
    positions = jnp.atleast_2d(positions)
    if positions.ndim == 2:
      positions = positions[..., None]
    angle = angles(positions, w_D) - delta
    magnitude = jax.nn.softplus(x_BxLxHxD.astype(jnp.float32))
    parts = magnitude * jnp.cos(angle), magnitude * jnp.sin(angle)
    return jnp.concatenate(parts, -1).astype(x_BxLxHxD.dtype)
