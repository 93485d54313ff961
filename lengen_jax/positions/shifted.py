"""Shifted positions: all tokens of a segment moved by a random amount.

Of no use to encodings that see differences only; for the others they make every
position a trained one.
"""

from collections.abc import Mapping
import dataclasses
import math

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.hints import Array
from lengen_jax.positions import base


@dataclasses.dataclass(frozen=True)
class Shape(base.PositionScheme):
  """SHAPE: p = k + i with k uniform in {0 .. max_shift - 1} per segment.

  At test time k = 0; the official code evaluates at k = max_shift.

  Source: Kiyono et al. (2021), arXiv:2109.05644, section 3.

  Attributes:
    max_shift: shifts are below this.
    official_compat: start at max_shift at test time.
  """

  max_shift: int | None = None
  official_compat: bool = False

  formula = 'p = k + i, k uniform in {0 .. max_shift - 1} per segment'
  source = 'arXiv:2109.05644'
  test_time = 'i; with official_compat max_shift + i'
  random = True
  contiguous = True

  def __post_init__(self) -> None:
    if self.max_shift is None or self.max_shift < 0:
      raise errors.SpecError(
        f'shape needs max_shift, 0 or more; got {self.max_shift}'
      )

  def extent(self, length: int, train: bool) -> int:
    if train:
      return length + max(self.max_shift - 1, 0)
    return length + (self.max_shift if self.official_compat else 0)

  def draw(
    self, rng: jax.Array, segment_positions: Array, lengths: int | Array | None
  ) -> dict[str, jax.Array]:
    del lengths
    keys = base.token_keys(rng, segment_positions.shape)
    start = _integers(keys, max(self.max_shift, 1))
    return {'start': base.per_segment(start, segment_positions)}

  def apply(
    self,
    draws: Mapping[str, Array],
    segment_positions: Array,
    *,
    lengths: int | Array | None = None,
  ) -> Array:
    return segment_positions + draws['start']

  def at_test(
    self, segment_positions: Array, lengths: int | Array | None
  ) -> Array:
    del lengths
    start = self.max_shift if self.official_compat else 0
    return segment_positions + start


@dataclasses.dataclass(frozen=True)
class RandomPadding(base.PositionScheme):
  """Random padding: p = r + i, r uniform in {0 .. max_position - n}.

  Moves the padding of a segment of n tokens to its front before positions are
  looked up. Plain at test time.

  Source: Tao et al. (2023), arXiv:2305.04859.

  Attributes:
    max_position: size of the range, at least the longest segment.
  """

  max_position: int | None = None

  formula = 'p = r + i, r uniform in {0 .. max_position - n} per segment'
  source = 'arXiv:2305.04859'
  test_time = 'i'
  needs_lengths = True
  random = True
  contiguous = True

  def __post_init__(self) -> None:
    if self.max_position is None or self.max_position < 1:
      raise errors.SpecError(
        'random_padding needs max_position, the size of the range; got '
        f'{self.max_position}'
      )

  def draw(
    self, rng: jax.Array, segment_positions: Array, lengths: int | Array | None
  ) -> dict[str, jax.Array]:
    keys = base.token_keys(rng, segment_positions.shape)
    start = _integers(keys, jnp.maximum(self.max_position - lengths + 1, 1))
    return {'start': base.per_segment(start, segment_positions)}

  def apply(
    self,
    draws: Mapping[str, Array],
    segment_positions: Array,
    *,
    lengths: int | Array | None = None,
  ) -> Array:
    return segment_positions + draws['start']

  def at_test(
    self, segment_positions: Array, lengths: int | Array | None
  ) -> Array:
    del lengths
    return segment_positions


@dataclasses.dataclass(frozen=True)
class Cape(base.PositionScheme):
  """CAPE in one dimension: shift, jitter and scale at random.

  p = (i - m + D + e_i) l with D uniform in +-global_shift per segment, e_i in
  +-local_shift per token, ln l in +-ln max_scale per segment; m is the mean
  index of the segment if `mean_normalize`, else 0. At test time p = i - m.

  Source: Likhomanenko et al. (2021), arXiv:2106.03143, section 3.1.

  Attributes:
    global_shift: see above.
    local_shift: see above; 0.5 at most keeps the order.
    max_scale: see above; 1 for none.
    mean_normalize: subtract the mean. It needs the whole length, so that it is
      not for decoding.
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

  def __post_init__(self) -> None:
    if self.global_shift < 0 or not 0 <= self.local_shift <= 0.5:
      raise errors.SpecError(
        f'cape needs global_shift={self.global_shift} of at least 0 and '
        f'local_shift={self.local_shift} between 0 and 0.5'
      )
    if self.max_scale < 1:
      raise errors.SpecError(f'max_scale is {self.max_scale}, less than 1')

  @property
  def needs_lengths(self) -> bool:
    return self.mean_normalize

  def draw(
    self, rng: jax.Array, segment_positions: Array, lengths: int | Array | None
  ) -> dict[str, jax.Array]:
    del lengths

    def uniform(number: int, bound: float) -> jax.Array:
      keys = base.token_keys(
        jax.random.fold_in(rng, number), segment_positions.shape
      )
      return jax.vmap(
        jax.vmap(
          lambda k: jax.random.uniform(k, (), minval=-bound, maxval=bound)
        )
      )(keys)

    return {
      'delta': base.per_segment(
        uniform(0, self.global_shift), segment_positions
      ),
      'delta_local': uniform(1, self.local_shift),
      'log_lambda': base.per_segment(
        uniform(2, math.log(self.max_scale)), segment_positions
      ),
    }

  def apply(
    self,
    draws: Mapping[str, Array],
    segment_positions: Array,
    *,
    lengths: int | Array | None = None,
  ) -> Array:
    positions = self.at_test(segment_positions, lengths)
    positions = positions + draws['delta'] + draws['delta_local']
    return positions * jnp.exp(draws['log_lambda'])

  def at_test(
    self, segment_positions: Array, lengths: int | Array | None
  ) -> Array:
    positions = segment_positions.astype(jnp.float32)
    if self.mean_normalize:
      positions = positions - (jnp.maximum(lengths, 1) - 1) / 2
    return positions


def _integers(keys: jax.Array, bound: int | Array) -> jax.Array:
  """An integer in {0 .. bound - 1} per key, `[B, L]`."""
  bound = jnp.broadcast_to(jnp.asarray(bound, jnp.int32), keys.shape)
  return jax.vmap(jax.vmap(lambda k, n: jax.random.randint(k, (), 0, n)))(
    keys, bound
  )
