"""Prompts that fit a number of tokens."""

import abc
from collections.abc import Callable, Sequence
import dataclasses
import random
from typing import NamedTuple

from lengen_jax import errors
from lengen_jax.data import vocabulary as vocabulary_lib

# Maps the purpose of draws to a new random generator, seeded by the setting's
# seed, the task, the sample and the purpose.
Draws = Callable[[str], random.Random]
# More words per token are not plausible.
_UNITS_PER_TOKEN = 20


class Prompt(NamedTuple):
  """A prompt and its answers.

  Attributes:
    input: the context and the question.
    answer_prefix: the beginning of the answer, which is part of the prompt.
    outputs: the strings that the answer contains.
  """

  input: str
  answer_prefix: str
  outputs: tuple[str, ...]

  @property
  def text(self) -> str:
    return self.input + self.answer_prefix


@dataclasses.dataclass(frozen=True)
class Setting:
  """What the prompts of all tasks at one length have in common.

  Attributes:
    vocabulary: the vocabulary of the tested model, which counts tokens.
    length: maximum tokens per row, prompt and generated tokens together. The
      start token does not count.
    words: words of the prose that hides needles; see `haystack.read`.
    seed: seed of all draws.
  """

  vocabulary: vocabulary_lib.Vocabulary
  length: int
  words: Sequence[str]
  seed: int = 0

  def count(self, text: str) -> int:
    """Returns the number of tokens of a text, without the start token."""
    (ids,) = self.vocabulary.encode([text])
    return len(ids)


class Task(abc.ABC):
  """A task of RULER.

  Attributes:
    about: what it asks for.
    max_new: maximum number of tokens generated per answer.
    least: minimum size of a context.
  """

  about: str
  max_new: int
  least: int = 1

  @abc.abstractmethod
  def writer(self, draws: Draws, setting: Setting) -> Callable[[int], Prompt]:
    """Returns a function from the size of a context to a prompt.

    The unit of sizes depends on the task. The answers do not depend on the
    size.

    Args:
      draws: gives a random.Random per purpose.
      setting: the length and the vocabulary.
    """


def sample(task: Task, name: str, index: int, setting: Setting) -> Prompt:
  """Returns the longest prompt of a sample that leaves room for the answer.

  All draws depend on the seed, the name of the task and the index only.

  Raises:
    errors.LengthError: the shortest prompt does not fit.
  """
  write = _writer(task, name, index, setting)
  room = setting.length - task.max_new
  size = largest(lambda size: setting.count(write(size).text), task.least, room)
  if not size:
    least = least_length(task, name, index, setting)
    raise errors.LengthError(
      f'{name} does not fit length {setting.length}: with vocabulary '
      f'{setting.vocabulary.name!r} its shortest prompt has '
      f'{least - task.max_new} tokens and its answer {task.max_new}; use '
      f'lengths from {least} on, or leave the task out'
    )
  return write(size)


def least_length(task: Task, name: str, index: int, setting: Setting) -> int:
  """Returns the tokens of the shortest prompt of a sample and of its answer."""
  write = _writer(task, name, index, setting)
  return setting.count(write(task.least).text) + task.max_new


def largest(tokens: Callable[[int], int], least: int, most: int) -> int:
  """Returns the largest size of at most `most` tokens; 0 if there is none.

  Alternates interpolation with bisection. The number of tokens is about linear
  in the size, and each evaluation tokenizes a long text.

  Args:
    tokens: returns the number of tokens of a size; it increases with the size.
    least: minimum size, from 1 on.
    most: maximum number of tokens.

  Raises:
    errors.CorpusError: the number of tokens does not increase.
  """
  first = tokens(least)
  if first > most:
    return 0
  # `low` fits, and `high` does not, unless it is 0.
  low, used, high, size = least, first, 0, 2 * least
  bisects = False
  while high != low + 1:
    found = tokens(size)
    # Tokens per unit between this size and the largest that fitted before.
    rate = max(found - used, 1) / (size - low)
    if found <= most:
      low, used, aim = size, found, most
    else:
      # Aims as far below `most` as this size is above it, to raise `low`.
      high, aim = size, 2 * most - found - 1
    if low > _UNITS_PER_TOKEN * most:
      raise errors.CorpusError(
        f'{low} lines or words of text have {used} tokens: the vocabulary has '
        'too few of its characters'
      )
    size = low + int((aim - used) / rate)
    if bisects:
      size = (low + high) // 2
    bisects = bool(high) and not bisects
    size = min(max(size, low + 1), high - 1 if high else 8 * low)
  return low


def distinct(draw: Callable[[], str], count: int) -> list[str]:
  """Returns `count` different results of `draw`."""
  found: dict[str, None] = {}
  while len(found) < count:
    found[draw()] = None
  return list(found)


def _writer(
  task: Task, name: str, index: int, setting: Setting
) -> Callable[[int], Prompt]:
  """Returns the writer of a sample."""

  def draws(purpose: str) -> random.Random:
    return random.Random(f'{setting.seed} {name} {index} {purpose}')

  return task.writer(draws, setting)
