"""Context-sensitive tasks, solvable by a Turing machine with bounded tape.

Numbers are vectors of bits of any size, so that no integer overflows.

Source: Delétang et al. (2023), arXiv:2207.02098, and its code.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import chomsky, draws
from lengen_jax.tasks.base import Length

SEPARATOR = 2


class DuplicateString(chomsky.ChomskyTask):
  """The input bits, repeated once."""

  formula = 'w w'

  def output_length(self, length: Length) -> Length:
    return 2 * length

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return x[jnp.arange(2 * x.shape[0]) % n]


class MissingDuplicateString(chomsky.ChomskyTask):
  """The bit replaced by token 2 in a string that occurs twice.

  Inputs of odd length end with token 3. At length 1, input and target are 1.
  """

  formula = 'the hidden bit of w w'
  vocab_in = 4
  target_length = 1

  HIDDEN, FILL = 2, 3

  def _is_question(self, x: np.ndarray) -> bool:
    if len(x) == 1:
      return x.tolist() == [1]
    half = max(len(x) // 2, 1)
    w = x[: 2 * half]
    differs = w[:half] != w[half:]
    return bool(
      (w == self.HIDDEN).sum() == differs.sum() == 1
      and (w != self.FILL).all()
      and (x[2 * half :] == self.FILL).all()
    )

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    bits, once = draws.column_bits(rng, width, (2,))
    half = jnp.maximum(n // 2, 1)
    column = jnp.arange(width)
    w = draws.below(bits, 2)
    hidden = draws.below(once[0], 2 * half)
    x = jnp.where(column == hidden, self.HIDDEN, w[column % half])
    x = jnp.where(column == 2 * half, self.FILL, x)
    return jnp.where(n == 1, 1, x)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    half = jnp.maximum(n // 2, 1)
    twin = (jnp.argmax(x == self.HIDDEN) + half) % (2 * half)
    return jnp.where(n == 1, 1, x[twin])[None]


class OddsFirst(chomsky.ChomskyTask):
  """The bits at odd indices, counted from 0, then those at even ones."""

  formula = 'x[1::2] x[0::2]'

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    column = jnp.arange(x.shape[0])
    odd = 2 * column + 1
    even = 2 * (column - n // 2)
    return x[jnp.clip(jnp.where(odd < n, odd, even), 0, x.shape[0] - 1)]


class BinaryTask(chomsky.ChomskyTask):
  """Base of the tasks on two positive numbers, lowest bit first.

  Token 2 separates the numbers and ends the target. Below length 3, the input
  is a single number, from 0 to 2^n - 2.
  """

  vocab_in = 3
  vocab_out = 3
  terminator = SEPARATOR

  # Shorter ones have no separator.
  _example_length = 5

  def _is_question(self, x: np.ndarray) -> bool:
    n, places = len(x), np.flatnonzero(x == SEPARATOR).tolist()
    if n < 3 and not places:
      return True
    return len(places) == 1 and 0 < places[0] < n - 1

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    bits, once = draws.column_bits(rng, width, (2,))
    column = jnp.arange(width)
    # The length of the first number is uniform.
    size = 1 + draws.below(once[0], jnp.maximum(n - 2, 1))
    uniform = draws.uniform(bits)
    a = positive(uniform, jnp.where(column < size, column, -1))
    b = positive(uniform, jnp.where(column < n, column - size - 1, -1))
    two = jnp.where(column == size, SEPARATOR, a + b)
    number = draws.below(once[0], 2 ** jnp.minimum(n, 2) - 1)
    return jnp.where(n < 3, (number >> jnp.minimum(column, 31)) & 1, two)


class BinaryAddition(BinaryTask):
  """Sum of two numbers, which may have leading zeros."""

  formula = 'a + b, then 2'

  def output_length(self, length: Length) -> Length:
    return length + 1

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    a, b = operands(x, n)
    total = jnp.concatenate([a + b, jnp.zeros(1, jnp.int32)])
    return terminate(carry(total), self.output_length(n))


class BinaryMultiplication(BinaryTask):
  """Product of two numbers; it is empty at length 1 and 0 at length 2."""

  formula = 'a b, then 2'

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    a, b = operands(x, n)

    def add(total: jax.Array, bit: jax.Array) -> tuple[jax.Array, None]:
      return jnp.roll(total, 1).at[0].set(0) + bit * b, None

    # Sums of bits before carrying fit an int32.
    product, _ = jax.lax.scan(add, jnp.zeros_like(b), a, reverse=True)
    return terminate(carry(product), self.output_length(n))


class ComputeSqrt(chomsky.ChomskyTask):
  """Integer part of the square root; numbers have their highest bit first."""

  formula = 'floor(sqrt(x))'

  def output_length(self, length: Length) -> Length:
    return (length + 1) // 2

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    uniform = draws.uniform(draws.column_bits(rng, width))
    return positive(uniform, n - 1 - jnp.arange(width))

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    # Digit by digit: with the root Q of what was read and the rest R, the next
    # two bits make R' = 4 R + bits, and the next bit of the root is 1 if R' is
    # at least 4 Q + 1, which then is subtracted.
    steps = self.output_length(x.shape[0])
    low = 2 * jnp.arange(steps) + 1 - n % 2
    high_bit = jnp.where(low > 0, x[jnp.maximum(low - 1, 0)], 0)
    low_bit = x[jnp.minimum(low, x.shape[0] - 1)]
    place = jnp.arange(steps + 2, dtype=jnp.int32)

    def digit(state: Any, bits: Any) -> tuple[Any, jax.Array]:
      rest, root = state
      high, low = bits
      rest = jnp.concatenate([jnp.stack([low, high]), rest[:-2]])
      tried = jnp.concatenate([jnp.array([1, 0], jnp.int32), root[:-2]])
      # A difference is negative up to some place if it is so at the highest
      # place that differs.
      differs = 2 * (place + 1) + (rest < tried)
      borrow = jax.lax.cummax(jnp.where(rest != tried, differs, 0)) % 2
      bit = 1 - borrow[-1]
      less = rest ^ tried ^ jnp.roll(borrow, 1).at[0].set(0)
      root = jnp.roll(root, 1).at[0].set(bit)
      return (jnp.where(bit == 1, less, rest), root), bit

    zero = jnp.zeros(steps + 2, jnp.int32)
    return jax.lax.scan(digit, (zero, zero), (high_bit, low_bit))[1]


class BucketSort(chomsky.ChomskyTask):
  """The tokens, 0 to 4, sorted."""

  formula = 'sorted x'
  vocab_in = 5
  vocab_out = 5
  chance = 0.2
  permutation_invariant = True

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return jnp.sort(jnp.where(jnp.arange(x.shape[0]) < n, x, self.vocab_in))


def positive(uniform: jax.Array, place: jax.Array) -> jax.Array:
  """Returns the bits of a uniform positive number, int32 `[W]`.

  From the highest place down, if all bits so far are 0, the bit at place k is 1
  with probability 2^k / (2^(k+1) - 1). Bits at negative places are 0.
  """
  one = uniform < 0.5 / (1 - jnp.exp2(-1.0 - jnp.maximum(place, 0)))
  highest = jnp.max(jnp.where(one & (place >= 0), place, -1))
  bits = (place == highest) | ((place < highest) & (uniform < 0.5))
  return jnp.where(place >= 0, bits, 0).astype(jnp.int32)


def operands(x: jax.Array, n: Length) -> tuple[jax.Array, jax.Array]:
  """Returns both numbers of an input of n tokens; a missing second one is 0."""
  column = jnp.arange(x.shape[0])
  is_separator = x == SEPARATOR
  size = jnp.where(is_separator.any(), jnp.argmax(is_separator), n)
  a = jnp.where(column < size, x, 0)
  index = size + 1 + column
  return a, jnp.where(index < n, x[jnp.minimum(index, x.shape[0] - 1)], 0)


def carry(sums: jax.Array) -> jax.Array:
  """Returns the bits of sum_i sums_i 2^i modulo 2^W, int32 `[W]`."""

  def step(carried: jax.Array, digit: jax.Array) -> tuple[jax.Array, jax.Array]:
    digit = digit + carried
    return digit >> 1, digit & 1

  return jax.lax.scan(step, jnp.zeros_like(sums[0]), sums)[1]


def terminate(bits: jax.Array, length: Length) -> jax.Array:
  """Returns `bits` with the terminator after the highest 1.

  The number 0 has one bit, unless `length` is 1.
  """
  place = jnp.arange(bits.shape[0])
  highest = jnp.max(jnp.where(bits == 1, place, 0))
  end = jnp.minimum(highest + 1, length - 1)
  return jnp.where(place == end, SEPARATOR, jnp.where(place < end, bits, 0))
