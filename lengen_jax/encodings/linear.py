"""A bias linear in the signed distance of positions."""

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax.encodings import base
from lengen_jax.types import Array, Params


class Linear(base.Encoding):
  """b_h(i, j) = -s_h (p_i - p_j); bidirectionally -s_h |p_i - p_j|.

  With the contextual positions `forget` and s = 1, attention is that of the
  Forgetting Transformer. The term s_h p_i is equal for all keys of a query and
  cancels in the softmax; the other one, s_h p_j, is a bias per key.

  Source: Lin et al. (2025), arXiv:2503.02130, eq. 5.

  Attributes:
    slope: s_h of all heads.
    learned: learn s_h per head, initially `slope`.
  """

  slope: float = 1.0
  learned: bool = False

  formula = 'b = -s_h (p_i - p_j)'
  source = 'arXiv:2503.02130'
  parameters = 'none; slope [H] if learned'
  beyond = 'the penalty keeps growing'

  def setup(self) -> None:
    if self.learned:
      init = nn.initializers.constant(self.slope)
      shape = (self.num_heads,)
      self.s = self.make_param(self, 'slope', init, shape, ('heads',))
    else:
      self.s = jnp.full(self.num_heads, self.slope, jnp.float32)

  def tile_params(self) -> base.NamedLeaves | None:
    return {'slopes': (self.s, ('heads',))}

  @nn.nowrap
  def strip(
    self, params: Params, distances: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    slopes_H = base.per_head(params['slopes'], distances.ndim + 1)
    reach = jnp.abs(distances) if bidirectional else distances
    return -slopes_H * reach[None]

  @nn.nowrap
  def slopes(
    self, params: Params, *, bidirectional: bool = False
  ) -> jax.Array | None:
    return None if bidirectional else params['slopes']
