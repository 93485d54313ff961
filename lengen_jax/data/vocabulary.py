"""Vocabularies: bytes, or a SentencePiece model.

Special ids follow seqio: 0 is padding and the start token, 1 ends a document or
an answer, 2 is unknown. Third-party SentencePiece models, such as that of
Llama, keep their own start and end ids.
"""

from collections.abc import Iterable, Iterator, Sequence
import hashlib
import io
import os
import pathlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lengen_jax import errors
from lengen_jax.data import extra

PAD, END = 0, 1
# Text that a lossy model changes.
_PROBE = 'a\tb  c\n\n  D é\n'


def create(spec: str) -> 'Vocabulary':
  """Returns the vocabulary named in a config.

  Args:
    spec: 'bytes', or the path of a SentencePiece model.

  Raises:
    errors.CorpusError: there is no such model, or its type is unsupported.
  """
  return Bytes() if spec == 'bytes' else SentencePiece(spec)


class Bytes:
  """Vocabulary of bytes; the token id is the byte plus `offset`.

  Attributes: see SentencePiece.
  """

  name, lossless = 'bytes', True
  start, end = PAD, END

  def __init__(self, offset: int = 3) -> None:
    """Adds `offset` to bytes; 3 as in seqio, 0 for text without special ids."""
    self._offset, self.size = offset, 256 + offset
    self.fingerprint = f'bytes_plus_{offset}'

  def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    """Returns the token ids of each text, a list of int32 arrays."""
    return [
      np.frombuffer(text, np.uint8).astype(np.int32) + self._offset
      for text in texts
    ]

  def decode(self, ids: ArrayLike) -> str:
    """Returns the text of token ids, without special ids and invalid UTF-8."""
    return self._bytes(ids).decode('utf-8', errors='ignore')

  def num_bytes(self, ids: ArrayLike) -> int:
    """Returns the number of bytes of text that token ids represent."""
    return len(self._bytes(ids))

  def seqio(self) -> Any:
    """Returns the equivalent seqio vocabulary."""
    import seqio

    return seqio.ByteVocabulary()

  def _bytes(self, ids: ArrayLike) -> bytes:
    ids = np.asarray(ids, np.int32).ravel()
    ids = ids[(ids >= self._offset) & (ids < self.size)]
    return (ids - self._offset).astype(np.uint8).tobytes()


class SentencePiece:
  """Vocabulary of a SentencePiece model; invalid UTF-8 becomes U+FFFD.

  Attributes:
    name: path of the model.
    fingerprint: hash of the file content.
    size: number of token ids.
    start: id before the first token of a document.
    end: id after the last token of a document.
    lossless: whether decoding restores the text, including white space.
  """

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
        "'bytes' or the path of a SentencePiece model; lengen prepare "
        '--vocabulary-size=N trains one'
      ) from None
    try:
      # SentencePiece accepts empty content.
      model = content or b'empty'
      self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
      raise errors.CorpusError(
        f'{path} ({len(content)} bytes) is no SentencePiece model, or corrupt; '
        'copy it again, or delete it and run lengen prepare --vocabulary-size=N'
      ) from None
    self._path = str(path)
    self.fingerprint = hashlib.sha256(content).hexdigest()[:16]
    self.size = self._model.vocab_size()
    self.end, self._pads = self._model.eos_id(), self._model.pad_id()
    self.start = PAD if self._ours else self._model.bos_id()
    if min(self.start, self.end) < 0:
      raise errors.CorpusError(
        f'{path} has the ids {(self.start, self.end)} for begin and end of a '
        'text; both are required; train it with --pad_id=0 --eos_id=1 '
        '--unk_id=2 --bos_id=-1, as lengen prepare does'
      )
    self.lossless = self.decode(self.encode([_PROBE.encode()])[0]) == _PROBE
    self._num_bytes = np.array([self._bytes(i) for i in range(self.size)])

  def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    """Returns the token ids of each text, a list of int32 arrays."""
    found = self._model.encode(
      [text.decode('utf-8', errors='replace') for text in texts],
      num_threads=-1,
    )
    return [np.asarray(ids, np.int32) for ids in found]

  def decode(self, ids: ArrayLike) -> str:
    """Returns the text of token ids, without special ids."""
    return self._model.decode(self._pieces(ids).tolist())

  def num_bytes(self, ids: ArrayLike) -> int:
    """Returns the number of bytes of text; an unknown id counts as 1 byte."""
    return int(self._num_bytes[self._pieces(ids)].sum())

  def seqio(self) -> Any:
    """Returns the equivalent seqio vocabulary."""
    if not self._ours:
      raise errors.CorpusError(
        f'{self._path} has the ids {(self._pads, self.end)} for padding and '
        f'end; prompts and seqio need a vocabulary with {(PAD, END)}; for text '
        "set data.source='prepared', which accepts any"
      )
    import seqio

    return seqio.SentencePieceVocabulary(self._path)

  @property
  def _ours(self) -> bool:
    """Returns whether the padding and end ids are those of seqio."""
    return (self._pads, self.end) == (PAD, END)

  def _pieces(self, ids: ArrayLike) -> np.ndarray:
    ids = np.asarray(ids, np.int32).ravel()
    return ids[(ids > END) & (ids < self.size)]

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
      pad_id=PAD,
      eos_id=END,
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
    told = extra.reason(error).rpartition('] ')[2]
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


Vocabulary = Bytes | SentencePiece
