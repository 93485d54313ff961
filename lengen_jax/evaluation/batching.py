"""Batches of rows of similar length, padded to few widths.

Each width is a program to compile.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lengen_jax.models import blocks
from lengen_jax.models.config import ModelConfig

_LEAST_WIDTH = 16


class Batch(NamedTuple):
  """Some rows of the same width.

  Attributes:
    width: tokens per row, including padding.
    numbers: indices of the rows, int `[n]`.
    filled: the same with the last repeated, int `[rows]`.
  """

  width: int
  numbers: np.ndarray
  filled: np.ndarray


def by_width(
  config: ModelConfig,
  lengths: ArrayLike,
  *,
  batch_tokens: int,
  new_tokens: int,
  parts: int,
) -> Iterator[Batch]:
  """Yields batches of rows, the longest first.

  All batches of a width have the same number of rows, a multiple of `parts`.

  Args:
    config: the model. Its encodings may require exact widths.
    lengths: tokens per row, int `[n]`.
    batch_tokens: tokens per batch; longer rows mean fewer rows.
    new_tokens: tokens that are added to each row.
    parts: number of parts that the rows are split into.
  """
  lengths = widths = np.asarray(lengths, int)
  # Encodings that depend on the number of slots require exact widths.
  if all(one.tileable for one in blocks.create_encodings(config)):
    # At most the longest row, so that positions stay within tables.
    padded = np.array([padded_width(length) for length in lengths], int)
    widths = np.minimum(padded, lengths.max(initial=0))
  order = np.argsort(-lengths, kind='stable')
  for width in np.unique(widths)[::-1]:
    numbers = order[widths[order] == width]
    share = max(1, batch_tokens // (width + new_tokens) // parts)
    batches = -(-len(numbers) // (share * parts))
    rows = -(-len(numbers) // (batches * parts)) * parts
    for first in range(0, len(numbers), rows):
      chosen = numbers[first : first + rows]
      filled = np.pad(chosen, (0, rows - len(chosen)), mode='edge')
      yield Batch(int(width), chosen, filled)


def padded_width(length: int) -> int:
  """Returns the least of 16, 24, 32, 48, 64, ... that is at least `length`."""
  width, wider = _LEAST_WIDTH, _LEAST_WIDTH * 3 // 2
  while width < length:
    width, wider = wider, 2 * width
  return width
