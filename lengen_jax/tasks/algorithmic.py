"""Copy, reverse, sort and sum, for models that predict the next token.

Source: Kazemnejad et al. (2023), arXiv:2305.19466, and its code. The score is
`Task.exact_match`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length


@dataclasses.dataclass(frozen=True)
class SymbolTask(base.Task):
  """Base of the tasks on uniform tokens below `symbols`."""

  symbols: int = 100

  family = 'algorithmic'
  source = 'arXiv:2305.19466'
  ranges = {'symbols': '>= 2'}

  @property
  def vocab_in(self) -> int:
    return self.symbols

  vocab_out = vocab_in

  @property
  def chance(self) -> float:
    return 1 / self.symbols

  def largest_role(self, length: int) -> int:
    return length

  def _places(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the places of a row, `[T]`, and that of its separator."""
    return jnp.arange(len(tokens)), jnp.argmax(tokens == self.separator)


class Copy(SymbolTask):
  """The input itself."""

  formula = 'x_1 ... x_n'
  num_roles = 1

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return x

  def roles(self, tokens: jax.Array) -> jax.Array:
    """Returns the roles of position coupling, int32 `[T] -> [1, T]`.

    Token i, from 0, has role i + 1 in input and target, and the separator has
    role 0.

    Source: Cho et al. (2024), arXiv:2405.20671, and its code.
    """
    place_T, separator = self._places(tokens)
    return jnp.where(place_T < separator, place_T + 1, place_T - separator)[
      None
    ]


class Reverse(SymbolTask):
  """The input in reverse order."""

  formula = 'x_n ... x_1'
  num_roles = 1

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return x[jnp.maximum(n - 1 - jnp.arange(x.shape[0]), 0)]

  def roles(self, tokens: jax.Array) -> jax.Array:
    """Returns the roles of position coupling, int32 `[T] -> [1, T]`.

    Token i, from 0, has role i in input and target, and the separator has role
    n.

    Source: Cho et al. (2024), arXiv:2405.20671, and its code.
    """
    place_T, separator = self._places(tokens)
    # The places of the target are mirrored at the separator.
    mirrored_T = jnp.maximum(2 * separator - place_T, -1)
    return jnp.where(place_T < separator, place_T, mirrored_T)[None]


@dataclasses.dataclass(frozen=True)
class Sort(SymbolTask):
  """The input, sorted."""

  symbols: int = 50

  formula = 'sorted x'
  permutation_invariant = True

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return jnp.sort(jnp.where(jnp.arange(x.shape[0]) < n, x, self.symbols))


class Sum(base.Task):
  """The sum of digits from 1 to 9, modulo 10."""

  family = 'algorithmic'
  formula = 'sum x_i mod 10'
  source = 'arXiv:2305.19466'
  vocab_in = 10
  vocab_out = 10
  chance = 0.1
  target_length = 1
  permutation_invariant = True

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    return 1 + draws.symbols(rng, 9, width)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return (jnp.sum(x) % 10)[None]
