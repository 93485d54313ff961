"""A corpus: whole documents as token ids, split for training and evaluation."""

import dataclasses

from lengen_jax import errors
from lengen_jax.data import stdlib


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Documents by split.

  Attributes:
    documents: split name to list of uint8 or int32 arrays of token ids.
    vocab_size: ids are below this.
    bytes_per_token: for bits per byte.
    info: where the text came from, for results.
  """

  documents: dict
  vocab_size: int
  bytes_per_token: float
  info: dict


def load(source, path=''):
  """Loads a corpus.

  Args:
    source: 'stdlib', the Python standard library's own source as bytes.
    path: folder to read instead of the source's own.

  Raises:
    errors.ConfigError: unknown source.
    errors.CorpusError: the text is missing.
  """
  if source != 'stdlib':
    raise errors.ConfigError(errors.one_of('data.source', source, ['stdlib']))
  documents, info = stdlib.read(path)
  return Corpus(documents, vocab_size=256, bytes_per_token=1.0, info=info)
