"""Needles in a haystack: sentences whose values are asked for."""

from collections.abc import Callable, Sequence
import dataclasses
import random
from typing import NamedTuple
import uuid

from lengen_jax.data.ruler import base, haystack, word_list

# The frames for one answer and for several.
_ONE = (
  'A special magic {kind} is hidden within the following text. Make sure to '
  'memorize it. I will quiz you about the {kind} afterwards.\n{context}\nWhat '
  'is the special magic {kind} for {keys} mentioned in the provided text?',
  ' The special magic {kind} for {keys} mentioned in the provided text is',
)
_SEVERAL = (
  'Some special magic {kind}s are hidden within the following text. Make sure '
  'to memorize it. I will quiz you about the {kind}s afterwards.\n{context}\n'
  'What are all the special magic {kind}s for {keys} mentioned in the provided '
  'text?',
  ' The special magic {kind}s for {keys} mentioned in the provided text are',
)
# Depths of needles in prose, percent.
DEPTHS = tuple(round(100 * number / 39) for number in range(40))


class Needle(NamedTuple):
  """A key and one of its values."""

  key: str
  value: str

  def sentence(self, kind: str) -> str:
    """Returns the sentence that states the value, a `kind` such as 'number'."""
    return f'One of the special magic {kind}s for {self.key} is: {self.value}.'


@dataclasses.dataclass(frozen=True)
class Niah(base.Task):
  """Asks for the values of some keys. A context of size n has n units.

  Attributes:
    hay: what hides the needles. 'noise': lines of the same sentences, of which
      each is a unit. 'needles': lines with needles of other keys, of which each
      is a unit. 'prose': sentences, of which each word is a unit.
    key: 'word' (an adjective and a noun) or 'uuid'.
    value: 'number' (seven digits) or 'uuid'.
    keys: number of keys with needles.
    values: number of values per key.
    queries: number of keys that are asked for.
  """

  hay: str = 'prose'
  key: str = 'word'
  value: str = 'number'
  keys: int = 1
  values: int = 1
  queries: int = 1

  max_new = 128

  @property
  def about(self) -> str:
    """What the task asks for."""
    asked, hidden = self.queries * self.values, self.keys * self.values
    return (
      f'{asked} of {hidden} values, hidden in {self.hay}; keys are '
      f'{self.key}s, values are {self.value}s'
    )

  @property
  def least(self) -> int:
    """The number of needles, each of which has a line of its own."""
    return self.keys * self.values

  def writer(
    self, draws: base.Draws, setting: base.Setting
  ) -> Callable[[int], base.Prompt]:
    rng = draws('needles')
    keys = base.distinct(lambda: draw(self.key, rng), self.keys)
    needles = [
      Needle(key, draw(self.value, rng))
      for key in keys
      for _ in range(self.values)
    ]
    asked = rng.sample(keys, self.queries)
    answers = [n.value for key in asked for n in needles if n.key == key]
    rng.shuffle(needles)
    hidden = [needle.sentence(self.value) for needle in needles]
    depths = sorted(rng.sample(DEPTHS, len(hidden)))

    def write(size: int) -> base.Prompt:
      if self.hay == 'prose':
        parts = haystack.sentences(setting.words, size)
        before = [len(parts) * depth // 100 for depth in depths]
        context = ' '.join(haystack.insert(parts, hidden, before))
      else:
        parts = [haystack.NOISE] * size
        if self.hay == 'needles':
          parts = self._distractors(draws('distractors'), size, keys)
        before = sorted(draws('lines').sample(range(size), len(hidden)))
        context = '\n'.join(haystack.insert(parts, hidden, before))
      return frame(self.value, context, asked, answers)

    return write

  def _distractors(
    self, rng: random.Random, size: int, keys: Sequence[str]
  ) -> list[str]:
    """Returns needles of other keys."""
    found: dict[str, str] = {}
    while len(found) < size:
      key = draw(self.key, rng)
      if key not in keys and key not in found:
        found[key] = Needle(key, draw(self.value, rng)).sentence(self.value)
    return list(found.values())


def frame(
  kind: str, context: str, keys: Sequence[str], answers: Sequence[str]
) -> base.Prompt:
  """Returns the prompt that asks for the values of keys in a context.

  Args:
    kind: what values are, 'number' or 'uuid'.
    context: the haystack with needles.
    keys: the keys that are asked for.
    answers: their values.
  """
  *others, last = keys
  listed = f'{", ".join(others)}, and {last}' if others else last
  asks, begins = _ONE if len(answers) == 1 else _SEVERAL
  return base.Prompt(
    asks.format(kind=kind, context=context, keys=listed),
    begins.format(kind=kind, keys=listed),
    tuple(answers),
  )


def draw(kind: str, rng: random.Random) -> str:
  """Returns a random 'number', 'uuid' or 'word', an adjective with a noun."""
  if kind == 'number':
    return str(rng.randrange(10**6, 10**7))
  if kind == 'uuid':
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
  return f'{rng.choice(word_list.ADJECTIVES)}-{rng.choice(word_list.NOUNS)}'
