"""From text to token ids and back: bytes, or a SentencePiece model.

Ids are those of seqio, with and without it: 0 pads and stands before the first
token, 1 ends a document or an answer, 2 is unknown. A SentencePiece model of
somebody else, such as that of a Llama, keeps its own for begin and end.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
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
# What models for other uses do not keep.
_PROBE = 'a\tb  c\n\n  D é\n'


def create(spec: str) -> 'Vocabulary':
  """The vocabulary that a config names.

  Args:
    spec: 'bytes', or the path of a SentencePiece model.

  Raises:
    errors.CorpusError: there is no such model, or it is of another kind.
  """
  return Bytes() if spec == 'bytes' else SentencePiece(spec)


class Bytes:
  """Every byte is a token, `offset` above its value.

  Attributes:
    name: 'bytes'.
    fingerprint: tells it from others.
    size: how many ids there are.
    start: the id before the first token of a document.
    end: the id after the last.
  """

  name, lossless = 'bytes', True
  start, end = PAD, END

  def __init__(self, offset: int = 3) -> None:
    """As seqio has it; 0 for text that needs no padding and no end."""
    self._offset, self.size = offset, 256 + offset
    self.fingerprint = f'bytes_plus_{offset}'

  def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    """Token ids of each of some texts, `bytes`: list of int32 arrays."""
    return [
      np.frombuffer(text, np.uint8).astype(np.int32) + self._offset
      for text in texts
    ]

  def decode(self, ids: ArrayLike) -> str:
    """The text of token ids; what is no byte or no UTF-8 is left out."""
    return self._bytes(ids).decode('utf-8', errors='ignore')

  def num_bytes(self, ids: ArrayLike) -> int:
    """Bytes of text that token ids stand for."""
    return len(self._bytes(ids))

  def seqio(self) -> Any:
    """The same vocabulary for seqio."""
    import seqio

    return seqio.ByteVocabulary()

  def _bytes(self, ids: ArrayLike) -> bytes:
    ids = np.asarray(ids, np.int32).ravel()
    ids = ids[(ids >= self._offset) & (ids < self.size)]
    return (ids - self._offset).astype(np.uint8).tobytes()


class SentencePiece:
  """A SentencePiece model; bytes that are no UTF-8 become U+FFFD.

  Attributes:
    name: its path.
    fingerprint: hash of its content.
    size: how many ids there are.
    start: the id before the first token of a document.
    end: the id after the last.
    lossless: whether text comes back as it was, white space too.
  """

  def __init__(self, path: str) -> None:
    """Loads a model.

    Args:
      path: of the .model file.

    Raises:
      errors.CorpusError: it is missing, broken, or lacks special ids.
    """
    sentencepiece = _sentencepiece()
    self.name = str(path)
    path = pathlib.Path(path).expanduser()
    try:
      content = path.read_bytes()
    except OSError as error:
      raise errors.CorpusError(
        f'no vocabulary at {path} ({error.strerror}); data.vocabulary is '
        "'bytes' or the path of a SentencePiece model; lengen prepare "
        '--vocabulary-size=N trains one, and keeps a copy beside what it writes'
      ) from None
    try:
      # An empty model would pass.
      model = content or b'empty'
      self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
      raise errors.CorpusError(
        f'{path} ({len(content)} bytes) is no SentencePiece model, or broken; '
        'copy it again, or remove it and train one by lengen prepare '
        '--vocabulary-size=N'
      ) from None
    self._path = str(path)
    self.fingerprint = hashlib.sha256(content).hexdigest()[:16]
    self.size = self._model.vocab_size()
    self.end, self._pads = self._model.eos_id(), self._model.pad_id()
    self.start = PAD if self._ours else self._model.bos_id()
    if min(self.start, self.end) < 0:
      raise errors.CorpusError(
        f'{path} has the ids {(self.start, self.end)} for begin and end of a '
        'text, and needs both; train it with --pad_id=0 --eos_id=1 --unk_id=2 '
        '--bos_id=-1, as lengen prepare does'
      )
    self.lossless = self.decode(self.encode([_PROBE.encode()])[0]) == _PROBE
    self._num_bytes = np.array([self._bytes(i) for i in range(self.size)])

  def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    """Token ids of each of some texts, `bytes`: list of int32 arrays."""
    found = self._model.encode(
      [text.decode('utf-8', errors='replace') for text in texts],
      num_threads=-1,
    )
    return [np.asarray(ids, np.int32) for ids in found]

  def decode(self, ids: ArrayLike) -> str:
    """The text of token ids; what is no piece is left out."""
    return self._model.decode(self._pieces(ids).tolist())

  def num_bytes(self, ids: ArrayLike) -> int:
    """Bytes of text that token ids stand for; an unknown piece counts as 1."""
    return int(self._num_bytes[self._pieces(ids)].sum())

  def seqio(self) -> Any:
    """The same vocabulary for seqio."""
    if not self._ours:
      raise errors.CorpusError(
        f'{self._path} has the ids {(self._pads, self.end)} for padding and '
        f'end, where seqio has {(PAD, END)}; prompts, which are read through '
        'seqio alone, need a vocabulary with those; for text set '
        "data.source='prepared', which takes this one too"
      )
    import seqio

    return seqio.SentencePieceVocabulary(self._path)

  @property
  def _ours(self) -> bool:
    """Whether padding and end are what they are elsewhere."""
    return (self._pads, self.end) == (PAD, END)

  def _pieces(self, ids: ArrayLike) -> np.ndarray:
    ids = np.asarray(ids, np.int32).ravel()
    return ids[(ids > END) & (ids < self.size)]

  def _bytes(self, piece: int) -> int:
    """Bytes of text that a piece stands for."""
    if self._model.is_control(piece):
      return 0
    if self._model.is_byte(piece) or self._model.is_unknown(piece):
      return 1
    return len(self._model.id_to_piece(piece).replace('▁', ' ').encode())


def train(texts: Iterable[bytes], size: int, path: str | pathlib.Path) -> None:
  """Trains a SentencePiece model that loses nothing of a text.

  Nothing but U+2581: SentencePiece writes spaces so, and reads it as one.

  Args:
    texts: iterable of `bytes`.
    size: how many ids it shall have.
    path: the .model file to write.

  Raises:
    errors.CorpusError: the texts cannot give so many pieces, or the file
      cannot be written.
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
    # Behind the place in their code, which numbers are possible.
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
  """Lines, and pieces of long ones: the trainer leaves out what is longer."""
  for text in texts:
    for line in text.decode('utf-8', errors='replace').splitlines():
      yield from (line[i : i + 1000] for i in range(0, len(line), 1000))


def _sentencepiece() -> Any:
  return extra.load('sentencepiece', 'a SentencePiece vocabulary')


Vocabulary = Bytes | SentencePiece
