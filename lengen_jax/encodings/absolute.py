"""Absolute encodings: a vector per position, added to the model's input."""

import dataclasses

from flax import linen as nn
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.encodings import base, checks
from lengen_jax.encodings.angles import angles
from lengen_jax.types import Array


class Sinusoidal(base.Encoding):
  """Sines and cosines of the position, added to the input embedding.

  PE(p) = [sin(p w_0) .. sin(p w_{E/2-1}), cos(p w_0) .. cos(p w_{E/2-1})] with
  w_k = base^(-2k/E). Several rows of positions add a vector each.

  Source: Vaswani et al. (2017), section 3.5; the concatenated layout is that of
  Ruoss et al. (2023), arXiv:2305.16843.
  """

  base: float = 10000.0

  formula = 'x + [sin(p w_k), cos(p w_k)], w_k = base^(-2k/E)'
  source = 'arXiv:1706.03762'
  beyond = 'vectors never seen in training'
  translation_invariant = False
  embeds = True
  position_rows = None
  ranges = {'base': '> 0'}

  def embed(self, x: Array, positions: Array) -> Array:
    base.check_distances(self, positions)
    width = x.shape[-1]
    if width % 2:
      raise errors.ConfigError(
        f'sinusoidal needs an even model width, got {width}'
      )
    frequency_F = self.base ** (-np.arange(0, width, 2) / width)
    sum_BxLxE = x.astype(jnp.float32)
    for positions_BxL in _rows(positions):
      angle_BxLxF = angles(positions_BxL, frequency_F)
      waves = jnp.sin(angle_BxLxF), jnp.cos(angle_BxLxF)
      sum_BxLxE += jnp.concatenate(waves, -1)
    return sum_BxLxE.astype(x.dtype)


class Learned(base.Encoding):
  """A learned vector per position, added to the input embedding.

  A position outside the table raises an error if it is concrete, and gives NaN
  inside jit. The initial standard deviation is that of DecoderLM's scaled token
  embeddings. Each of several rows of positions has its own table; their vectors
  are added.

  Source: Gehring et al. (2017), arXiv:1705.03122; as in GPT-2. Several rows:
  arXiv:2410.15787.
  """

  max_position: int | None = None
  # The key is `rows`, which is also a method of encodings.
  position_rows: int = dataclasses.field(default=1, metadata={'key': 'rows'})

  formula = 'x + table[p]'
  source = 'arXiv:1705.03122'
  parameters = 'table [max_position, E]; table_1, ... of further rows'
  beyond = 'untrained vectors; from max_position on an error'
  translation_invariant = False
  fractional_positions = False
  embeds = True
  ranges = {'max_position': '>= 1', 'rows': '>= 1'}

  def setup(self) -> None:
    if self.width is None:
      raise errors.ConfigError(
        'learned needs the width of the model; create it with width=...'
      )
    init = nn.initializers.normal(0.02 * self.width**0.5)
    shape, axes = (self.max_position, self.width), ('relpos_buckets', 'embed')
    self.tables = [
      self.make_param(self, f'table_{n}' if n else 'table', init, shape, axes)
      for n in range(self.position_rows)
    ]

  def embed(self, x: Array, positions: Array) -> Array:
    checks.check_positions(self, positions)
    sum_BxLxE = x.astype(jnp.float32)
    rows = _rows(positions)
    # One row, such as the standard positions, serves all tables.
    rows = rows * self.position_rows if len(rows) == 1 else rows
    for table, positions_BxL in zip(self.tables, rows, strict=True):
      sum_BxLxE += table.at[positions_BxL].get(
        mode='fill', fill_value=jnp.nan, wrap_negative_indices=False
      )
    return sum_BxLxE.astype(x.dtype)


def _rows(positions: Array) -> list[Array]:
  """Returns the rows `[1 or B, L]` of `[L]`, `[1 or B, L]` or `[R, ...]`."""
  return [*positions] if positions.ndim == 3 else [jnp.atleast_2d(positions)]
