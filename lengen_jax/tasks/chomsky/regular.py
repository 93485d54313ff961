"""Regular tasks, solvable by a finite automaton.

Source: Delétang et al. (2023), arXiv:2207.02098, and its code.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import chomsky, draws
from lengen_jax.tasks.base import Length

MODULUS = 5
PLUS, MINUS, TIMES = 5, 6, 7


class RegularTask(chomsky.ChomskyTask):
  """Base of the regular tasks; the target is one class."""

  target_length = 1


class EvenPairs(RegularTask):
  """Whether the number of pairs 01 and 10 is odd: first and last bit differ."""

  formula = 'x_1 xor x_n'

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return (x[0] ^ x[n - 1])[None]


class ModularArithmetic(RegularTask):
  """Value of a chain of digits and + - *, modulo 5; products before sums.

  Tokens: 0 to 4 are digits, then + - *; 8 is never drawn. Inputs of an even
  nominal length have one token less.
  """

  formula = '(d_1 op d_2 op ...) mod 5'
  vocab_in = 9
  vocab_out = MODULUS
  chance = 1 / MODULUS

  def input_length(self, length: Length) -> Length:
    return length - 1 + length % 2

  def _is_question(self, x: np.ndarray) -> bool:
    digits, operators = x[::2], x[1::2]
    return bool(
      len(digits) > len(operators)
      and (digits < MODULUS).all()
      and ((operators >= PLUS) & (operators <= TIMES)).all()
    )

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    bits = draws.column_bits(rng, width)
    is_digit = jnp.arange(width) % 2 == 0
    operator = PLUS + draws.below(bits, 3)
    return jnp.where(is_digit, draws.below(bits, MODULUS), operator)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    def read(state: Any, pair: Any) -> tuple[Any, None]:
      """Adds the last term to the total, or multiplies it."""
      total, term = state
      op, digit = pair
      starts = (op == PLUS) | (op == MINUS)
      total = jnp.where(starts, (total + term) % MODULUS, total)
      signed = jnp.where(op == MINUS, -digit, digit)
      product = jnp.where(op == TIMES, (term * digit) % MODULUS, term)
      return (total, jnp.where(starts, signed, product)), None

    pairs = x[1:-1:2], x[2::2]
    (total, term), _ = jax.lax.scan(read, (jnp.zeros_like(x[0]), x[0]), pairs)
    return ((total + term) % MODULUS)[None]


class ParityCheck(RegularTask):
  """Whether the number of ones is odd."""

  formula = 'sum x_i mod 2'
  permutation_invariant = True

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return (jnp.sum(x) % 2)[None]


class CycleNavigation(RegularTask):
  """Final state of a walk on a cycle of 5; tokens 0, 1, 2 step -1, 0, +1."""

  formula = 'sum (x_i - 1) mod 5'
  vocab_in = 3
  vocab_out = MODULUS
  chance = 1 / MODULUS
  permutation_invariant = True

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return ((jnp.sum(x) - n) % MODULUS)[None]
