"""Equal-mean positions: evenly spaced up to a random end.

Random positions are stretched on average; here the mean of the end is the
length itself, so that training and testing agree in the mean.
"""

from collections.abc import Mapping
import dataclasses

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.hints import Array
from lengen_jax.positions import base


@dataclasses.dataclass(frozen=True)
class EqualMean(base.PositionScheme):
  """p = n' i / (n - 1) for a segment of n tokens, n' random with mean n.

  n' is exponential, or max_position Beta(alpha, beta) with
  alpha / (alpha + beta) = n / max_position. Plain at test time.

  Source: Su (2023), positional robustness.

  Attributes:
    distribution: 'exponential' or 'beta', of n'.
    max_position: largest n', for 'beta'.
    alpha: of the Beta distribution; beta follows from the mean.
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
    if self.distribution not in ('exponential', 'beta'):
      raise errors.SpecError(
        errors.one_of(
          'distribution of equal_mean',
          self.distribution,
          ['exponential', 'beta'],
        )
      )
    if (self.distribution == 'beta') != (self.max_position is not None):
      raise errors.SpecError(
        "equal_mean takes max_position with distribution='beta' and only then"
      )
    if self.max_position is not None and self.max_position < 1:
      raise errors.SpecError(
        f'max_position of equal_mean must be at least 1, got '
        f'{self.max_position}'
      )
    if self.alpha <= 0:
      raise errors.SpecError(f'alpha must be positive, got {self.alpha}')

  def draw(
    self, rng: jax.Array, segment_positions: Array, lengths: int | Array | None
  ) -> dict[str, jax.Array]:
    keys = base.token_keys(rng, segment_positions.shape)
    n = jnp.maximum(lengths, 1).astype(jnp.float32)
    if self.distribution == 'exponential':
      last = n * jax.vmap(jax.vmap(jax.random.exponential))(keys)
    else:
      # A segment as long as the range leaves no room: n' = max_position.
      odds = jnp.maximum(self.max_position / n - 1, 1e-3)
      last = self.max_position * jax.vmap(
        jax.vmap(
          lambda key, o: jax.random.beta(key, self.alpha, self.alpha * o)
        )
      )(keys, odds)
    return {'last': base.per_segment(last, segment_positions)}

  def apply(
    self,
    draws: Mapping[str, Array],
    segment_positions: Array,
    *,
    lengths: int | Array | None = None,
  ) -> Array:
    gaps = jnp.maximum(lengths - 1, 1).astype(jnp.float32)
    return draws['last'] * (segment_positions / gaps)

  def at_test(
    self, segment_positions: Array, lengths: int | Array | None
  ) -> Array:
    del lengths
    return segment_positions.astype(jnp.float32)
