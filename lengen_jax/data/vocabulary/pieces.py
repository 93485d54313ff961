"""Vocabularies of SentencePiece models, and their training."""

from collections.abc import Iterable, Iterator, Sequence
import hashlib
import io
import os
import pathlib
import shutil
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lengen_jax import errors, extra
from lengen_jax.data.vocabulary import base

# The copy in a folder of prepared data.
COPY = 'vocabulary.model'


class SentencePiece(base.Vocabulary):
  """Vocabulary of a SentencePiece model; invalid UTF-8 becomes U+FFFD."""

  def __init__(self, path: str) -> None:
    """Loads a .model file.

    Raises:
      errors.CorpusError: the file is missing, corrupt, or lacks special ids.
    """
    sentencepiece = _sentencepiece()
    self.name = str(path)
    path = pathlib.Path(path).expanduser()
    try:
      content = path.read_bytes()
    except OSError as error:
      raise errors.CorpusError(
        f'no vocabulary at {path} ({error.strerror}); data.vocabulary must be '
        "'bytes', the path of a SentencePiece model, or a folder with "
        'tokenizer.json; lengen prepare --vocabulary-size=N trains a model'
      ) from None
    try:
      # SentencePiece accepts empty content.
      model = content or b'empty'
      self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
      raise errors.CorpusError(
        f'{path} ({len(content)} bytes) is not a SentencePiece model, or '
        'corrupt; copy it again, or delete it and run lengen prepare '
        '--vocabulary-size=N'
      ) from None
    self._path = str(path)
    self.size = self._model.vocab_size()
    self.start, self.end = self._model.bos_id(), self._model.eos_id()
    # Models of seqio, such as that of T5, have no id for the start.
    like_seqio = (self._model.pad_id(), self.end) == (base.PAD, base.END)
    if like_seqio and self.start < 0:
      self.start = base.PAD
    elif like_seqio:
      # Earlier versions ignored this id, so their data differs.
      content += b'start'
    self.fingerprint = hashlib.sha256(content).hexdigest()[:16]
    if min(self.start, self.end) < 0:
      raise errors.CorpusError(
        f'{path} has the ids {(self.start, self.end)} for begin and end of a '
        'text; both are required; train it with --pad_id=0 --eos_id=1 '
        '--unk_id=2 --bos_id=-1, as lengen prepare does'
      )
    # An unknown piece counts as 1 byte.
    self._num_bytes = np.array([self._bytes(i) for i in range(self.size)])
    self.lossless = self.decode(self.encode(base.PROBE)) == base.PROBE

  def decode(self, ids: ArrayLike, *, special: bool = True) -> str:
    """Returns the text of pieces; special ids have none."""
    del special
    return self._model.decode(self._valid(ids).tolist())

  def seqio(self) -> Any:
    import seqio

    return seqio.SentencePieceVocabulary(self._path)

  def copy_to(self, folder: pathlib.Path) -> None:
    source, copy = pathlib.Path(self._path).absolute(), folder / COPY
    if source != copy:
      shutil.copyfile(source, copy)

  def _encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    found = self._model.encode(
      [text.decode('utf-8', errors='replace') for text in texts],
      # More threads are not faster; `lengen prepare` has processes.
      num_threads=1,
    )
    return [np.asarray(ids, np.int32) for ids in found]

  def _bytes(self, piece: int) -> int:
    """Returns the number of bytes of text that a piece represents."""
    if self._model.is_control(piece):
      return 0
    if self._model.is_byte(piece) or self._model.is_unknown(piece):
      return 1
    return len(self._model.id_to_piece(piece).replace('▁', ' ').encode())


def train(texts: Iterable[bytes], size: int, path: str | pathlib.Path) -> None:
  """Trains a SentencePiece model and writes it to `path`.

  The model is lossless except for U+2581, which decodes to a space.

  Raises:
    errors.CorpusError: the texts are too short for this number of pieces, or
      the file cannot be written.
  """
  sentencepiece = _sentencepiece()
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=_lines(texts),
      model_writer=model,
      vocab_size=size,
      pad_id=base.PAD,
      eos_id=base.END,
      unk_id=2,
      bos_id=-1,
      byte_fallback=True,
      normalization_rule_name='identity',
      remove_extra_whitespaces=False,
      add_dummy_prefix=False,
      # Code is indented: a run of spaces may be one piece.
      allow_whitespace_only_pieces=True,
      minloglevel=2,
    )
  except RuntimeError as error:
    # The message follows a source location in SentencePiece.
    told = errors.reason(error).rpartition(']')[2].strip()
    raise errors.CorpusError(
      f'cannot train a vocabulary of {size} pieces: '
      f'{told or "there is no text"}'
    ) from None
  path = pathlib.Path(path)
  partial = path.with_name(path.name + '.partial')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(model.getvalue())
    os.replace(partial, path)
  except OSError as error:
    raise errors.CorpusError(
      f'cannot write {path}: {error.strerror}; set data.vocabulary to another '
      'path'
    ) from None


def _lines(texts: Iterable[bytes]) -> Iterator[str]:
  """Yields lines in pieces of 1000: the trainer ignores longer lines."""
  for text in texts:
    for line in text.decode('utf-8', errors='replace').splitlines():
      yield from (line[i : i + 1000] for i in range(0, len(line), 1000))


def _sentencepiece() -> Any:
  return extra.load('sentencepiece', 'a SentencePiece vocabulary')
