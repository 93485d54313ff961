"""Rows of two chunks of a longer text, for positions that skip (PoSE).

Source: Zhu et al. (2023), arXiv:2309.10400, section 3.2, and its code.
"""

import pathlib

import numpy as np

from lengen_jax.data import windows
from lengen_jax.data.config import DataConfig


def chunked(
  batches: windows.IndexedBatches,
  config: DataConfig,
  *,
  seed: int,
  host: tuple[int, int],
) -> windows.Batches:
  """Returns batches of chunks if the config has `source_length`."""
  if config.source_length is None:
    return batches
  return ChunkedBatches(
    batches,
    length=config.train_length,
    batch_size=config.batch_size,
    seed=seed,
    host=host,
  )


class ChunkedBatches(windows.Batches):
  """Batches of rows that keep two chunks of the rows of other batches.

  A row of n targets is cut from a window of N. With c = n + 1 tokens in the row
  and N + 1 in the window, the first chunk is its tokens 0 .. first - 1, where
  `first` is uniform in {1 .. floor((n + 1) / 2)}. The second chunk has the
  tokens end - (c - first) .. end - 1, with `end` uniform in {c .. N + 1}. The
  target of the last token of the first chunk is the first one of the second.

  In addition to the arrays of `windows.lm_batch`, a batch has `chunks`, int32
  `[B, L]`, the number of each input's chunk, 0 or 1.
  """

  def __init__(
    self,
    batches: windows.IndexedBatches,
    *,
    length: int,
    batch_size: int,
    seed: int,
    host: tuple[int, int],
  ) -> None:
    self._batches, self._length = batches, length
    self._batch_size, self._seed = batch_size, seed
    self._rows = windows.host_rows(batch_size, host)

  def next(self) -> dict[str, np.ndarray]:
    # Depends on seed, batch and row, but not on the number of hosts. The last
    # number of the key makes it different from that of the shuffle.
    draw = np.random.Generator(
      np.random.Philox([self._seed, self._batches.next_index, 1])
    )
    batch = self._batches.next()
    tokens = np.concatenate([batch['inputs'], batch['targets'][:, -1:]], axis=1)
    c, total = self._length + 1, tokens.shape[1]
    first = draw.integers(1, max(c // 2, 1) + 1, self._batch_size)
    end = draw.integers(c, total + 1, self._batch_size)
    first_Bx1, end_Bx1 = first[self._rows, None], end[self._rows, None]
    index = np.arange(c)
    kept = np.where(index < first_Bx1, index, end_Bx1 - c + index)
    rows = windows.lm_batch(np.take_along_axis(tokens, kept, axis=1))
    chunks = (index[:-1] >= first_Bx1).astype(np.int32)
    return {**rows, 'chunks': chunks}

  def save(self, folder: pathlib.Path) -> None:
    self._batches.save(folder)

  def restore(self, folder: pathlib.Path) -> None:
    self._batches.restore(folder)
