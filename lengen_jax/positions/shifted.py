"""Shifted positions: a random offset per segment."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from lengen_jax.positions import base
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class _Shift(base.PositionScheme):
  """Positions p = k + i with a random integer k per segment."""

  random = True
  contiguous = True

  def num_shifts(self, lengths: Lengths) -> int | Array:
    """Returns the exclusive upper bound of k."""
    raise NotImplementedError

  def draw(self, rng: jax.Array, i: Array, lengths: Lengths) -> Draws:
    bound = jnp.asarray(self.num_shifts(lengths), jnp.int32)
    bound = jnp.broadcast_to(jnp.maximum(bound, 1), i.shape)
    start = base.per_token(base.below, rng, i.shape, bound)
    return {'start': base.per_segment(start, i)}

  def apply(self, draws: Draws, i: Array, *, lengths: Lengths = None) -> Array:
    return i + draws['start']


@dataclasses.dataclass(frozen=True)
class Shape(_Shift):
  """SHAPE: p = k + i with k uniform in {0 .. max_shift - 1} per segment.

  At test time k = 0 or, with `official_compat`, max_shift as in the official
  code.

  Source: Kiyono et al. (2021), arXiv:2109.05644, section 3.
  """

  max_shift: int | None = None
  official_compat: bool = False

  formula = 'p = k + i, k uniform in {0 .. max_shift - 1} per segment'
  source = 'arXiv:2109.05644'
  test_time = 'i; with official_compat max_shift + i'
  # Sums with an index must fit 32 bits.
  ranges = {'max_shift': f'>= 0 and <= {2**30}'}

  def extent(self, length: int, train: bool) -> int:
    if train:
      return length + max(self.max_shift - 1, 0)
    return length + (self.max_shift if self.official_compat else 0)

  def num_shifts(self, lengths: Lengths) -> int:
    return self.max_shift

  @property
  def standard_at_test(self) -> bool:
    return not self.official_compat

  def at_test(self, i: Array, lengths: Lengths) -> Array:
    return i + (self.max_shift if self.official_compat else 0)


@dataclasses.dataclass(frozen=True)
class RandomPadding(_Shift):
  """Random padding: p = k + i, k uniform in {0 .. max_position - n}.

  Equivalent to placing a random part of the padding before the n tokens.

  Source: Tao et al. (2023), arXiv:2305.04859.
  """

  max_position: int | None = None

  formula = 'p = k + i, k uniform in {0 .. max_position - n} per segment'
  source = 'arXiv:2305.04859'
  test_time = 'i'
  needs_lengths = True
  ranges = {'max_position': '>= 1'}

  def num_shifts(self, lengths: Lengths) -> int | Array:
    return self.max_position - lengths + 1

  def apply(self, draws: Draws, i: Array, *, lengths: Lengths = None) -> Array:
    # Indices of padding continue beyond the segment.
    positions = super().apply(draws, i, lengths=lengths)
    return jnp.minimum(positions, self.max_position - 1)


@dataclasses.dataclass(frozen=True)
class Cape(base.PositionScheme):
  """CAPE in one dimension: random shift, jitter and scale.

  p = (i - m + D + e_i) l. D is uniform in +-global_shift per segment, e_i in
  +-local_shift per token, and ln l in +-ln max_scale per segment. m is the mean
  index of the segment if `mean_normalize`, else 0. At test time p = i - m. A
  local shift of at most 0.5 preserves the order.

  Source: Likhomanenko et al. (2021), arXiv:2106.03143, section 3.1.
  """

  global_shift: float = 5.0
  local_shift: float = 0.5
  max_scale: float = 1.03
  mean_normalize: bool = False

  formula = 'p = (i - m + D + e_i) l, all drawn'
  source = 'arXiv:2106.03143'
  test_time = 'i - m'
  at_decoding = 'with mean_normalize the planned length'
  fractional = True
  random = True
  ranges = {
    'global_shift': '>= 0',
    'local_shift': '>= 0 and <= 0.5',
    'max_scale': '>= 1',
  }

  @property
  def needs_lengths(self) -> bool:
    return self.mean_normalize

  def draw(self, rng: jax.Array, i: Array, lengths: Lengths) -> Draws:
    def uniform(number: int, bound: float) -> jax.Array:
      return base.per_token(
        lambda key: jax.random.uniform(key, (), minval=-bound, maxval=bound),
        jax.random.fold_in(rng, number),
        i.shape,
      )

    log_lambda = uniform(2, math.log(self.max_scale))
    return {
      'delta': base.per_segment(uniform(0, self.global_shift), i),
      'delta_local': uniform(1, self.local_shift),
      'log_lambda': base.per_segment(log_lambda, i),
    }

  def apply(self, draws: Draws, i: Array, *, lengths: Lengths = None) -> Array:
    positions = self.at_test(i, lengths)
    positions = positions + draws['delta'] + draws['delta_local']
    return positions * jnp.exp(draws['log_lambda'])

  @property
  def standard_at_test(self) -> bool:
    return not self.mean_normalize

  def at_test(self, i: Array, lengths: Lengths) -> Array:
    positions = i.astype(jnp.float32)
    if self.mean_normalize:
      positions = positions - (jnp.maximum(lengths, 1) - 1) / 2
    return positions
