"""Positions from forget gates: a gate near 0 increases distances across it."""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import partitioning
from lengen_jax.positions.contextual import base
from lengen_jax.types import Array


class Forget(base.Contextual):
  """Cumulative log gates: p_i = -sum_{l <= i} ln sigmoid(w_h x_l + b_h).

  With the encoding `linear`, attention is that of the Forgetting Transformer,
  and of Cable, whose gates have the opposite sign and whose logits are not
  divided by sqrt(D).

  Sources: Lin et al. (2025), arXiv:2503.02130, eq. 5; Cable:
  arXiv:2503.08067.

  Attributes:
    bias_init: initial b_h: 0 in both papers; 5 forgets slowly at first.
  """

  bias_init: float = 0.0

  formula = 'p_i = -sum_{l <= i} ln sigmoid(w_h x_l + b_h)'
  source = 'arXiv:2503.02130, arXiv:2503.08067'
  parameters = 'kernel [E, H], bias [H]'
  cumulative = True

  def setup(self) -> None:
    normal = nn.initializers.normal(0.02)
    constant = nn.initializers.constant(self.bias_init)
    shape = (self.width, self.num_heads)
    self.kernel: Any = self.param(
      'kernel',
      partitioning.named(normal, ('embed', 'heads')),
      shape,
      jnp.float32,
    )
    self.bias: Any = self.param(
      'bias',
      partitioning.named(constant, ('heads',)),
      shape[1:],
      jnp.float32,
    )

  def values(self, x: Array) -> jax.Array:
    gate = jnp.matmul(x, self.kernel, precision='highest')
    return jax.nn.softplus(-gate - self.bias[None, None])
