"""Batches of rows of similar length, padded to few widths.

Each width and number of rows is a program to compile. Both are rounded, so that
the next call with similar rows finds its programs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lengen_jax.models import blocks
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme

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
  scheme: PositionScheme,
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
    scheme: the position scheme.
    lengths: tokens per row, int `[n]`.
    batch_tokens: tokens per batch; longer rows mean fewer rows.
    new_tokens: tokens that are added to each row.
    parts: number of parts that the rows are split into.
  """
  lengths = widths = np.asarray(lengths, int)
  # Encodings that depend on the number of slots require exact widths.
  encodings = blocks.distinct_encodings(config)
  if all(one.tileable for one in encodings):
    longest = int(lengths.max(initial=0))
    # Positions of padding must be within tables, too.
    limits = [scheme.limit(train=False)]
    limits += [one.max_position for one in encodings]
    if all(limit is None for limit in limits):
      longest = _rounded(longest)
    padded = np.array([padded_width(length) for length in lengths], int)
    widths = np.minimum(padded, longest)
  order = np.argsort(-lengths, kind='stable')
  for width in np.unique(widths)[::-1]:
    numbers = order[widths[order] == width]
    share = max(1, batch_tokens // (width + new_tokens) // parts)
    batches = -(-len(numbers) // (share * parts))
    rows = min(share, _rounded(-(-len(numbers) // (batches * parts)))) * parts
    for first in range(0, len(numbers), rows):
      chosen = numbers[first : first + rows]
      filled = np.pad(chosen, (0, rows - len(chosen)), mode='edge')
      yield Batch(int(width), chosen, filled)


def _rounded(count: int) -> int:
  """Returns `count` rounded up to four significant binary digits."""
  step = 2 ** max(0, int(count).bit_length() - 4)
  return -(-count // step) * step


def padded_width(length: int) -> int:
  """Returns the least of 16, 24, 32, 48, 64, ... that is at least `length`."""
  width, wider = _LEAST_WIDTH, _LEAST_WIDTH * 3 // 2
  while width < length:
    width, wider = wider, 2 * width
  return width
