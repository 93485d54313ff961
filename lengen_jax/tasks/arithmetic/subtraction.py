"""Differences of two numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.tasks.arithmetic import expression, symbols


@dataclasses.dataclass(frozen=True)
class Subtraction(expression.Expression):
  """The difference of two numbers, of which the first is at least the second.

  The greater one of two drawn numbers comes first.
  """

  formula = 'a - b'
  source = 'arXiv:2405.17399'
  sign = symbols.MINUS

  @property
  def min_length(self) -> int:
    """Minimum nominal length, the digits of the second operand."""
    return self.second_digits or 1

  def answer_digits(self, sizes: expression.Sizes) -> Any:
    return expression.most(sizes)

  def ordered(
    self, numbers_MxD: jax.Array, sizes_M: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    less = _is_less(numbers_MxD)
    return (
      jnp.where(less, numbers_MxD[::-1], numbers_MxD),
      jnp.where(less, sizes_M[::-1], sizes_M),
    )

  def columns(self, numbers_MxD: jax.Array) -> jax.Array:
    return numbers_MxD[:1] - numbers_MxD[1:]

  def _question(self, text: str) -> jax.Array:
    inputs = super()._question(text)
    numbers_2xD, _ = self._read(inputs[0], inputs.shape[1])
    if _is_less(numbers_2xD):
      raise errors.ConfigError(
        f'the first number of {text!r} is less than the second; exchange them'
      )
    return inputs


def _is_less(numbers_2xD: jax.Array) -> jax.Array:
  """Returns whether the first of two numbers is less than the second."""
  difference_D = numbers_2xD[0] - numbers_2xD[1]
  differs = jnp.where(difference_D != 0, jnp.arange(len(difference_D)), 0)
  return difference_D[jnp.max(differs)] < 0
