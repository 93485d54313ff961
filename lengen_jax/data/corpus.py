"""A corpus in memory: token ids of whole documents by split."""

import dataclasses
import functools
from typing import Any

from lengen_jax.data import chunks, stdlib, vocabulary, windows
from lengen_jax.data.config import DataConfig


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Documents by split.

  Attributes:
    documents: split name to list of uint8 or int32 arrays of token ids.
    vocab: vocabulary of the token ids.
    info: description of the data, for results.
  """

  scored_by = 'loss'
  architectures = ('decoder', 'encoder')

  documents: dict
  vocab: vocabulary.Vocabulary
  info: dict

  @property
  def vocab_size(self) -> int:
    """Number of token ids."""
    return self.vocab.size

  def training(
    self, config: DataConfig, *, seed: int, host: tuple[int, int] = (0, 1)
  ) -> windows.Batches:
    """Returns batches of the training split.

    Args:
      config: a DataConfig.
      seed: seed of the order.
      host: (index, count) of the hosts; each has its part of every batch.
    """
    batches = windows.TrainingWindows(
      self.documents['train'],
      length=config.window_length,
      batch_size=config.batch_size,
      seed=seed,
      host=host,
    )
    return chunks.chunked(batches, config, seed=seed, host=host)

  def evaluation(self, config: Any) -> windows.EvaluationWindows:
    """Returns windows of the validation split for an EvalConfig."""
    found = [
      window
      for document in self.documents['validation']
      for window in windows.whole(document, max(config.lengths))
    ]
    return windows.EvaluationWindows(
      found, lengths=config.lengths, count=config.windows, vocab=self.vocab
    )


@functools.cache
def read_stdlib(path: str = '', *, only_docstrings: bool = False) -> Corpus:
  """Returns a corpus of the standard library, read once; see `stdlib.read`."""
  documents, info = stdlib.read(path, only_docstrings=only_docstrings)
  vocab = vocabulary.Bytes(offset=0)
  return Corpus(documents, vocab, {**info, 'vocabulary': vocab.fingerprint})
