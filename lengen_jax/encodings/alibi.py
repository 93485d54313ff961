"""ALiBi: a fixed linear penalty on distance, one slope per head."""

from flax import linen as nn
import jax.numpy as jnp
import numpy as np

from lengen_jax.encodings import base


class Alibi(base.Encoding):
  """Attention with linear biases: b_h(i, j) = -s_h |i - j|.

  Source: Press et al. (2022), arXiv:2108.12409, section 3. Head counts that
  are no power of two take every other slope of twice the next lower power, as
  in the official code.
  """

  formula = 'b = -s_h |i - j|'
  source = 'arXiv:2108.12409'

  def tile_params(self):
    return {
      'slopes': (jnp.asarray(slopes(self.num_heads), jnp.float32), ('heads',))
    }

  @nn.nowrap
  def strip(self, params, distances, *, bidirectional=False):
    del bidirectional
    slopes_H = base.per_head(params['slopes'], distances.ndim + 1)
    return -slopes_H * jnp.abs(distances)[None]


def slopes(num_heads):
  """ALiBi's slopes, float64 `[num_heads]`."""
  power = 2 ** int(np.log2(num_heads))
  first = 2.0 ** (-8 * np.arange(1, power + 1) / power)
  rest = 2.0 ** (-8 * np.arange(1, 2 * power, 2) / (2 * power))
  return np.concatenate([first, rest[: num_heads - power]])
