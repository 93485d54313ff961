"""Windows cut from documents: for training by index, for evaluation re-cut.

A window of L tokens to predict is L + 1 tokens of one document: its first input
is the true preceding token, never a made-up start.
"""

import numpy as np

from lengen_jax import errors


class TrainingWindows:
  """Batches of windows, each a function of the step alone.

  Every document is cut into windows of `length`; an epoch goes through all of
  them in an order drawn from (seed, epoch).
  """

  # Rows hold one segment each.
  packed = False

  def __init__(self, documents, *, length, batch_size, seed):
    """Indexes the windows.

    Args:
      documents: list of arrays of token ids.
      length: tokens to predict per window.
      batch_size: windows per batch.
      seed: of the order.

    Raises:
      errors.CorpusError: fewer windows than a batch.
    """
    self.length, self.batch_size, self.seed = length, batch_size, seed
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
    self._order = (None, None)

  def __len__(self):
    """Windows in an epoch."""
    return len(self._starts)

  def batch(self, step):
    """The batch of a step, counted from 0; see `lm_batch`."""
    first = step * self.batch_size
    rows = [
      self._epoch_order(index // len(self))[index % len(self)]
      for index in range(first, first + self.batch_size)
    ]
    starts = self._starts[rows]
    return lm_batch(self._text[starts[:, None] + np.arange(self.length + 1)])

  def _epoch_order(self, epoch):
    if self._order[0] != epoch:
      generator = np.random.Generator(np.random.Philox([self.seed, epoch]))
      self._order = (epoch, generator.permutation(len(self)))
    return self._order[1]


class EvaluationWindows:
  """The same tokens at every length.

  Whole windows of the longest length are taken from documents that have them
  and re-cut into windows of each shorter length, so that a curve over lengths
  scores identical tokens and only the context differs.
  """

  def __init__(self, documents, *, lengths, count):
    """Chooses the windows.

    Args:
      documents: list of arrays of token ids.
      lengths: the lengths to be evaluated; each divides the longest.
      count: windows of the longest length, spread evenly over all there are.

    Raises:
      errors.ConfigError: a length does not divide the longest.
      errors.CorpusError: no document is long enough.
    """
    longest = max(lengths)
    for length in lengths:
      if longest % length:
        raise errors.ConfigError(
          f'eval.lengths: {length} does not divide the longest, {longest}; '
          'only then can the same tokens be scored at each'
        )
    windows = [
      document[start : start + longest + 1]
      for document in documents
      for start in range(0, len(document) - longest, longest)
    ]
    if len(windows) < count:
      raise errors.CorpusError(
        f'the documents hold {len(windows)} windows of {longest} tokens, fewer '
        f'than eval.windows={count}; lower eval.windows or eval.lengths'
      )
    chosen = np.arange(count) * len(windows) // count
    self._windows = np.stack([windows[i] for i in chosen])
    self.lengths = tuple(lengths)
    self.tokens = count * longest

  def examples(self, length):
    """All tokens re-cut to `length`: token ids `[N, length + 1]`."""
    pieces = self._windows.shape[1] // length
    return np.concatenate(
      [
        self._windows[:, i * length : (i + 1) * length + 1]
        for i in range(pieces)
      ]
    )


def lm_batch(tokens):
  """A batch for next-token prediction from windows `[B, L + 1]`.

  Returns:
    dict of `[B, L]` arrays: inputs, targets, segment_ids, segment_positions
    and lengths int32, weights float32.
  """
  tokens = np.asarray(tokens, np.int32)
  shape = batch, length = tokens.shape[0], tokens.shape[1] - 1
  index = np.arange(length, dtype=np.int32)
  return {
    'inputs': tokens[:, :-1],
    'targets': tokens[:, 1:],
    'weights': np.ones(shape, np.float32),
    'segment_ids': np.ones(shape, np.int32),
    'segment_positions': np.tile(index, (batch, 1)),
    'lengths': np.full(shape, length, np.int32),
  }
