"""Products of two numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax.tasks.arithmetic import expression, symbols


@dataclasses.dataclass(frozen=True)
class Multiplication(expression.Expression):
  """The product of two numbers.

  Operands are not padded. A padded answer has the digits of both together.
  """

  formula = 'a b'
  source = 'arXiv:2405.17399, arXiv:2405.20671'
  sign = symbols.TIMES

  def answer_digits(self, sizes: expression.Sizes) -> Any:
    return sum(sizes)

  def padded_operands(self, sizes: expression.Sizes) -> expression.Sizes:
    return sizes

  def columns(self, numbers_MxD: jax.Array) -> jax.Array:
    a_D, b_D = numbers_MxD
    place = jnp.arange(len(a_D))
    # Sums of products of digits fit an int32.
    return (
      jnp.zeros_like(a_D)
      .at[place[:, None] + place[None]]
      .add(a_D[:, None] * b_D[None], mode='drop')
    )
