"""From text to token ids and back: bytes, or a SentencePiece model.

Ids are those of seqio, with and without it: 0 pads and stands before the first
token, 1 ends a document or an answer, 2 is unknown.
"""

import hashlib
import io
import pathlib

import numpy as np

from lengen_jax import errors

PAD, END = 0, 1


def create(spec):
  """The vocabulary that a config names.

  Args:
    spec: 'bytes', or the path of a SentencePiece model.

  Raises:
    errors.CorpusError: there is no such model, or it is of another kind.
  """
  return Bytes() if spec == 'bytes' else SentencePiece(spec)


class Bytes:
  """Every byte is a token, `offset` above its value."""

  name = 'bytes'

  def __init__(self, offset=3):
    """An offset below 3 leaves no room for padding and end."""
    self._offset, self.size = offset, 256 + offset
    self.fingerprint = f'bytes_plus_{offset}'

  def encode(self, texts):
    """Token ids of each of some texts, `bytes`: list of int32 arrays."""
    return [
      np.frombuffer(text, np.uint8).astype(np.int32) + self._offset
      for text in texts
    ]

  def decode(self, ids):
    """The text of token ids; what is no byte is left out."""
    return self._bytes(ids).decode('utf-8', errors='ignore')

  def num_bytes(self, ids):
    """Bytes of text that token ids stand for."""
    return len(self._bytes(ids))

  def seqio(self):
    """The same vocabulary for seqio."""
    import seqio

    return seqio.ByteVocabulary()

  def _bytes(self, ids):
    ids = np.asarray(ids, np.int32).ravel()
    ids = ids[(ids >= self._offset) & (ids < self.size)]
    return (ids - self._offset).astype(np.uint8).tobytes()


class SentencePiece:
  """A SentencePiece model.

  Attributes:
    name: its path.
    fingerprint: hash of its content.
    size: how many ids there are.
  """

  def __init__(self, path):
    """Loads a model.

    Args:
      path: of the .model file.

    Raises:
      errors.CorpusError: it is missing, broken, or has other special ids.
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
        '--vocabulary-size=N trains one'
      ) from None
    try:
      self._model = sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
      raise errors.CorpusError(
        f'{path} is no SentencePiece model: {error}'
      ) from None
    self._path = str(path)
    self.fingerprint = hashlib.sha256(content).hexdigest()[:16]
    self.size = self._model.vocab_size()
    found = (self._model.pad_id(), self._model.eos_id())
    if found != (PAD, END):
      raise errors.CorpusError(
        f'{path} has the ids {found} for padding and end; here they are '
        f'{(PAD, END)}; train it with --pad_id=0 --eos_id=1 --unk_id=2 '
        '--bos_id=-1, as lengen prepare does'
      )

  def encode(self, texts):
    """Token ids of each of some texts, `bytes`: list of int32 arrays."""
    found = self._model.encode(
      [text.decode('utf-8', errors='replace') for text in texts],
      num_threads=-1,
    )
    return [np.asarray(ids, np.int32) for ids in found]

  def decode(self, ids):
    """The text of token ids."""
    ids = np.asarray(ids).ravel()
    return self._model.decode(ids[ids > END].tolist())

  def num_bytes(self, ids):
    """Bytes of text that token ids stand for."""
    return len(self.decode(ids).encode())

  def seqio(self):
    """The same vocabulary for seqio."""
    import seqio

    return seqio.SentencePieceVocabulary(self._path)


def train(texts, size, path):
  """Trains a SentencePiece model that loses nothing of a text.

  Args:
    texts: iterable of `bytes`.
    size: how many ids it shall have.
    path: the .model file to write.

  Raises:
    errors.CorpusError: the texts cannot give so many pieces.
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
      minloglevel=2,
    )
  except RuntimeError as error:
    raise errors.CorpusError(
      f'cannot train a vocabulary of {size} pieces: {error}'
    ) from None
  pathlib.Path(path).write_bytes(model.getvalue())


def _lines(texts):
  """Lines, and pieces of long ones: the trainer leaves out what is longer."""
  for text in texts:
    for line in text.decode('utf-8', errors='replace').splitlines():
      yield from (line[i : i + 1000] for i in range(0, len(line), 1000))


def _sentencepiece():
  try:
    import sentencepiece
  except ImportError as error:
    raise errors.CorpusError(
      'SentencePiece vocabularies need the data extra: pip install '
      "'lengen_jax[data]'"
    ) from error
  return sentencepiece
