"""Sums of two or more numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.tasks.arithmetic import expression, symbols


@dataclasses.dataclass(frozen=True)
class Addition(expression.Expression):
  """The sum of numbers.

  Attributes:
    index_hints: whether each digit follows a hint. Hints are consecutive
      symbols of 102 ordered ones, from a random one on, the same in all
      numbers. They repeat in longer numbers.
    operands: number of operands.
    pad_operands: whether padded operands are as long as the answer. None is
      True with more than two operands, index hints or a scratchpad, else False.
    scratchpad: whether the answer has the sums of the first 0, 1, 2, ...
      operands, as in `53+48=0>53>101`.
  """

  index_hints: bool = False
  operands: int = 2
  pad_operands: bool | None = None
  scratchpad: bool = False

  formula = 'a + b'
  source = 'arXiv:2402.09371, arXiv:2405.20671, arXiv:2410.15787'
  sign = symbols.PLUS
  ranges = {**expression.Expression.ranges, 'operands': '>= 2 and <= 10'}

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.index_hints and self.scratchpad:
      raise errors.SpecError(
        f'{self} has both index_hints and scratchpad; the hints number the '
        'digits of one answer, so set one of the keys to False'
      )
    if self.pad_operands and not self.pad:
      raise errors.SpecError(
        f'{self}: pad_operands=True requires padded answers; set pad=True'
      )
    alike = self.pad or (self.lengths, self.second_digits) == ('equal', None)
    mixed = self._reverses_operands != (self.format == 'reversed')
    forward = mixed or self.format == 'plain'
    unpadded = not self.pad and (mixed or not alike)
    shorter = self.pad and not self._pads_alike
    if self.index_hints and forward and (unpadded or shorter):
      raise errors.SpecError(
        f'{self}: equal hints would not mark digits of equal significance; set '
        "pad=True without pad_operands=False, or format='reversed' for all "
        'numbers'
      )

  @property
  def vocab_in(self) -> int:
    return symbols.HINT + symbols.HINTS * self.index_hints

  vocab_out = vocab_in

  @property
  def num_roles(self) -> int:
    return 2 if self.scratchpad else 1

  @property
  def _pads_alike(self) -> bool:
    if self.pad_operands is not None:
      return self.pad_operands
    return self.index_hints or self.operands > 2 or self.scratchpad

  def _question(self, text: str) -> jax.Array:
    inputs = super()._question(text)
    if not self.pad:
      return inputs
    numbers_MxD, sizes_M = self._read(inputs[0], inputs.shape[1])
    digits_PxD = jax.vmap(expression.carry)(self.columns(numbers_MxD))
    needed = int(expression.significant(digits_PxD).max())
    padded = int(self.padded_answer(list(sizes_M), len(digits_PxD)))
    if needed > padded:
      place = 'end' if self._reverses_operands else 'begin'
      raise errors.ConfigError(
        f'the answer to {text!r} has {needed} digits, and {self} pads it to '
        f'{padded}; {place} the operands with 0'
      )
    return inputs

  def answer_digits(self, sizes: expression.Sizes) -> Any:
    # The sum of at most ten numbers has at most one more digit.
    return expression.most(sizes) + 1

  def answer_length(self, sizes: expression.Sizes) -> Any:
    length = super().answer_length(sizes)
    return length + self.operands * (length + 1) * self.scratchpad

  def padded_operands(self, sizes: expression.Sizes) -> expression.Sizes:
    return [expression.most(sizes) + self._pads_alike] * self.operands

  def padded_answer(self, sizes: expression.Sizes, count: int) -> Any:
    return expression.most(sizes) + (not self._pads_alike)

  def marks(self, sizes: expression.Sizes, count: int) -> jax.Array:
    return jnp.array([0] + [symbols.GREATER] * (count - 1))

  def columns(self, numbers_MxD: jax.Array) -> jax.Array:
    if not self.scratchpad:
      return jnp.sum(numbers_MxD, axis=0, keepdims=True)
    return jnp.pad(jnp.cumsum(numbers_MxD, axis=0), ((1, 0), (0, 0)))

  def largest_role(self, length: int) -> int:
    return max(super().largest_role(length), self.operands * self.scratchpad)

  def roles(self, tokens: jax.Array) -> jax.Array:
    """Returns the roles of position coupling, int32 `[T] -> [R, T]`.

    Without a scratchpad see `Expression.roles`. With one, the digit of
    significance j has role j + 1 in the first row, and symbols have role 0. In
    the second row, operand i, from 0, the sum before it is added, and their
    symbols have role i. The symbol of an operand follows it if its most
    significant digit comes first; other symbols precede their number.

    Source: Cho et al. (2024), arXiv:2405.20671 and arXiv:2410.15787, and their
    code.
    """
    if not self.scratchpad:
      return super().roles(tokens)
    is_sign = tokens == self.sign
    place = self._places(tokens)
    operand = jnp.cumsum(is_sign)
    if not self._reverses_operands:
      operand -= is_sign
    in_answer = jnp.cumsum(tokens == self.separator) > 0
    number = jnp.where(
      in_answer, jnp.cumsum(tokens == symbols.GREATER), operand
    )
    return jnp.stack([place, jnp.where(place >= 0, number, -1)])
