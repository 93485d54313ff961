"""Equal-mean positions: evenly spaced up to a random last position.

The last position has the segment length as its mean, so positions in training
equal those at test time on average.
"""

import dataclasses

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.positions import base
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class EqualMean(base.PositionScheme):
  """p = n' i / (n - 1) for a segment of n tokens, n' random with mean n.

  n' is exponential, or max_position times a Beta(alpha, beta) variable with
  alpha / (alpha + beta) = n / max_position. At test time p = i.

  Source: Su (2023), positional robustness.

  Attributes:
    distribution: of n', 'exponential' or 'beta'.
    max_position: largest n', for 'beta'.
    alpha: first parameter of the Beta distribution. The mean determines beta.
  """

  distribution: str = 'exponential'
  max_position: int | None = None
  alpha: float = 1.0

  formula = "p = n' i / (n - 1), n' random with mean n"
  source = 'Su (2023)'
  test_time = 'i'
  fractional = True
  needs_lengths = True
  random = True

  def __post_init__(self) -> None:
    name, valid = self.distribution, ('exponential', 'beta')
    if name not in valid:
      raise errors.SpecError(
        errors.one_of('distribution of equal_mean', name, valid)
      )
    if (name == 'beta') != (self.max_position is not None):
      raise errors.SpecError(
        "equal_mean requires max_position if distribution='beta', and "
        'accepts it only then'
      )
    if self.max_position is not None and self.max_position < 1:
      raise errors.SpecError(
        f'max_position of equal_mean must be at least 1, got '
        f'{self.max_position}'
      )
    if self.alpha <= 0:
      raise errors.SpecError(f'alpha must be positive, got {self.alpha}')

  def draw(
    self, rng: jax.Array, segment_positions: Array, lengths: Lengths
  ) -> Draws:
    keys = base.token_keys(rng, segment_positions.shape)
    n = jnp.maximum(lengths, 1).astype(jnp.float32)
    if self.distribution == 'exponential':
      last = n * base.per_token(jax.random.exponential, keys)
    else:
      # n' = max_position for a segment of max_position tokens.
      odds = jnp.maximum(self.max_position / n - 1, 1e-3)
      last = self.max_position * base.per_token(
        lambda key, o: jax.random.beta(key, self.alpha, self.alpha * o),
        keys,
        odds,
      )
    return {'last': base.per_segment(last, segment_positions)}

  def apply(
    self, draws: Draws, segment_positions: Array, *, lengths: Lengths = None
  ) -> Array:
    gaps = jnp.maximum(lengths - 1, 1).astype(jnp.float32)
    return draws['last'] * (segment_positions / gaps)
