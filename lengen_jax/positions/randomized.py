"""Randomized positions: a sorted random subset of a longer range."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.positions import base, kinds
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Randomized(base.PositionScheme):
  """A sorted random sample, without replacement, of 0 .. max_position - 1.

  A segment of n tokens gets n distinct positions, all subsets equally likely.
  With `mode='distances'` the distances of pairs are sampled: pair (i, j) has
  the signed distance sign(i - j) r_|i - j|, with r_0 = 0 and r_1 < ... <
  r_{n-1} a sorted sample of 1 .. max_position - 1. The paper describes
  positions; its code draws distances for ALiBi and Transformer-XL.

  With `fractional`, positions are max_position times n sorted uniform numbers
  of [0, 1), and even spacing is their mean, max_position (i + 1) / (n + 1).

  Source: Ruoss et al. (2023), arXiv:2305.16843, section 3; even spacing at test
  time: Su (2023); fractional positions: arXiv:2602.14050.

  Attributes:
    max_position: size of the range, P. Unless `fractional`, at least the
      longest segment length.
    mode: 'positions' or 'distances'.
    test: positions at test time, 'random' or 'even' (evenly spaced).
    draw: 'sequence' for one draw per sequence; 'batch' for one per batch, which
      sequences of equal length share; 'layer' for one per batch and layer, as
      in the official code.
    fractional: draw real numbers instead of integers.
  """

  max_position: int | None = None
  mode: str = 'positions'
  test: str = 'random'
  # The key is `draw`; a field of that name would hide the method.
  drawn_per: str = dataclasses.field(
    default='sequence', metadata={'key': 'draw'}
  )
  fractional: bool = False

  formula = 'p = sorted sample of {0 .. max_position - 1}'
  source = 'arXiv:2305.16843'
  test_time = 'drawn again, or evenly spaced'
  at_decoding = 'the planned length; drawn once for all of it'
  needs_lengths = True
  random = True
  ranges = {
    'max_position': '>= 1',
    'mode': ('positions', 'distances'),
    'test': ('random', 'even'),
    'draw': ('sequence', 'batch', 'layer'),
  }

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.fractional and self.mode == 'distances':
      raise errors.SpecError(
        "fractional=True of randomized requires mode='positions'; distances "
        'are integers'
      )

  @property
  def random_at_test(self) -> bool:
    return self.test == 'random'

  @property
  def gives_distances(self) -> bool:
    return self.mode == 'distances'

  @property
  def per_layer(self) -> bool:
    return self.drawn_per == 'layer'

  @property
  def same_rows(self) -> bool:
    return self.drawn_per != 'sequence'

  def limit(self, train: bool) -> int | None:
    return None if self.fractional else self.max_position

  def draw(self, rng: jax.Array, i: Array, lengths: Lengths) -> Draws:
    if self.fractional:
      return {
        'uniform': base.per_token(
          jax.random.uniform, rng, i.shape, same_rows=self.same_rows
        )
      }
    if self.mode == 'positions':
      return {'positions': self._subset(rng, i, lengths, self.max_position)}
    # r_1 .. r_{n-1} are n - 1 samples of max_position - 1 values.
    sample = 1 + self._subset(rng, i, lengths - 1, self.max_position - 1)
    r = jnp.where(i == 0, 0, jnp.roll(sample, 1, axis=1))
    return {'distances': jnp.minimum(r, self.max_position - 1)}

  def apply(
    self, draws: Draws, i: Array, *, lengths: Lengths = None
  ) -> kinds.Positions:
    if self.fractional:
      return self.max_position * _sorted(draws['uniform'], i, lengths)
    if self.mode == 'positions':
      return draws['positions']
    start = base.segment_starts(i)
    return kinds.Distances(
      draws['distances'], start=start, size=self.max_position
    )

  def at_test(self, i: Array, lengths: Lengths) -> kinds.Positions:
    """Returns evenly spaced positions for P = max_position and n tokens.

    They are floor(i (P - 1) / (n - 1)), computed in int32 without overflow, as
    Distances with mode='distances'. With `fractional` they are
    P (i + 1) / (n + 1), float32.
    """
    if self.fractional:
      share = jnp.minimum(i + 1, lengths) / (lengths + 1)
      return self.max_position * share.astype(jnp.float32)
    gaps = jnp.maximum(lengths - 1, 1)
    step, rest = jnp.divmod(self.max_position - 1, gaps)
    positions = i * step + self._quotient(i, rest, gaps)
    positions = jnp.clip(positions, 0, self.max_position - 1)
    return self.apply({self.mode: positions}, i)

  def _quotient(self, i: Array, rest: Array, gaps: Array) -> jax.Array:
    """Returns floor(i rest / gaps) for rest < gaps, by long division.

    The product may exceed 32 bits.
    """
    quotient = remainder = jnp.zeros_like(i)
    for bit in reversed(range(self.max_position.bit_length())):
      remainder = 2 * remainder
      carry = remainder >= gaps
      quotient = 2 * quotient + carry
      remainder = remainder - gaps * carry + rest * (i >> bit & 1)
      carry = remainder >= gaps
      quotient = quotient + carry
      remainder = remainder - gaps * carry
    return quotient

  def _subset(self, rng: jax.Array, i: Array, n: Any, size: int) -> jax.Array:
    """Draws n of 0 .. size - 1 for each segment, sorted, int32 `[B, L]`.

    Sorted distinct x_0 < ... < x_{n-1} below `size` correspond to the multiset
    y_i = x_i - i of m = size - n + 1 values. Polya's urn draws a uniform
    multiset: token i takes a new value with probability m / (m + i) and
    otherwise copies the value of a uniformly chosen earlier token. Each token
    uses one random number, so padding (i >= n) and packing do not change the
    draws.
    """
    start = base.segment_starts(i)
    m = jnp.maximum(size - jnp.maximum(n, 1) + 1, 1)
    urn = base.per_token(
      base.below, rng, i.shape, m + i, same_rows=self.same_rows
    )
    source = jnp.where(urn < m, start + i, start + urn - m)
    for _ in range(max(1, (i.shape[1] - 1).bit_length())):
      source = jnp.take_along_axis(source, source, axis=1)
    value = _sorted(jnp.take_along_axis(urn, source, axis=1), i, n)
    return jnp.clip(value + i, 0, max(size - 1, 0)).astype(jnp.int32)


def _sorted(value: Any, i: Array, n: Any) -> jax.Array:
  """Sorts the values of each segment, and keeps its padding at the end."""
  group = 2 * base.segment_starts(i) + (i >= n)
  _, value = jax.lax.sort((group, value), dimension=1, num_keys=2)
  return value
