"""Texts that hide needles: lines of noise, and prose."""

from collections.abc import Iterable, Sequence
import heapq
import itertools
import os
import re

from lengen_jax import errors
from lengen_jax.data import readers

NOISE = (
  'The grass is green. The sky is blue. The sun is yellow. Here we go. '
  'There and back again.'
)
_SENTENCE_END = re.compile(r'(?<=[.!?])\s+')
# Maximum mean length of a sentence, in characters.
_SENTENCE = 2000


def read(path: str = '') -> list[str]:
  """Returns the words of a text file, or of all files in a folder or zip.

  Args:
    path: the file or folder; '' for the sentences of `NOISE`.

  Raises:
    errors.CorpusError: there is no text, a file cannot be read, or sentences
      are too long to hide needles at every depth.
  """
  if not path:
    return NOISE.split()
  words: list[str] = []
  for file in readers.files(os.path.expanduser(path)):
    if not readers.is_records(file):
      words += readers.text(file).decode('utf-8', errors='replace').split()
  if not words:
    raise errors.CorpusError(
      f'there is no text in {path}; --haystack must be a text file, or a '
      'folder or zip of text files, in plain sentences'
    )
  # The text repeats.
  parts = sentences(words, 2 * len(words))
  mean, problem = sum(map(len, parts)) // len(parts), ''
  if len(parts) < 2:
    problem = 'do not end'
  elif mean > _SENTENCE:
    problem = f'have {mean:,} characters, over {_SENTENCE}'
  if problem:
    raise errors.CorpusError(
      f'the sentences of --haystack={path} {problem}; needles are hidden '
      'between sentences, so use a text whose sentences end with . ? or ! and '
      'a space'
    )
  return words


def sentences(words: Sequence[str], size: int) -> list[str]:
  """Returns the sentences of the first `size` words, which repeat."""
  text = ' '.join(itertools.islice(itertools.cycle(words), size))
  return _SENTENCE_END.split(text)


def insert(
  parts: Iterable[str], items: Iterable[str], before: Iterable[int]
) -> list[str]:
  """Inserts each item before the part with a given index; returns the result.

  Args:
    parts: lines or sentences.
    items: the texts to insert, as many as `before`.
    before: index of the part that each item precedes, ascending, from 0 to the
      number of parts.
  """
  # Items come before the part of the same index, in their order.
  places = zip(before, itertools.repeat(0), items, strict=False)
  numbered = zip(itertools.count(), itertools.repeat(1), parts, strict=False)
  merged = heapq.merge(places, numbered, key=lambda one: one[:2])
  return [text for _, _, text in merged]
