"""Base class of the tasks on several numbers: questions and their answers.

Shapes: M operands, P numbers of an answer, N numbers, W tokens of an input, T
tokens of a row, D digits. Arrays of digits start with the least significant
one.
"""

import dataclasses
import itertools
import re
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import arithmetic, draws
from lengen_jax.tasks.arithmetic import symbols
from lengen_jax.tasks.base import Length, UNSCORED
from lengen_jax.types import Array

# Numbers of digits: of type int, or traced.
Sizes = list[Any]


@dataclasses.dataclass(frozen=True)
class Expression(arithmetic.ArithmeticTask):
  """Base of the tasks with an operator between numbers.

  The nominal length is the number of digits of an operand. The keys express the
  formats of the papers:

  - Cho et al. (2024), arXiv:2405.20671: `format='reversed', pad=True,
    lengths='uniform'`.
  - Zhou et al. (2024), arXiv:2402.09371: `format='reversed', pad=True,
    index_hints=True`.
  - McLeish et al. (2024), arXiv:2405.17399: `format='reversed',
    reverse_operands=True`.

  Attributes:
    format: order of the digits of the answer, 'plain' (most significant first)
      or 'reversed'.
    reverse_operands: whether the least significant digit of an operand comes
      first. None for True if the format is 'reversed' and there are index
      hints, so that hints have the same order in all numbers.
    pad: whether leading zeros extend operands to the longest one, and the
      answer to the longest answer that operands of these lengths have.
    lengths: 'equal' for operands of n digits, 'uniform' for 1 to n digits. The
      first digit of a number is not 0, unless it is the only one.
    second_digits: number of digits of the second operand; None for `lengths`.
  """

  format: str = 'plain'
  reverse_operands: bool | None = None
  pad: bool = False
  lengths: str = 'equal'
  second_digits: int | None = None

  # The operator, and the number of operands.
  sign: ClassVar[int]
  operands = 2
  chance = 0.1
  num_roles = 1
  ranges = {
    'format': ('plain', 'reversed'),
    'lengths': ('equal', 'uniform'),
    'second_digits': 'None or >= 1',
  }

  @property
  def equal_lengths(self) -> bool:
    return self.lengths == 'equal'

  def columns(self, numbers_MxD: jax.Array) -> jax.Array:
    """Returns the numbers of an answer before carrying, int32 `[P, D]`."""
    raise NotImplementedError

  def answer_digits(self, sizes: Sizes) -> Any:
    """Returns the maximum number of digits of a result for given sizes."""
    raise NotImplementedError

  def answer_length(self, sizes: Sizes) -> Any:
    """Returns the maximum number of tokens of an answer for given sizes."""
    return self.answer_digits(sizes) * self._per_digit

  def padded_answer(self, sizes: Sizes, count: int) -> Any:
    """Returns the number of digits of padded numbers, one for all or `[P]`.

    `sizes` are those of padded operands, and `count` is P.
    """
    return self.answer_digits(sizes)

  def marks(self, sizes: Sizes, count: int) -> jax.Array:
    """Returns the token before each number of an answer, int32 `[P]`.

    0 stands for no token, UNSCORED for a number that the answer does not have.
    For the arguments see `padded_answer`.
    """
    return jnp.zeros(count, jnp.int32)

  def padded_operands(self, sizes: Sizes) -> Sizes:
    """Returns the sizes of padded operands."""
    return [most(sizes)] * self.operands

  def ordered(
    self, numbers_MxD: jax.Array, sizes_M: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns numbers and sizes of operands in the order of the question."""
    return numbers_MxD, sizes_M

  @property
  def form(self) -> str:
    digit = '[a-z]+[0-9]' if self.index_hints else '[0-9]'
    sign = '[*x]'
    if self.sign != symbols.TIMES:
      sign = re.escape(symbols.text([self.sign]))
    return sign.join([f'({digit})+'] * self.operands)

  @property
  def _reverses_operands(self) -> bool:
    if self.reverse_operands is None:
      return self.format == 'reversed' and self.index_hints
    return self.reverse_operands

  @property
  def _per_digit(self) -> int:
    """Number of tokens of a digit."""
    return 2 if self.index_hints else 1

  def _sizes(self, length: Length) -> Sizes:
    """Returns the most digits of each operand, without padding."""
    sizes = [length] * self.operands
    if self.second_digits is not None:
      sizes[1] = self.second_digits
    return sizes

  def input_length(self, length: Length) -> Length:
    sizes = self._sizes(length)
    if self.pad:
      sizes = self.padded_operands(sizes)
    return sum(sizes) * self._per_digit + self.operands - 1

  def output_length(self, length: Length) -> Length:
    return self.answer_length(self._sizes(length)) + 1

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    count = self.operands
    bits = draws.column_bits(rng, width, (2 * count + 1,))
    sizes = self._sizes(n)
    if self.lengths == 'uniform':
      sizes = [
        size if size is self.second_digits else 1 + draws.below(one[0], size)
        for size, one in zip(sizes, bits[count:-1], strict=True)
      ]
    sizes_M = jnp.stack([jnp.asarray(size) for size in sizes])
    numbers_MxW, sizes_M = self.ordered(
      _numbers(bits[:count], sizes_M), sizes_M
    )
    sizes = list(sizes_M)
    if self.pad:
      sizes = self.padded_operands(sizes)
    spare = symbols.HINTS - self.answer_digits(self._sizes(n))
    hint = draws.below(bits[-1, 0], jnp.maximum(spare, 0) + 1)
    signs_M = jnp.array([0] + [self.sign] * (self.operands - 1))
    sizes_M = jnp.stack([jnp.asarray(size) for size in sizes])
    x, _ = self._write(
      jnp.arange(width),
      numbers_MxW,
      sizes_M,
      signs_M,
      self._reverses_operands,
      hint,
    )
    return x

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    width = x.shape[0]
    padded_length = next(
      length
      for length in itertools.count(self.min_length)
      if self.input_length(length) >= width
    )
    numbers_MxD, sizes_M = self._read(
      x, self.answer_digits(self._sizes(padded_length))
    )
    sizes = list(sizes_M)
    digits_PxD = jax.vmap(carry)(self.columns(numbers_MxD))
    count = len(digits_PxD)
    sizes_P = significant(digits_PxD)
    if self.pad:
      padded = self.padded_answer(sizes, count)
      sizes_P = jnp.broadcast_to(padded, count)
    hint = x[jnp.argmax(x >= symbols.HINT)] - symbols.HINT
    place = jnp.arange(self.output_length(padded_length))
    y, end = self._write(
      place,
      digits_PxD,
      sizes_P,
      self.marks(sizes, count),
      self.format == 'reversed',
      hint,
    )
    return jnp.where(
      place < end, y, jnp.where(place == end, symbols.END, UNSCORED)
    )

  def _write(
    self,
    place: jax.Array,
    digits_NxD: jax.Array,
    sizes_N: jax.Array,
    marks_N: jax.Array,
    reverses: bool,
    hint: jax.Array,
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the tokens at some places of numbers in a row, 0 after them.

    For the marks before the numbers see `marks`. Hints start at number `hint`,
    in the order of the digits of operands. The second value is the number of
    tokens.
    """
    has_mark_N = marks_N > 0
    lengths_N = jnp.where(
      marks_N >= 0, sizes_N * self._per_digit + has_mark_N, 0
    )
    ends_N = jnp.cumsum(lengths_N)
    number = jnp.sum(ends_N[None] <= place[:, None], axis=1)
    number = jnp.minimum(number, len(sizes_N) - 1)
    size, mark = sizes_N[number], marks_N[number]
    place_of_number = place - (ends_N - lengths_N + has_mark_N)[number]
    count = place_of_number // self._per_digit
    mirrored = size - 1 - count
    significance = count if reverses else mirrored
    known = (significance >= 0) & (significance < digits_NxD.shape[1])
    token = symbols.ZERO + jnp.where(known, digits_NxD[number, significance], 0)
    if self.index_hints:
      step = count if reverses == self._reverses_operands else mirrored
      hints = symbols.HINT + (hint + step) % symbols.HINTS
      token = jnp.where(place_of_number % 2 == 0, hints, token)
    token = jnp.where(place_of_number < 0, mark, token)
    return jnp.where(place < ends_N[-1], token, symbols.PADDING), ends_N[-1]

  def _read(self, x: jax.Array, digits: int) -> tuple[jax.Array, jax.Array]:
    """Returns the numbers of an input, `[M, digits]`, and their sizes `[M]`."""
    number_W, is_digit_W = jnp.cumsum(x == self.sign), symbols.is_digit(x)
    significance_W, _ = self._significance(x)
    numbers_MxD = jnp.zeros((self.operands, digits), jnp.int32)
    numbers_MxD = numbers_MxD.at[number_W, significance_W].add(
      jnp.where(is_digit_W, x - symbols.ZERO, 0), mode='drop'
    )
    is_own_MxW = number_W[None] == jnp.arange(self.operands)[:, None]
    return numbers_MxD, jnp.sum(is_own_MxW & is_digit_W[None], axis=1)

  def _significance(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the significance of the digits of a row, int32 `[T]`.

    The second value is the number of digits after the separator.
    """
    is_mark = symbols.is_mark(tokens)
    number = jnp.cumsum(is_mark)
    seen = jnp.cumsum(symbols.is_digit(tokens))
    before = jax.lax.cummax(jnp.where(is_mark, seen, 0))
    last = jnp.zeros_like(seen).at[number].max(seen, mode='drop')[number]
    in_answer = jnp.cumsum(tokens == self.separator) > 0
    reverses = jnp.where(
      in_answer, self.format == 'reversed', self._reverses_operands
    )
    significance = jnp.where(reverses, seen - before - 1, last - seen)
    return significance, jnp.sum(symbols.is_digit(tokens) & in_answer)

  def _places(self, tokens: jax.Array) -> jax.Array:
    """Returns j + 1 at digits of significance j, 0 at symbols and -1 elsewhere.

    Shape int32 `[T]`.
    """
    significance, _ = self._significance(tokens)
    place = jnp.where(symbols.is_digit(tokens), significance + 1, -1)
    return jnp.where(symbols.is_mark(tokens), 0, place)

  def roles(self, tokens: jax.Array) -> jax.Array:
    """Returns the roles of position coupling, int32 `[T] -> [1, T]`.

    The digit of significance j has role j + 1 in all numbers, and signs have
    role 0. The separator before an answer in the plain format has the role that
    precedes those of the answer, in descending order.

    Source: Cho et al. (2024), arXiv:2405.20671, and its code.
    """
    _, count = self._significance(tokens)
    equals = 0 if self.format == 'reversed' else count + 1
    role = self._places(tokens)
    return jnp.where(tokens == self.separator, equals, role)[None]

  def largest_role(self, length: int) -> int:
    digits = int(self.answer_digits(self._sizes(length)))
    return digits if self.format == 'reversed' else digits + 1

  def operand_digits(self, inputs: Array) -> jax.Array:
    """Returns the digits of the operands of inputs `[B, W]`, int32 `[B, M]`.

    Leading zeros do not count, and the number 0 has one digit.
    """
    inputs = jnp.asarray(inputs)
    width = inputs.shape[1]
    return jax.vmap(lambda x: significant(self._read(x, width)[0]))(inputs)

  def target(self, inputs: Array, length: Length | None = None) -> jax.Array:
    """Returns the targets of inputs; see `Task.target`.

    Without a length, inputs as wide as those of a length are of this length,
    unless a number has more digits, which is not checked in traced inputs. In
    other inputs, numbers may have as many digits as there are tokens.
    """
    if length is None and jnp.ndim(inputs) == 2:
      inputs = jnp.asarray(inputs)
      length = self._length_of(inputs)
      missing = int(self.input_length(length)) - inputs.shape[1]
      inputs = jnp.pad(inputs, ((0, 0), (0, missing)))
    return super().target(inputs, length)

  def _length_of(self, inputs: Array) -> int:
    """Returns a nominal length of inputs `[B, W]`; see `target`."""
    width = inputs.shape[1]
    lengths = range(self.min_length, width)
    alike = [n for n in lengths if self.input_length(n) == width]
    n = max(alike, default=width)
    if isinstance(inputs, jax.core.Tracer):
      return n
    with jax.ensure_compile_time_eval():
      digits_BxM = np.asarray(self.operand_digits(inputs))
    return n if (digits_BxM <= np.array(self._sizes(n))).all() else width


def most(sizes: Sizes) -> Any:
  """Returns the maximum of sizes, an int unless one of them is an array."""
  if all(isinstance(size, int) for size in sizes):
    return max(sizes)
  return jnp.max(jnp.stack([jnp.asarray(size) for size in sizes]))


def carry(columns_D: jax.Array) -> jax.Array:
  """Returns the digits of a number, given any integers in their place."""

  def step(carried: jax.Array, column: jax.Array) -> tuple[Any, jax.Array]:
    total = column + carried
    return total // 10, total % 10

  _, digits_D = jax.lax.scan(step, jnp.int32(0), columns_D.astype(jnp.int32))
  return digits_D


def significant(digits_NxD: jax.Array) -> jax.Array:
  """Returns the digits of numbers without leading zeros, at least 1, `[N]`."""
  place_1xD = jnp.arange(digits_NxD.shape[1])[None]
  return 1 + jnp.max(jnp.where(digits_NxD > 0, place_1xD, 0), axis=1)


def _numbers(bits_MxW: jax.Array, sizes_M: jax.Array) -> jax.Array:
  """Returns random numbers of some sizes; column i of bits is the ith digit."""
  column_1xW, size_Mx1 = jnp.arange(bits_MxW.shape[1])[None], sizes_M[:, None]
  digits_MxW = jnp.where(
    (column_1xW == 0) & (size_Mx1 > 1),
    1 + draws.below(bits_MxW, 9),
    draws.below(bits_MxW, 10),
  )
  mirrored_MxW = size_Mx1 - 1 - column_1xW
  return jnp.where(
    mirrored_MxW >= 0,
    jnp.take_along_axis(digits_MxW, jnp.maximum(mirrored_MxW, 0), axis=1),
    0,
  )
