"""A corpus in memory: whole documents as token ids, split by use."""

import dataclasses
from typing import Any

from lengen_jax.data import stdlib, vocabulary, windows
from lengen_jax.data.config import DataConfig


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Documents by split.

  Attributes:
    documents: split name to list of uint8 or int32 arrays of token ids.
    vocab: of the token ids; see `vocabulary`.
    info: where the text came from, for results.
  """

  scored_by = 'loss'
  architectures = ('decoder', 'encoder')

  documents: dict
  vocab: vocabulary.Bytes
  info: dict

  @property
  def vocab_size(self) -> int:
    """Ids are below this."""
    return self.vocab.size

  def training(
    self, config: DataConfig, *, seed: int, host: tuple[int, int] = (0, 1)
  ) -> windows.TrainingWindows:
    """Batches of the training split.

    Args:
      config: a DataConfig.
      seed: of their order.
      host: (index, count) of the hosts.

    Returns:
      A `windows.Batches`.
    """
    return windows.TrainingWindows(
      self.documents['train'],
      length=config.train_length,
      batch_size=config.batch_size,
      seed=seed,
      host=host,
    )

  def evaluation(self, config: Any) -> windows.EvaluationWindows:
    """Windows of the validation split; of an EvalConfig."""
    found = [
      window
      for document in self.documents['validation']
      for window in windows.whole(document, max(config.lengths))
    ]
    return windows.EvaluationWindows(
      found, lengths=config.lengths, count=config.windows, vocab=self.vocab
    )


def read_stdlib(path: str = '') -> Corpus:
  """The embedded corpus; see `stdlib.read`."""
  documents, info = stdlib.read(path)
  vocab = vocabulary.Bytes(offset=0)
  return Corpus(documents, vocab, {**info, 'vocabulary': vocab.fingerprint})
