"""KERPLE: conditionally positive definite kernels of the distance.

Source: Chi et al. (2022), arXiv:2205.09921; names and clamps as in the official
code.
"""

import math

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax.encodings import base
from lengen_jax.types import Array, Params


class _Kerple(base.Encoding):
  """Base of both kernels: two positive parameters per head.

  As in the official code, clamping a value does not cut its gradient.
  """

  source = 'arXiv:2205.09921'
  parameters = 'p [H], a [H]'
  beyond = 'the penalty keeps growing, ever more slowly'
  # Upper bound of p; the lower bound of p and a is 0.01.
  _p_max = math.inf

  def setup(self) -> None:
    uniform = nn.initializers.uniform
    shape = (self.num_heads,)
    self.p = self.make_param(self, 'p', uniform(2.0), shape, ('heads',))
    self.a = self.make_param(self, 'a', uniform(1.0), shape, ('heads',))

  def tile_params(self) -> base.NamedLeaves | None:
    p, a = _clamp_value(self.p, self._p_max), _clamp_value(self.a, math.inf)
    return {'p': (p, ('heads',)), 'a': (a, ('heads',))}

  @nn.nowrap
  def project(self, params: Params) -> Params:
    p = jnp.clip(params['p'], 0.01, self._p_max)
    return {**params, 'p': p, 'a': jnp.clip(params['a'], 0.01, math.inf)}


class KerpleLog(_Kerple):
  """Logarithmic kernel: b_h(i, j) = -p_h ln(1 + a_h |i - j|).

  p, a >= 0.01; r1 = p and r2 = a in the paper's eq. 9.
  """

  formula = 'b = -p_h ln(1 + a_h |i - j|)'

  @nn.nowrap
  def strip(
    self, params: Params, distances: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    p, a = (base.per_head(params[k], distances.ndim + 1) for k in 'pa')
    return -p * jnp.log1p(a * jnp.abs(distances)[None])


class KerplePower(_Kerple):
  """Power kernel: b_h(i, j) = -a_h |i - j|^p_h.

  a >= 0.01 and 0.01 <= p <= 2; r1 = a and r2 = p in the paper's eq. 8.
  """

  formula = 'b = -a_h |i - j|^p_h'
  beyond = 'the penalty keeps growing'
  _p_max = 2.0

  @nn.nowrap
  def strip(
    self, params: Params, distances: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    p, a = (base.per_head(params[k], distances.ndim + 1) for k in 'pa')
    # The gradient of d^p at d = 0 is infinite for p < 1.
    reach = jnp.abs(distances)[None]
    power = jnp.where(reach > 0, reach, 1.0) ** p
    return -a * jnp.where(reach > 0, power, 0.0)


def _clamp_value(x: jax.Array, upper: float) -> jax.Array:
  """Returns x clipped to [0.01, upper], with the gradient of x."""
  clipped = jax.lax.stop_gradient(jnp.clip(x, 0.01, upper))
  return clipped + (x - jax.lax.stop_gradient(x))
