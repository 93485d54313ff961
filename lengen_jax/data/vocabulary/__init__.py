"""Vocabularies: bytes, a SentencePiece model, or a tokenizer of transformers.

Special ids of bytes and of models that `train` makes follow seqio: 0 is padding
and the start token, 1 ends a document or an answer, 2 is unknown. Third-party
SentencePiece models, such as that of Llama, and tokenizers of transformers keep
their own start and end ids; 0 may be any token. Rows are padded with zeros and
have a size.
"""

import pathlib

from lengen_jax.data.vocabulary import pieces, tokenizer
from lengen_jax.data.vocabulary.base import Bytes, END, PAD, Vocabulary
from lengen_jax.data.vocabulary.pieces import SentencePiece, train
from lengen_jax.data.vocabulary.tokenizer import Tokenizer

__all__ = [
  'Bytes',
  'COPIES',
  'END',
  'PAD',
  'SentencePiece',
  'Tokenizer',
  'Vocabulary',
  'copy_in',
  'create',
  'train',
]


# A file or folder in a folder of prepared data.
COPIES = (pieces.COPY, tokenizer.COPY)


def copy_in(folder: pathlib.Path) -> str | None:
  """Returns the spec of the copy in a folder of prepared data, if any."""
  copies = [folder / name for name in COPIES]
  return next((str(path) for path in copies if path.exists()), None)


def create(spec: str) -> Vocabulary:
  """Returns the vocabulary named in a config.

  Args:
    spec: 'bytes', the path of a SentencePiece model, a folder that contains
      `tokenizer.json`, or the path of that file.

  Raises:
    errors.CorpusError: the vocabulary is missing, corrupt or unsupported.
  """
  if spec == 'bytes':
    return Bytes()
  path = pathlib.Path(spec).expanduser()
  if path.suffix == '.json' or path.is_dir():
    return Tokenizer(spec)
  return SentencePiece(spec)
