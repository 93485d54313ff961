"""Selective positions: every token decides how far the position advances."""

from flax import linen as nn
import jax

from lengen_jax.positions.contextual import base
from lengen_jax.types import Array


class Selective(base.Contextual):
  """Cumulative increments: p_i = sum_{l <= i} (1 + w_h x_l).

  With `rope`, the angles are sums of token-dependent angles, as in selective
  rotary encodings, with the frequencies of RoPE. Positions initially increase
  by 1 per token, and may decrease.

  Source: Movahedi et al. (2025), arXiv:2511.17388, with one increment per head
  instead of one per frequency.
  """

  formula = 'p_i = sum_{l <= i} (1 + w_h x_l)'
  source = 'arXiv:2511.17388'
  parameters = 'steps/kernel [E, H]'
  cumulative = True

  def setup(self) -> None:
    self.steps = base.Float32Linear(
      self.width,
      self.num_heads,
      ('embed', 'heads'),
      nn.initializers.zeros,
    )

  def values(self, x: Array) -> jax.Array:
    return 1.0 + self.steps(x)
