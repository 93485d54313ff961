"""Equal-mean positions: evenly spaced up to a random last position."""

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

  The `distribution` of n' is 'exponential' or 'beta': max_position times a
  Beta(alpha, beta) variable with alpha / (alpha + beta) = n / max_position. At
  test time p = i.

  Source: Su (2023), positional robustness.
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
  ranges = {
    'distribution': ('exponential', 'beta'),
    'max_position': 'None or >= 1',
    'alpha': '> 0',
  }

  def __post_init__(self) -> None:
    super().__post_init__()
    if (self.distribution == 'beta') != (self.max_position is not None):
      raise errors.SpecError(
        "equal_mean requires max_position if distribution='beta', and "
        'accepts it only then'
      )

  def draw(self, rng: jax.Array, i: Array, lengths: Lengths) -> Draws:
    n = jnp.maximum(lengths, 1).astype(jnp.float32)
    if self.distribution == 'exponential':
      last = n * base.per_token(jax.random.exponential, rng, i.shape)
    else:
      # The limit keeps the second parameter of the Beta distribution above 0
      # for segments of max_position tokens; n' is then close to max_position.
      odds = jnp.maximum(self.max_position / n - 1, 1e-3)

      def beta(key: jax.Array, odds: jax.Array) -> jax.Array:
        return jax.random.beta(key, self.alpha, self.alpha * odds)

      last = self.max_position * base.per_token(beta, rng, i.shape, odds)
    return {'last': base.per_segment(last, i)}

  def apply(self, draws: Draws, i: Array, *, lengths: Lengths = None) -> Array:
    gaps = jnp.maximum(lengths - 1, 1).astype(jnp.float32)
    return draws['last'] * (i / gaps)
