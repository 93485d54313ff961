"""Frequent words: the most common ones of a list, and of a coded text."""

from collections.abc import Callable, Sequence
import math
import string

from lengen_jax.data.ruler import base, niah, word_list

_LIST = (
  'Below is a numbered list of words. In these words, some appear more often '
  'than others. Memorize the ones that appear most often.\n{context}\n'
  'Question: What are the 10 most common words in the above list?'
)
_LIST_PREFIX = (
  ' Answer: The top 10 words that appear most often in the list are:'
)
_CODED = (
  'Read the following coded text and track the frequency of each coded word. '
  'Find the three most frequently appeared coded words. {context}\nQuestion: '
  "Do not provide any explanation. Please ignore the dots '....'. What are the "
  'three most frequently appeared words in the above coded text?'
)
_CODED_PREFIX = (
  ' Answer: According to the coded text above, the three most frequently '
  'appeared words are:'
)
_COMMON = 10
# (repeats of a common word, repeats of another word, different words of the
# example, and the two numbers of repeats in the example): for lengths below
# 4096 tokens, and from 4096 on.
_SHORT, _LONG = (6, 1, 20, 3, 1), (30, 3, 40, 10, 3)
_LETTERS = 6
_ZETA_2 = math.pi**2 / 6


class CommonWords(base.Task):
  """Asks for the ten most common words of a list. Size n has n different words.

  The prompt begins with an example. Words are those of `word_list`; further
  ones are adjectives with nouns.
  """

  about = 'the ten most common words of a list'
  max_new = 120
  least = _COMMON + 1

  def writer(
    self, draws: base.Draws, setting: base.Setting
  ) -> Callable[[int], base.Prompt]:
    short = setting.length < 4096
    often, seldom, size, *repeats = _SHORT if short else _LONG
    example = _listed(draws, 'example', size, *repeats)
    before = example.text + ' ' + numbered(example.outputs)

    def write(size: int) -> base.Prompt:
      prompt = _listed(draws, 'question', size, often, seldom)
      return prompt._replace(input=f'{before}\n{prompt.input}')

    return write


class FrequentWords(base.Task):
  """Asks for three words of a coded text. Size n means about n words.

  Word k of the vocabulary occurs floor(n k^-2 / zeta(2)) times; the first is
  shown as dots, and the next three are the answer.
  """

  about = 'the three most frequent words of a coded text'
  max_new = 50
  # From here on, no other word is as frequent as the fourth.
  least = 53

  def writer(
    self, draws: base.Draws, setting: base.Setting
  ) -> Callable[[int], base.Prompt]:
    count = max(5, (setting.length - 50) // 50)
    rng = draws('words')
    words = base.distinct(
      lambda: ''.join(rng.choices(string.ascii_lowercase, k=_LETTERS)), count
    )
    words[0] = '...'

    def write(size: int) -> base.Prompt:
      text = [
        word
        for word, repeats in zip(words, frequencies(size, count), strict=True)
        for _ in range(repeats)
      ]
      draws('order').shuffle(text)
      return coded_frame(text, words[1:4])

    return write


def list_frame(words: Sequence[str], common: Sequence[str]) -> base.Prompt:
  """Returns the prompt that asks for the common words of a list."""
  context = _LIST.format(context=numbered(words))
  return base.Prompt(context, _LIST_PREFIX, tuple(common))


def coded_frame(words: Sequence[str], frequent: Sequence[str]) -> base.Prompt:
  """Returns the prompt that asks for the frequent words of a text."""
  context = _CODED.format(context=' '.join(words))
  return base.Prompt(context, _CODED_PREFIX, tuple(frequent))


def numbered(words: Sequence[str]) -> str:
  """Returns '1. a 2. b' for words a and b."""
  return ' '.join(f'{number}. {one}' for number, one in enumerate(words, 1))


def frequencies(size: int, count: int) -> list[int]:
  """Returns how often each of `count` words occurs among about `size`."""
  return [int(size * k**-2.0 / _ZETA_2) for k in range(1, count + 1)]


def _listed(
  draws: base.Draws, purpose: str, size: int, often: int, seldom: int
) -> base.Prompt:
  """Returns the prompt of a list with `size` different words."""
  rng = draws(purpose)
  words = sorted({*word_list.ADJECTIVES, *word_list.NOUNS})
  rng.shuffle(words)
  more = base.distinct(lambda: niah.draw('word', rng), size - len(words))
  words = words[:size] + more
  common = words[:_COMMON]
  text = common * often + words[_COMMON:] * seldom
  draws(f'{purpose} order').shuffle(text)
  return list_frame(text, common)
