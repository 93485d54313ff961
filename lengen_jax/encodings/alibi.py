"""ALiBi: a fixed linear penalty on distance, one slope per head."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.encodings import base
from lengen_jax.types import Array, Params


class Alibi(base.Encoding):
  """Attention with linear biases: b_h(i, j) = -s_h |i - j|.

  The slopes are s_h = 2^(-8 h / H), h = 1 .. H. If H is not a power of two, the
  heads beyond the next lower power n have every other slope of 2 n heads.

  Source: Press et al. (2022), arXiv:2108.12409, section 3, and its code.

  Attributes:
    official_compat: bidirectionally, move keys before the query half a position
      nearer, b = -s_h (|i - j| - [i > j] / 2), as in the code of Ruoss et al.
      (2023), arXiv:2305.16843.
  """

  official_compat: bool = False

  formula = 'b = -s_h |i - j|'
  source = 'arXiv:2108.12409'
  beyond = 'the penalty keeps growing'

  def tile_params(self) -> base.NamedLeaves | None:
    return {
      'slopes': (jnp.asarray(slopes(self.num_heads), jnp.float32), ('heads',))
    }

  @nn.nowrap
  def strip(
    self, params: Params, distances: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    slopes_H = base.per_head(params['slopes'], distances.ndim + 1)
    reach = jnp.abs(distances)
    if bidirectional and self.official_compat:
      reach = jnp.maximum(reach - 0.5 * (distances > 0), 0.0)
    return -slopes_H * reach[None]


def slopes(num_heads: int) -> np.ndarray:
  """Returns ALiBi's slopes, float64 `[num_heads]`."""
  power = 2 ** int(np.log2(num_heads))
  first = 2.0 ** (-8 * np.arange(1, power + 1) / power)
  rest = 2.0 ** (-8 * np.arange(1, 2 * power, 2) / (2 * power))
  return np.concatenate([first, rest[: num_heads - power]])
