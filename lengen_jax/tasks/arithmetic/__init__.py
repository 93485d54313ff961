"""Arithmetic on numbers of any length, one token per digit.

Numbers are vectors of digits, so that no integer overflows. Formats are those
of Zhou et al. (2024), arXiv:2402.09371 (index hints), of Cho et al. (2024),
arXiv:2405.20671 (position coupling), and of McLeish et al. (2024),
arXiv:2405.17399 (Abacus).
"""

import re
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax.tasks import base
from lengen_jax.tasks.arithmetic import symbols
from lengen_jax.tasks.base import Length


class ArithmeticTask(base.Task):
  """Base of the arithmetic tasks, whose questions and answers are texts.

  The answer ends with an end token, which is scored.
  """

  family = 'arithmetic'
  vocab_in = vocab_out = symbols.HINT
  separator = symbols.EQUALS
  # Whether each digit follows a hint, one of some ordered symbols.
  index_hints = False

  @property
  def form(self) -> str:
    """Regular expression of a question without spaces."""
    raise NotImplementedError

  def input_lengths(self, inputs: jax.Array, length: Length) -> jax.Array:
    return jnp.sum(inputs != symbols.PADDING, axis=1)

  def parse(self, text: str) -> list[int]:
    return symbols.parse(text, self.index_hints)

  def text(self, ids: Any) -> str:
    return symbols.text(ids)

  def _question(self, text: str) -> jax.Array:
    if not re.fullmatch(self.form, re.sub(r'\s', '', str(text))):
      raise self._not_a_question(text)
    inputs = super()._question(text)
    if self.index_hints:
      symbols.check_hints(text, inputs[0])
    return inputs
