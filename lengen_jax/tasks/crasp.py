"""The eight tasks that Huang et al. (2024) relate to programs of C-RASP.

A row is [bos | body | sep | answer | eos]. The input is bos and the body, the
target the answer and eos. The score is `Task.exact_match`. The paper trains at
lengths up to 50 and tests at lengths up to 150.

Tokens: padding 0, bos 1, sep 2, eos 3, and symbols from 4 on. In the paper's
code, special tokens follow the symbols.

Source: Huang et al. (2024), arXiv:2410.02140, and its code.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length
from lengen_jax.tasks.chomsky import cs

BOS, SEP, EOS, SYMBOL = 1, 2, 3, 4
ZERO, ONE = SYMBOL, SYMBOL + 1
EVEN, ODD = SYMBOL + 2, SYMBOL + 3
PLUS, EQUALS = SYMBOL + 2, SYMBOL + 3


class CraspTask(base.Task):
  """Base of the eight tasks; the nominal length is that of the body.

  Targets are UNSCORED after eos.
  """

  family = 'crasp'
  source = 'arXiv:2410.02140'
  separator = SEP
  # Number of symbols.
  symbols = 2

  @property
  def vocab_in(self) -> int:
    return SYMBOL + self.symbols

  vocab_out = vocab_in

  @property
  def chance(self) -> float:
    return 1 / self.symbols

  def input_length(self, length: Length) -> Length:
    return 1 + length

  def body(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    """Returns random symbols, from 0 on, int32 `[width]`; see `draw`."""
    return draws.symbols(rng, self.symbols, width)

  def _is_question(self, x: np.ndarray) -> bool:
    return x[:1].tolist() == [BOS] and bool((x[1:] >= SYMBOL).all())

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    body = SYMBOL + self.body(rng, n, width - 1)
    return jnp.concatenate([jnp.array([BOS]), body])


class BinMajority(CraspTask):
  """The more frequent bit; bits are never tied.

  The number of zeros is uniform, so repeating any one bit is right in about
  76 % of the inputs of length 50.
  """

  formula = 'the more frequent bit'
  permutation_invariant = True
  # Number of strings.
  period = 1

  @property
  def min_length(self) -> int:
    return self.period

  @property
  def target_length(self) -> int:
    return self.period + 1

  def input_length(self, length: Length) -> Length:
    return 1 + length // self.period * self.period

  def _is_question(self, x: np.ndarray) -> bool:
    is_whole = len(x) % self.period == 1 % self.period
    return super()._is_question(x) and is_whole

  def body(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    n, width = n // self.period, width // self.period

    def string(rng: jax.Array) -> jax.Array:
      count_rng, order_rng = jax.random.split(rng)
      # Of the counts 0 to n, n / 2 is left out.
      count = draws.below(jax.random.bits(count_rng), n + n % 2)
      count += (n % 2 == 0) & (count >= n // 2)
      return draws.shuffled(order_rng, n, width) >= count

    strings_PxW = jax.vmap(string)(jax.random.split(rng, self.period))
    return strings_PxW.T.ravel().astype(jnp.int32)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    string = (jnp.arange(x.shape[0]) - 1) % self.period
    votes = (x == ONE).astype(jnp.int32) - (x == ZERO)
    total = jnp.zeros(self.period, jnp.int32).at[string].add(votes)
    return jnp.append(jnp.where(total >= 0, ONE, ZERO), EOS)


class BinMajorityInterleave(BinMajority):
  """The more frequent bit of each of three interleaved strings of equal length.

  The body has n tokens, rounded down to a multiple of three; the code of the
  paper rounds to the nearest one within the range of lengths.
  """

  formula = 'the more frequent bits of x[0::3], x[1::3] and x[2::3]'
  permutation_invariant = False
  period = 3


class Majority(CraspTask):
  """The most frequent letter. Letters are uniform, and the winner is unique."""

  formula = 'the most frequent letter'
  symbols = 26
  target_length = 2
  permutation_invariant = True

  def body(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    def letters(attempt: jax.Array) -> jax.Array:
      key = jax.random.fold_in(rng, attempt)
      return draws.symbols(key, self.symbols, width)

    def is_tied(attempt: jax.Array) -> jax.Array:
      counts = jnp.zeros(self.symbols, jnp.int32)
      counts = counts.at[letters(attempt)].add(jnp.arange(width) < n)
      first, second = jax.lax.top_k(counts, 2)[0]
      return first == second

    return letters(jax.lax.while_loop(is_tied, lambda i: i + 1, jnp.int32(0)))

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    counts = jnp.zeros(self.vocab_in, jnp.int32).at[x].add(x >= SYMBOL)
    return jnp.stack([jnp.argmax(counts), jnp.int32(EOS)])


class RepeatCopy(CraspTask):
  """The body itself; its two symbols are uniform."""

  formula = 'x_1 ... x_n'

  def output_length(self, length: Length) -> Length:
    return length + 1

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return _ended(jnp.roll(x, -1), jnp.sum(x >= SYMBOL))


@dataclasses.dataclass(frozen=True)
class UniqueCopy(RepeatCopy):
  """The body itself, in which no symbol repeats.

  Attributes:
    symbols: number of symbols, the maximum length.
  """

  symbols: int = 150

  formula = 'x_1 ... x_n, all distinct'
  ranges = {'symbols': '>= 2'}

  def input_length(self, length: Length) -> Length:
    """Returns T_in at a nominal length, an int or an int32 array.

    Raises:
      errors.LengthError: an int is greater than the number of symbols.
    """
    if isinstance(length, int) and length > self.symbols:
      raise errors.LengthError(
        f'length={length} exceeds the {self.symbols} symbols of {self}, of '
        f'which none repeats; set symbols={length} or more'
      )
    return super().input_length(length)

  def _is_question(self, x: np.ndarray) -> bool:
    return super()._is_question(x) and len({*x.tolist()}) == len(x)

  def body(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    return draws.distinct(rng, self.symbols, width)


class Sort(UniqueCopy):
  """The body, in which no symbol repeats, sorted."""

  formula = 'sorted x'
  permutation_invariant = True

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    is_symbol = x >= SYMBOL
    ordered = jnp.sort(jnp.where(is_symbol, x, self.vocab_in))
    return _ended(ordered, jnp.sum(is_symbol))


class Parity(CraspTask):
  """Whether the number of ones is even or odd; that number is uniform."""

  formula = 'e or o: sum x_i mod 2'
  symbols = 4
  chance = 0.5
  min_length = 0
  target_length = 2
  permutation_invariant = True

  def _is_question(self, x: np.ndarray) -> bool:
    return super()._is_question(x) and bool((x <= ONE).all())

  def body(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    count_rng, order_rng = jax.random.split(rng)
    count = draws.below(jax.random.bits(count_rng), n + 1)
    is_one = draws.shuffled(order_rng, n, width) < count
    return is_one.astype(jnp.int32)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    is_odd = jnp.sum(x == ONE) % 2 == 1
    return jnp.stack([jnp.where(is_odd, ODD, EVEN), jnp.int32(EOS)])


class Addition(CraspTask):
  """The sum of two binary numbers, most significant bit first.

  The nominal length counts both numbers, + and =, which takes the place of sep.
  The length of the first number is uniform. The first bit of a number is 1,
  unless it is the only one.
  """

  formula = 'a + b'
  symbols = 4
  separator = EQUALS
  chance = 0.5
  min_length = 4

  def input_length(self, length: Length) -> Length:
    return length

  def output_length(self, length: Length) -> Length:
    return length - 1

  def _is_question(self, x: np.ndarray) -> bool:
    places = np.flatnonzero(x == PLUS).tolist()
    is_sum = len(places) == 1 and 1 < places[0] < len(x) - 1
    return super()._is_question(x) and is_sum and EQUALS not in x

  def body(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    bits, once = draws.column_bits(rng, width, (2,))
    column = jnp.arange(width)
    size = 1 + draws.below(once[0], n - 3)
    leads = (column == 0) & (size > 1)
    leads |= (column == size + 1) & (size < n - 3)
    x = jnp.where(leads, 1, draws.below(bits, 2))
    return jnp.where(column == size, PLUS - SYMBOL, x)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    column = jnp.arange(x.shape[0])
    plus = jnp.argmax(x == PLUS)
    end = jnp.where(column < plus, plus, jnp.sum(x > 0))
    place = jnp.where((x == ZERO) | (x == ONE), end - 1 - column, x.shape[0])
    sums = jnp.zeros_like(x).at[place].add(x == ONE, mode='drop')
    bits = cs.carry(sums)
    # A number has at least one bit.
    size = 1 + jnp.max(jnp.where(bits == 1, column, 0))
    high_first = jnp.roll(bits[::-1], size)
    return _ended(ZERO + high_first[:-1], size)


def _ended(answer: jax.Array, size: jax.Array) -> jax.Array:
  """Returns the first `size` tokens, then eos, then UNSCORED."""
  place = jnp.arange(answer.shape[0])
  end = jnp.where(place == size, EOS, base.UNSCORED)
  return jnp.where(place < size, answer, end)
