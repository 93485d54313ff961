"""Products of two numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.tasks.arithmetic import expression, symbols
from lengen_jax.tasks.base import UNSCORED


@dataclasses.dataclass(frozen=True)
class Multiplication(expression.Expression):
  """The product of two numbers.

  Operands are not padded. A padded answer has the digits of both together.

  Attributes:
    scratchpad: whether the answer has the products of the first operand and
      each digit of the second one, least significant first, and the sums of the
      first 1, 2, ... of them, shifted: `31*12=62+31=62>372`. A padded product
      has one digit more than the first operand, a padded sum those of both.
  """

  scratchpad: bool = False

  formula = 'a b'
  source = 'arXiv:2405.17399, arXiv:2405.20671, arXiv:2410.15787'
  sign = symbols.TIMES

  @property
  def num_roles(self) -> int:
    return 3 if self.scratchpad else 1

  def answer_digits(self, sizes: expression.Sizes) -> Any:
    return sum(sizes)

  def answer_length(self, sizes: expression.Sizes) -> Any:
    if not self.scratchpad:
      return super().answer_length(sizes)
    first, second = sizes
    # A symbol separates a number from the next one.
    return second * (first + 1 + sum(sizes) + 2) - 1

  def padded_operands(self, sizes: expression.Sizes) -> expression.Sizes:
    return sizes

  def padded_answer(self, sizes: expression.Sizes, count: int) -> Any:
    if not self.scratchpad:
      return super().padded_answer(sizes, count)
    return jnp.repeat(jnp.stack([sizes[0] + 1, sum(sizes)]), count // 2)

  def marks(self, sizes: expression.Sizes, count: int) -> jax.Array:
    if not self.scratchpad:
      return super().marks(sizes, count)
    more = count // 2 - 1
    marks = [0, *[symbols.PLUS] * more]
    marks += [symbols.EQUALS, *[symbols.GREATER] * more]
    is_written = jnp.tile(jnp.arange(more + 1) < sizes[1], 2)
    return jnp.where(is_written, jnp.array(marks), UNSCORED)

  def columns(self, numbers_MxD: jax.Array) -> jax.Array:
    a_D, b_D = numbers_MxD
    place_Dx1 = jnp.arange(len(a_D))[:, None]
    products_DxD = b_D[:, None] * a_D[None]
    # Row j is the product with digit j of the second operand, times 10^j. Sums
    # of products of digits fit an int32.
    shifted_DxD = (
      jnp.zeros_like(products_DxD)
      .at[place_Dx1, place_Dx1 + place_Dx1.T]
      .add(products_DxD, mode='drop')
    )
    if not self.scratchpad:
      return jnp.sum(shifted_DxD, axis=0, keepdims=True)
    most = self.second_digits or len(b_D) // 2
    sums_DxD = jnp.cumsum(shifted_DxD, axis=0)
    return jnp.concatenate([products_DxD[:most], sums_DxD[:most]])

  def roles(self, tokens: jax.Array) -> jax.Array:
    """Returns the roles of position coupling, int32 `[T] -> [R, T]`.

    Without a scratchpad see `Expression.roles`. If `second_digits` is given and
    the format is 'reversed', as in the N x M multiplication of the paper, these
    roles descend: signs have role N + M, and the digit of significance j has
    role N + M - 1 - j, for operands of N and M digits.

    With a scratchpad, the digit of significance j of the first operand has the
    roles (j + 1, -1, -1), that of the second one (-1, j, -1), of product i,
    from 0, (j + 1, i, i + j + 1), and of sum i (-1, i, j + 1). The symbol
    before a product or a sum has the roles of a digit with j = -1.

    Source: Cho et al. (2024), arXiv:2410.15787, and its code.
    """
    if not self.scratchpad:
      roles = super().roles(tokens)
      if self.second_digits is None or self.format == 'plain':
        return roles
      in_question = jnp.cumsum(tokens == self.separator) == 0
      digits = jnp.sum(symbols.is_digit(tokens) & in_question)
      return jnp.where(roles >= 0, jnp.maximum(digits - roles, -1), -1)
    place = self._places(tokens)
    equals = jnp.cumsum(tokens == self.separator)
    in_second = (jnp.cumsum(tokens == self.sign) > 0) & (equals == 0)
    is_product, is_sum = equals == 1, equals == 2
    number = jnp.where(
      is_product,
      jnp.cumsum(tokens == symbols.PLUS),
      jnp.cumsum(tokens == symbols.GREATER),
    )
    rows = [
      jnp.where(in_second | is_sum, -1, place),
      jnp.where(in_second, place - 1, jnp.where(equals > 0, number, -1)),
      jnp.where(equals > 0, place + number * is_product, -1),
    ]
    return jnp.where(place >= 0, jnp.stack(rows), -1)

  def _question(self, text: str) -> jax.Array:
    inputs = super()._question(text)
    _, sizes_2 = self._read(inputs[0], inputs.shape[1])
    most = self.second_digits
    if self.scratchpad and most is not None and sizes_2[1] > most:
      raise errors.ConfigError(
        f'the second number of {text!r} has {sizes_2[1]} digits; set '
        f'second_digits={sizes_2[1]} or more, or None for any'
      )
    return inputs
