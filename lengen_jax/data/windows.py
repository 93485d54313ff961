"""Windows cut from documents: for training by index, for evaluation re-cut.

A window of L tokens to predict is L + 1 tokens: its first input is the true
preceding token, never a made-up start.
"""

import abc
from collections.abc import Iterator, Mapping, Sequence
import json
import pathlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lengen_jax import errors


class Batches(abc.ABC):
  """Batches of training, one after the other, and where they stand.

  Attributes:
    padded: whether rows end with padding.
  """

  padded = False

  @abc.abstractmethod
  def next(self) -> dict[str, np.ndarray]:
    """The next batch; see `lm_batch`."""

  @abc.abstractmethod
  def save(self, folder: pathlib.Path) -> None:
    """Keeps in a folder what makes the next batch the same after `restore`."""

  @abc.abstractmethod
  def restore(self, folder: pathlib.Path) -> None:
    """Goes on as kept by `save`."""


class IndexedBatches(Batches):
  """Batches of which each is a function of its index alone."""

  _next = 0

  @abc.abstractmethod
  def batch(self, index: int) -> dict[str, np.ndarray]:
    """The batch of an index, counted from 0."""

  def next(self) -> dict[str, np.ndarray]:
    batch = self.batch(self._next)
    self._next += 1
    return batch

  def save(self, folder: pathlib.Path) -> None:
    (folder / 'next.json').write_text(json.dumps({'next_index': self._next}))

  def restore(self, folder: pathlib.Path) -> None:
    self._next = json.loads((folder / 'next.json').read_text())['next_index']


class TrainingWindows(IndexedBatches):
  """Batches of windows, each a function of the step alone.

  Every document is cut into windows of `length`; an epoch goes through all of
  them in an order drawn from (seed, epoch).
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
    """Indexes the windows.

    Args:
      documents: list of arrays of token ids.
      length: tokens to predict per window.
      batch_size: windows per batch, over all hosts.
      seed: of the order.
      host: (index, count) of the hosts; each has its part of every batch.

    Raises:
      errors.CorpusError: fewer windows than a batch.
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
        f'the training documents hold {len(self._starts)} windows of {length} '
        f'tokens, fewer than data.batch_size={batch_size}; lower '
        'data.train_length or data.batch_size'
      )
    self._order: tuple[int | None, np.ndarray | None] = (None, None)

  def __len__(self) -> int:
    """Windows in an epoch."""
    return len(self._starts)

  def batch(self, step: int) -> dict[str, np.ndarray]:
    """The batch of a step, counted from 0; see `lm_batch`."""
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


class EvaluationWindows:
  """The same tokens at every length.

  Whole windows of the longest length are re-cut into windows of each shorter
  length, so that a curve over lengths scores identical tokens and only the
  context differs.
  """

  def __init__(
    self,
    windows: Sequence[np.ndarray],
    *,
    lengths: Sequence[int],
    count: int,
    vocab: Any,
  ) -> None:
    """Chooses windows, spread evenly over all there are.

    Args:
      windows: list of arrays of token ids, `[longest + 1]`; see `whole`.
      lengths: the lengths to be evaluated; each divides the longest.
      count: windows to take.
      vocab: of the token ids; see `vocabulary`.

    Raises:
      errors.ConfigError: a length does not divide the longest.
      errors.CorpusError: there are fewer windows.
    """
    longest = max(lengths)
    for length in lengths:
      if longest % length:
        raise errors.ConfigError(
          f'eval.lengths: {length} does not divide the longest, {longest}; '
          'only then can the same tokens be scored at each'
        )
    if len(windows) < count:
      raise errors.CorpusError(
        f'the documents hold {len(windows)} windows of {longest} tokens, fewer '
        f'than eval.windows={count}; lower eval.windows or eval.lengths'
      )
    chosen = [i * len(windows) // count for i in range(count)]
    self._windows = np.stack([windows[i] for i in chosen])
    self.lengths = tuple(lengths)
    self.tokens = count * longest
    self._vocab = vocab

  @property
  def bytes_per_token(self) -> float:
    """Bytes of text that a scored token stands for."""
    return self._vocab.num_bytes(self.scored) / self.tokens

  def texts(self) -> list[str]:
    """The text of the scored tokens of each window."""
    return [self._vocab.decode(window) for window in self.scored]

  @property
  def scored(self) -> np.ndarray:
    """The tokens that are scored, `[count, longest]`."""
    return self._windows[:, 1:]

  def batch(self, length: int) -> dict[str, np.ndarray]:
    """All tokens re-cut to `length`; see `lm_batch`."""
    return lm_batch(self.examples(length))

  def examples(self, length: int) -> np.ndarray:
    """All tokens re-cut to `length`: token ids `[N, length + 1]`."""
    inputs = self.recut(self._windows[:, :-1], length)
    return np.concatenate(
      [inputs, self.recut(self.scored, length)[:, -1:]], axis=1
    )

  def recut(self, values: np.ndarray, length: int) -> np.ndarray:
    """Values of all scored tokens, `[count, longest]`, as `[N, length]`."""
    pieces = range(0, values.shape[1], length)
    return np.concatenate([values[:, i : i + length] for i in pieces])


def whole(document: np.ndarray, length: int) -> list[np.ndarray]:
  """Whole windows of a document, `[length + 1]` each; the rest is left out."""
  return [
    document[start : start + length + 1]
    for start in range(0, len(document) - length, length)
  ]


# How training windows are cut, and what becomes of a document's last tokens.
MODES = {
  'concat': 'documents follow one another and windows run on',
  'doc_pad': 'windows end with their document and are padded',
  'doc_window': 'whole windows of a document; its last tokens are left out',
}


class Cutter:
  """Cuts documents, one after the other, into windows for training.

  Before the first token of all stands `start`, the others' true predecessor
  stands before them.
  """

  def __init__(
    self,
    length: int,
    mode: str,
    *,
    start: int,
    rest: Sequence[int] | np.ndarray = (),
  ) -> None:
    """Begins, or goes on.

    Args:
      length: tokens to predict per window.
      mode: one of MODES.
      start: token id that stands before a document; with 'concat' only before
        the first.
      rest: of an earlier Cutter.
    """
    self._length, self._mode, self._start = length, mode, start
    # Of 'concat': tokens that wait for a whole window, the first a predecessor.
    self.rest = np.asarray(rest if len(rest) else [start], np.int32)

  def cut(self, document: np.ndarray) -> list[np.ndarray]:
    """Windows that a document completes: arrays of up to `length + 1` ids."""
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
  """Rows of a batch that a host has, as a range.

  Args:
    batch_size: rows over all hosts.
    host: (index, count).

  Raises:
    errors.ConfigError: the hosts do not divide the rows.
  """
  index, count = host
  if batch_size % count:
    raise errors.ConfigError(
      f'data.batch_size={batch_size} cannot be divided among {count} hosts'
    )
  share = batch_size // count
  return range(index * share, (index + 1) * share)


def pad(
  windows: Sequence[np.ndarray], length: int
) -> tuple[np.ndarray, np.ndarray]:
  """Windows as rows `[B, length + 1]`, padded with 0, and their sizes `[B]`."""
  tokens = np.zeros((len(windows), length + 1), np.int32)
  for row, window in zip(tokens, windows, strict=True):
    row[: len(window)] = window
  return tokens, np.array([len(window) for window in windows], np.int32)


def lm_batch(
  tokens: ArrayLike,
  sizes: ArrayLike | None = None,
  first_scored: ArrayLike | None = None,
) -> dict[str, np.ndarray]:
  """A batch for next-token prediction from windows `[B, L + 1]`.

  Args:
    tokens: token ids.
    sizes: int `[B]`, tokens of each row that are no padding; None for all.
    first_scored: int `[B]`, index of the first token that is to be predicted;
      None for 1.

  Returns:
    dict of `[B, L]` arrays: inputs, targets, segment_ids, segment_positions
    and lengths int32, weights float32. Padding is a segment of its own with
    id 0 and weight 0.
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
  """Cuts a batch into batches of `rows`, the last filled up with weight 0.

  Args:
    batch: dict of arrays of equal first axis, 'weights' among them.
    rows: of each.

  Yields:
    Dicts of arrays, every row of `batch` once.
  """
  for first in range(0, len(batch['weights']), rows):
    part = {name: value[first : first + rows] for name, value in batch.items()}
    missing = rows - len(part['weights'])
    if missing:
      # Copies, so that the rows are such as the model knows.
      part = {
        name: np.concatenate([value, np.repeat(value[:1], missing, 0)])
        for name, value in part.items()
      }
      part['weights'][-missing:] = 0
    yield part


def pair_batch(
  encoder_tokens: ArrayLike, targets: ArrayLike
) -> dict[str, np.ndarray]:
  """A batch for an encoder-decoder from rows without padding.

  Args:
    encoder_tokens: token ids `[B, S]`.
    targets: token ids `[B, L]`, what the decoder predicts.

  Returns:
    As `lm_batch` of the targets after a start token, and the same of the
    encoder under 'encoder_...', without its targets and weights.
  """
  encoder_tokens = np.asarray(encoder_tokens, np.int32)
  start = np.zeros((len(encoder_tokens), 1), np.int32)
  batch = lm_batch(np.concatenate([start, targets], 1))
  encoder = lm_batch(np.concatenate([encoder_tokens, start], 1))
  for name in ('inputs', 'segment_ids', 'segment_positions', 'lengths'):
    batch[f'encoder_{name}'] = encoder[name]
  return batch
