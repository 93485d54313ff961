"""RePo: positions from a gated multilayer perceptron."""

from flax import linen as nn
import jax

from lengen_jax.positions.contextual import base
from lengen_jax.types import Array


class Repo(base.Contextual):
  """Context re-positioning: p = W_z (silu(W_g x) * (W_c x)), one per head.

  The positions of a token depend on the token alone; causal masks remain by
  index. All positions are near 0 initially.

  Source: Li et al. (2025), arXiv:2512.14391.

  Attributes:
    hidden: width of both hidden vectors; None for E // 8.
  """

  hidden: int | None = None

  formula = 'p = W_z (silu(W_g x) * (W_c x))'
  source = 'arXiv:2512.14391'
  parameters = (
    'gate/kernel [E, hidden], content/kernel likewise, out/kernel [hidden, H]'
  )
  ranges = {'hidden': 'None or >= 1'}

  def setup(self) -> None:
    hidden = self.hidden or max(1, self.width // 8)
    # Normal with standard deviation 0.02, cut at 3 standard deviations.
    init = nn.initializers.truncated_normal(0.02, lower=-3.0, upper=3.0)
    inner, outer = ('embed', 'kv'), ('kv', 'heads')
    self.gate = base.Float32Linear(self.width, hidden, inner, init)
    self.content = base.Float32Linear(self.width, hidden, inner, init)
    self.out = base.Float32Linear(hidden, self.num_heads, outer, init)

  def values(self, x: Array) -> jax.Array:
    return self.out(jax.nn.silu(self.gate(x)) * self.content(x))
