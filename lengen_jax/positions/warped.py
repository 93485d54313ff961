"""Warped positions: training with the small gaps of interpolated positions."""

from collections.abc import Callable
import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.positions import base, interpolated
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array

PLAIN, HEAD, TAIL = 0, 1, 2


def beta_cdf(a: float, b: float) -> Callable[[Array], jax.Array]:
  """Returns the distribution function of Beta(a, b) on [0, 1]."""
  if not (a.is_integer() and b.is_integer()):
    return lambda x: jax.scipy.special.betainc(a, b, x)
  # The binomial sum is more accurate in float32.
  n = int(a + b) - 1

  def cdf(x: Any) -> Any:
    below = (math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(int(a)))
    return 1 - sum(below)

  return cdf


# Increasing concave maps of [0, 1] onto itself.
SKEWS = {
  'sqrt': jnp.sqrt,
  'log': lambda x: jnp.log1p(9 * x) / math.log(10),
  'sine': lambda x: jnp.sin(math.pi / 2 * x),
}
_NUMBER = r'(\d+\.?\d*|\.\d+)'


def skew_function(name: str) -> Callable[[Array], jax.Array]:
  """Returns a skew function by name: one of SKEWS, or `beta(a,b)`.

  Raises:
    errors.SpecError: the name is unknown, or a or b is not positive.
  """
  if name in SKEWS:
    return SKEWS[name]
  numbers = re.fullmatch(rf'beta\({_NUMBER}, *{_NUMBER}\)', name)
  if numbers and float(numbers[1]) > 0 and float(numbers[2]) > 0:
    return beta_cdf(float(numbers[1]), float(numbers[2]))
  raise errors.SpecError(errors.one_of('skew', name, [*SKEWS, 'beta(a,b)']))


@dataclasses.dataclass(frozen=True)
class HeadTailWarp(base.PositionScheme):
  """Head and tail warping of training segments.

  A segment of n tokens is head-warped with probability `fraction`, p = alpha i,
  and tail-warped with the same probability, p = n f(i / n) with a concave f.
  Otherwise p = i. At test time, dynamic PI by train_length / length.

  Source: Position-index warping, section 4.

  Attributes:
    train_length: longest training length, for the interpolation at test time.
    alpha: factor of head warping, or a tuple of factors to draw from.
    skew: f, as 'sqrt', 'log', 'sine', or 'beta(a,b)' for the distribution
      function of a Beta distribution.
    fraction: probability of each warp.
  """

  train_length: int | None = None
  alpha: float | tuple = (0.4, 0.5, 0.6, 0.7, 0.8)
  skew: str = 'sqrt'
  fraction: float = 0.15

  formula = 'p = alpha i, or n f(i / n), or i, per segment'
  source = 'position-index warping'
  test_time = 'dynamic PI: i min(1, train_length / length)'
  at_decoding = 'the planned length'
  fractional = True
  interpolates = True
  needs_lengths = True
  random = True
  # Warps that are applied with probability `fraction` each.
  modes = (HEAD, TAIL)  # type: tuple[int, ...]

  ranges = {'train_length': '>= 1'}

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self._alphas or not all(0 < a <= 1 for a in self._alphas):
      raise errors.SpecError(
        f'alpha={self.alpha} must be a number in (0, 1] or a tuple of them'
      )
    if not 0 <= self.fraction <= 1 / len(self.modes):
      raise errors.SpecError(
        f'fraction={self.fraction} must be between 0 and '
        f'{1 / len(self.modes):g}'
      )
    skew_function(self.skew)

  @property
  def _alphas(self) -> tuple[float, ...]:
    return self.alpha if isinstance(self.alpha, tuple) else (self.alpha,)

  def draw(self, rng: jax.Array, i: Array, lengths: Lengths) -> Draws:
    two = base.per_token(
      lambda key: jax.random.uniform(key, (2,)), rng, i.shape
    )
    which, choice = jnp.moveaxis(two, -1, 0)
    mode = jnp.full(which.shape, PLAIN)
    for number, warp in enumerate(self.modes):
      low, high = number * self.fraction, (number + 1) * self.fraction
      mode = jnp.where((low <= which) & (which < high), warp, mode)
    alphas = jnp.asarray(self._alphas, jnp.float32)
    index = jnp.minimum(choice * len(self._alphas), len(self._alphas) - 1)
    alpha = alphas[index.astype(jnp.int32)]
    return {
      'mode': base.per_segment(mode, i),
      'alpha': base.per_segment(alpha, i),
    }

  def apply(self, draws: Draws, i: Array, *, lengths: Lengths = None) -> Array:
    i = i.astype(jnp.float32)
    # The clip keeps f within its domain at padding.
    n = jnp.maximum(lengths, 1).astype(jnp.float32)
    tail = n * skew_function(self.skew)(jnp.clip(i / n, 0.0, 1.0))
    head = draws['alpha'] * i
    plain_or_tail = jnp.where(draws['mode'] == TAIL, tail, i)
    return jnp.where(draws['mode'] == HEAD, head, plain_or_tail)

  def at_test(self, i: Array, lengths: Lengths) -> Array:
    factor = interpolated.ratio(self.train_length, lengths)
    return i.astype(jnp.float32) * factor


@dataclasses.dataclass(frozen=True)
class HeadWarp(HeadTailWarp):
  """Head warping only; see HeadTailWarp."""

  fraction: float = 0.3

  formula = 'p = alpha i or i, per segment'
  modes = (HEAD,)


@dataclasses.dataclass(frozen=True)
class TailWarp(HeadTailWarp):
  """Tail warping only; see HeadTailWarp."""

  fraction: float = 0.3

  formula = 'p = n f(i / n) or i, per segment'
  modes = (TAIL,)
