"""Sums of two or more numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax.tasks.arithmetic import expression, symbols


@dataclasses.dataclass(frozen=True)
class Addition(expression.Expression):
  """The sum of numbers.

  Attributes:
    index_hints: whether each digit follows a hint. Hints are consecutive
      symbols of 102 ordered ones, from a random one on, the same in all
      numbers. They repeat in longer numbers.
    operands: number of operands. With more than two, or with index hints,
      padded operands are as long as the answer.
  """

  index_hints: bool = False
  operands: int = 2

  formula = 'a + b'
  source = 'arXiv:2402.09371, arXiv:2405.20671'
  sign = symbols.PLUS
  ranges = {**expression.Expression.ranges, 'operands': '>= 2 and <= 10'}

  @property
  def vocab_in(self) -> int:
    return symbols.HINT + symbols.HINTS * self.index_hints

  vocab_out = vocab_in

  @property
  def _pads_alike(self) -> bool:
    return self.index_hints or self.operands > 2

  def answer_digits(self, sizes: expression.Sizes) -> Any:
    # The sum of at most ten numbers has at most one more digit.
    return expression.most(sizes) + 1

  def padded_operands(self, sizes: expression.Sizes) -> expression.Sizes:
    return [expression.most(sizes) + self._pads_alike] * self.operands

  def padded_answer(self, sizes: expression.Sizes) -> Any:
    return expression.most(sizes) + (not self._pads_alike)

  def columns(self, numbers_MxD: jax.Array) -> jax.Array:
    return jnp.sum(numbers_MxD, axis=0)
