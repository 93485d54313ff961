"""Absolute encodings: a vector per position, added to the model's input."""

from flax import linen as nn
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.encodings import base, checks
from lengen_jax.types import Array


class Sinusoidal(base.Encoding):
  """Sines and cosines of the position, added to the input embedding.

  PE(p) = [sin(p w_0) .. sin(p w_{E/2-1}), cos(p w_0) .. cos(p w_{E/2-1})] with
  w_k = base^(-2k/E).

  Source: Vaswani et al. (2017), section 3.5; the concatenated layout is that of
  Ruoss et al. (2023), arXiv:2305.16843.
  """

  base: float = 10000.0

  formula = 'x + [sin(p w_k), cos(p w_k)], w_k = base^(-2k/E)'
  source = 'arXiv:1706.03762'
  beyond = 'vectors never seen in training'
  translation_invariant = False
  embeds = True

  def embed(self, x: Array, positions: Array) -> Array:
    width = x.shape[-1]
    if width % 2:
      raise errors.ConfigError(
        f'sinusoidal needs an even model width, got {width}'
      )
    frequency = self.base ** (-np.arange(0, width, 2) / width)
    positions_BxL = jnp.atleast_2d(positions).astype(jnp.float32)
    frequency = jnp.asarray(frequency[None, None], jnp.float32)
    angle = positions_BxL[..., None] * frequency
    table_BxLxE = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
    return (x.astype(jnp.float32) + table_BxLxE).astype(x.dtype)


class Learned(base.Encoding):
  """A learned vector per position, added to the input embedding.

  A position outside the table raises an error if it is concrete, and gives NaN
  inside jit. The initial standard deviation is that of DecoderLM's scaled token
  embeddings.

  Source: Gehring et al. (2017), arXiv:1705.03122; as in GPT-2.
  """

  max_position: int | None = None

  formula = 'x + table[p]'
  source = 'arXiv:1705.03122'
  parameters = 'table [max_position, E]'
  beyond = 'untrained vectors; from max_position on an error'
  translation_invariant = False
  fractional_positions = False
  embeds = True
  ranges = {'max_position': '>= 1'}

  def setup(self) -> None:
    if self.width is None:
      raise errors.ConfigError(
        'learned needs the width of the model; create it with width=...'
      )
    init = nn.initializers.normal(0.02 * self.width**0.5)
    shape, axes = (self.max_position, self.width), ('relpos_buckets', 'embed')
    self.table = self.make_param(self, 'table', init, shape, axes)

  def embed(self, x: Array, positions: Array) -> Array:
    checks.check_positions(self, positions)
    rows_BxLxE = self.table.at[jnp.atleast_2d(positions)].get(
      mode='fill', fill_value=jnp.nan, wrap_negative_indices=False
    )
    return (x.astype(jnp.float32) + rows_BxLxE).astype(x.dtype)
