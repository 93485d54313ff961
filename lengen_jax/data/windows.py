"""Windows of documents for training and evaluation.

A window with L targets has L + 1 tokens: its first input is the preceding token
of the text.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
import hashlib
import json
import pathlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lengen_jax import errors


class Batches(abc.ABC):
  """Iterator over training batches whose state can be saved.

  Attributes:
    padded: whether rows end with padding.
  """

  padded = False

  @abc.abstractmethod
  def next(self) -> dict[str, np.ndarray]:
    """Returns the next batch; see `lm_batch`."""

  @abc.abstractmethod
  def save(self, folder: pathlib.Path) -> None:
    """Saves the state of the iterator in a folder."""

  @abc.abstractmethod
  def restore(self, folder: pathlib.Path) -> None:
    """Restores the state that `save` wrote."""


class IndexedBatches(Batches):
  """Batches that are functions of their index.

  Attributes:
    next_index: index of the next batch.
  """

  next_index = 0

  @abc.abstractmethod
  def batch(self, index: int) -> dict[str, np.ndarray]:
    """Returns the batch at an index, counted from 0."""

  def next(self) -> dict[str, np.ndarray]:
    batch = self.batch(self.next_index)
    self.next_index += 1
    return batch

  def save(self, folder: pathlib.Path) -> None:
    (folder / 'next.json').write_text(
      json.dumps({'next_index': self.next_index})
    )

  def restore(self, folder: pathlib.Path) -> None:
    self.next_index = json.loads((folder / 'next.json').read_text())[
      'next_index'
    ]


class TrainingWindows(IndexedBatches):
  """Batches of windows of documents in memory.

  Every document is cut into windows of `length`; an epoch contains all windows
  in an order drawn from (seed, epoch).
  """

  def __init__(
    self,
    documents: Sequence[np.ndarray],
    *,
    length: int,
    batch_size: int,
    seed: int,
    host: tuple[int, int] = (0, 1),
  ) -> None:
    """Indexes the windows; see `Corpus.training`.

    Raises:
      errors.CorpusError: there are fewer windows than rows of a batch.
    """
    self.length, self.batch_size, self.seed = length, batch_size, seed
    self._rows = host_rows(batch_size, host)
    self._text = np.concatenate(documents)
    offsets = np.cumsum([0] + [len(document) for document in documents])
    self._starts = np.concatenate(
      [
        offset + np.arange(0, len(document) - length, length)
        for offset, document in zip(offsets, documents, strict=False)
      ]
    )
    if len(self._starts) < batch_size:
      raise errors.CorpusError(
        f'the training documents contain {len(self._starts)} windows of '
        f'{length} tokens, fewer than data.batch_size={batch_size}; lower '
        'data.train_length, data.source_length or data.batch_size'
      )
    self._order: tuple[int | None, np.ndarray | None] = (None, None)

  def __len__(self) -> int:
    """Returns the number of windows in an epoch."""
    return len(self._starts)

  def batch(self, step: int) -> dict[str, np.ndarray]:
    """Returns the batch of a step, counted from 0; see `lm_batch`."""
    first = step * self.batch_size
    rows = [
      self._epoch_order(index // len(self))[index % len(self)]
      for index in (first + row for row in self._rows)
    ]
    starts = self._starts[rows]
    return lm_batch(self._text[starts[:, None] + np.arange(self.length + 1)])

  def _epoch_order(self, epoch: int) -> np.ndarray:
    if self._order[0] != epoch:
      generator = np.random.Generator(np.random.Philox([self.seed, epoch]))
      self._order = (epoch, generator.permutation(len(self)))
    return self._order[1]


def check_lengths(lengths: Sequence[int]) -> None:
  """Raises errors.ConfigError if a length does not divide the longest."""
  longest = max(lengths)
  for length in lengths:
    if longest % length:
      raise errors.ConfigError(
        f'eval.lengths: {length} does not divide the longest, {longest}; all '
        'lengths must score the same tokens'
      )


class EvaluationWindows:
  """The same scored tokens at every length.

  Windows of the longest length are split into windows of each shorter length,
  so that only the context differs between lengths.
  """

  def __init__(
    self,
    windows: Sequence[np.ndarray],
    *,
    lengths: Sequence[int],
    count: int,
    vocab: Any,
  ) -> None:
    """Selects `count` windows at equal distances.

    Args:
      windows: arrays of token ids `[longest + 1]`; see `whole`.
      lengths: the evaluated lengths; each divides the longest.
      count: number of windows.
      vocab: vocabulary of the token ids.

    Raises:
      errors.ConfigError: a length does not divide the longest.
      errors.CorpusError: there are fewer than `count` windows.
    """
    check_lengths(lengths)
    longest = max(lengths)
    if len(windows) < count:
      raise errors.CorpusError(
        f'the documents contain {len(windows)} windows of {longest} tokens; '
        f'eval.windows={count} requires more; lower it, or the longest of '
        '--lengths or eval.lengths'
      )
    chosen = [i * len(windows) // count for i in range(count)]
    self._windows = np.stack([windows[i] for i in chosen])
    self.lengths = tuple(lengths)
    self.tokens = count * longest
    self._vocab = vocab

  @property
  def bytes_per_token(self) -> float:
    """Mean bytes of text per scored token."""
    return self._vocab.num_bytes(self.scored) / self.tokens

  def texts(self) -> list[str]:
    """Returns the text of the scored tokens of each window."""
    return [self._vocab.decode(window) for window in self.scored]

  def count_words(self, count: Callable[[str], int]) -> int:
    """Returns how many words begin in the scored tokens.

    `count` returns the number of words of a text.
    """
    # Does not count a word that begins in the preceding token.
    return sum(
      count(self._vocab.decode(window)) - count(self._vocab.decode(window[:1]))
      for window in self._windows
    )

  @property
  def digest(self) -> str:
    """Eight hexadecimal digits that identify the scored tokens."""
    scored = np.ascontiguousarray(self.scored, np.int32)
    return hashlib.sha256(scored.tobytes()).hexdigest()[:8]

  @property
  def scored(self) -> np.ndarray:
    """Scored tokens, `[count, longest]`."""
    return self._windows[:, 1:]

  def batch(self, length: int) -> dict[str, np.ndarray]:
    """Returns all windows of `length`; see `lm_batch`."""
    return lm_batch(self.examples(length))

  def examples(self, length: int) -> np.ndarray:
    """Returns all windows of `length`, token ids `[N, length + 1]`."""
    inputs = self.recut(self._windows[:, :-1], length)
    return np.concatenate(
      [inputs, self.recut(self.scored, length)[:, -1:]], axis=1
    )

  def recut(self, values: np.ndarray, length: int) -> np.ndarray:
    """Reshapes values of scored tokens `[count, longest]` to `[N, length]`."""
    pieces = range(0, values.shape[1], length)
    return np.concatenate([values[:, i : i + length] for i in pieces])

  def window_sums(self, values: np.ndarray) -> np.ndarray:
    """Sums values of recut windows `[N]` over the longest ones, `[count]`."""
    return values.reshape(-1, len(self._windows)).sum(0)


def whole(document: np.ndarray, length: int) -> list[np.ndarray]:
  """Returns the whole windows of a document, `[length + 1]` each."""
  return [
    document[start : start + length + 1]
    for start in range(0, len(document) - length, length)
  ]


# Modes of cutting documents into training windows.
MODES = {
  'concat': 'documents are concatenated; windows cross their boundaries',
  'doc_pad': 'windows end with their document and are padded',
  'doc_window': 'only whole windows of a document; its last tokens are skipped',
}


class Cutter:
  """Cuts a sequence of documents into windows for training."""

  def __init__(
    self,
    length: int,
    mode: str,
    *,
    start: int,
    rest: Sequence[int] | np.ndarray = (),
  ) -> None:
    """Starts, or resumes with the `rest` of an earlier Cutter.

    Args:
      length: targets per window.
      mode: one of MODES.
      start: token id before each document, or before the first in 'concat'.
      rest: tokens of earlier documents.
    """
    self._length, self._mode, self._start = length, mode, start
    # In 'concat': the last token of the previous window, or `start`, and the
    # tokens after it that do not fill a window yet.
    self.rest = np.asarray(rest if len(rest) else [start], np.int32)

  def cut(self, document: np.ndarray) -> list[np.ndarray]:
    """Returns the windows that a document completes, up to `length + 1` ids."""
    length = self._length
    before = self.rest if self._mode == 'concat' else [self._start]
    tokens = np.concatenate([before, document]).astype(np.int32)
    windows = whole(tokens, length)
    rest = tokens[len(windows) * length :]
    if self._mode == 'concat':
      self.rest = rest
    elif self._mode == 'doc_pad' and len(rest) > 1:
      windows.append(rest)
    return windows


def host_rows(batch_size: int, host: tuple[int, int]) -> range:
  """Returns the rows of a batch on a host, given as (index, count).

  Raises:
    errors.ConfigError: `batch_size` is not a multiple of the hosts.
  """
  index, count = host
  if batch_size % count:
    raise errors.ConfigError(
      f'data.batch_size={batch_size} is not a multiple of {count} hosts'
    )
  share = batch_size // count
  return range(index * share, (index + 1) * share)


def pad(
  windows: Sequence[np.ndarray], length: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns windows padded to `[B, length + 1]`, and their sizes `[B]`."""
  tokens = np.zeros((len(windows), length + 1), np.int32)
  for row, window in zip(tokens, windows, strict=True):
    row[: len(window)] = window
  return tokens, np.array([len(window) for window in windows], np.int32)


def lm_batch(
  tokens: ArrayLike,
  sizes: ArrayLike | None = None,
  first_scored: ArrayLike | None = None,
) -> dict[str, np.ndarray]:
  """Returns a batch for next-token prediction.

  Args:
    tokens: token ids `[B, L + 1]`.
    sizes: int `[B]`, tokens of each row without padding; None for all.
    first_scored: int `[B]`, index of the first scored token; None for 1.

  Returns:
    dict of `[B, L]` arrays: inputs, targets, segment_ids, segment_positions
    and lengths int32, weights float32. Padding is a separate segment with id 0
    and weight 0.
  """
  tokens = np.asarray(tokens, np.int32)
  batch, length = tokens.shape[0], tokens.shape[1] - 1
  index = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
  sizes = np.full(batch, length + 1) if sizes is None else np.asarray(sizes)
  count = np.maximum(sizes - 1, 0)[:, None].astype(np.int32)
  real = index < count
  scored = real
  if first_scored is not None:
    scored = real & (index >= np.asarray(first_scored)[:, None] - 1)
  return {
    'inputs': tokens[:, :-1],
    'targets': tokens[:, 1:],
    'weights': scored.astype(np.float32),
    'segment_ids': real.astype(np.int32),
    'segment_positions': np.where(real, index, index - count),
    'lengths': np.where(real, count, length - count),
  }


def padded(
  batch: Mapping[str, np.ndarray], rows: int
) -> Iterator[dict[str, np.ndarray]]:
  """Yields batches of `rows`; the last is padded with rows of weight 0."""
  for first in range(0, len(batch['weights']), rows):
    part = {name: value[first : first + rows] for name, value in batch.items()}
    missing = rows - len(part['weights'])
    if missing:
      # Copies are valid inputs of the model.
      part = {
        name: np.concatenate([value, np.repeat(value[:1], missing, 0)])
        for name, value in part.items()
      }
      part['weights'][-missing:] = 0
    yield part


def pair_batch(
  encoder_tokens: ArrayLike, targets: ArrayLike
) -> dict[str, np.ndarray]:
  """Returns a batch for an encoder-decoder from rows without padding.

  Args:
    encoder_tokens: token ids `[B, S]`.
    targets: token ids `[B, L]` of the decoder.

  Returns:
    `lm_batch` of the targets after a start token, and that of the encoder as
    'encoder_...', without its targets and weights.
  """
  encoder_tokens = np.asarray(encoder_tokens, np.int32)
  start = np.zeros((len(encoder_tokens), 1), np.int32)
  batch = lm_batch(np.concatenate([start, targets], 1))
  encoder = lm_batch(np.concatenate([encoder_tokens, start], 1))
  for name in ('inputs', 'segment_ids', 'segment_positions', 'lengths'):
    batch[f'encoder_{name}'] = encoder[name]
  return batch
