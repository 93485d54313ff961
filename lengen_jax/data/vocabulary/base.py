"""Interface of vocabularies, and the vocabulary of bytes."""

import abc
from collections.abc import Sequence
import pathlib
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

PAD = 0
END = 1
# Text that a lossy vocabulary changes: white space, and e with an accent as one
# character and as two.
PROBE = 'a\tb  c\n\n  D é e\u0301\n'


class Vocabulary(abc.ABC):
  """Converts text to token ids and back.

  Attributes:
    name: the vocabulary in a config, 'bytes' or a path.
    fingerprint: string that differs between vocabularies that may give a text
      different token ids.
    size: number of token ids.
    start: id before the first token of a document.
    end: id after the last token of a document.
    lossless: whether decoding restores the text, including white space.
    adds_start: whether a prompt begins with the start token; see
      `training.pretrained.prompt_ids`.
  """

  name: str
  fingerprint: str
  size: int
  start: int
  end: int
  lossless: bool
  adds_start = True
  # Bytes of each token id.
  _num_bytes: np.ndarray

  @overload
  def encode(self, texts: str | bytes) -> list[int]: ...

  @overload
  def encode(self, texts: Sequence[bytes] | list[str]) -> list[np.ndarray]: ...

  def encode(self, texts: Any) -> Any:
    """Returns token ids, without ids for the start and the end of a text.

    Args:
      texts: one text, or several. Bytes are UTF-8.

    Returns:
      A list of ids for one text; a list of int32 arrays for several.
    """
    if isinstance(texts, (str, bytes)):
      return self._encode([_utf8(texts)])[0].tolist()
    return self._encode([_utf8(text) for text in texts])

  @abc.abstractmethod
  def decode(self, ids: ArrayLike, *, special: bool = True) -> str:
    """Returns the text of token ids.

    Args:
      ids: integers.
      special: whether special tokens that have a text, such as '<eos>', are
        kept, so that decoding restores a text that contains them.
    """

  def num_bytes(self, ids: ArrayLike) -> int:
    """Returns the number of bytes of text that token ids represent.

    Ids that are not tokens count as 0 bytes.
    """
    return int(self._num_bytes[self._valid(ids)].sum())

  @abc.abstractmethod
  def seqio(self) -> Any:
    """Returns the equivalent seqio vocabulary."""

  @abc.abstractmethod
  def copy_to(self, folder: pathlib.Path) -> None:
    """Copies the files of the vocabulary to a folder of prepared data."""

  @abc.abstractmethod
  def _encode(self, texts: Sequence[bytes]) -> list[np.ndarray]: ...

  def _valid(self, ids: ArrayLike) -> np.ndarray:
    """Returns the ids that are tokens, int32 `[N]`."""
    ids = np.asarray(ids, np.int32).ravel()
    return ids[(ids >= 0) & (ids < len(self._num_bytes))]


class Bytes(Vocabulary):
  """Vocabulary of bytes; the token id is the byte plus `offset`."""

  name, lossless = 'bytes', True
  start, end = PAD, END

  def __init__(self, offset: int = 3) -> None:
    """Adds `offset` to bytes; 3 as in seqio, 0 for text without special ids."""
    self._offset, self.size = offset, 256 + offset
    self.adds_start = offset > 0
    self.fingerprint = f'bytes_plus_{offset}'
    self._num_bytes = np.repeat((0, 1), (offset, 256))

  def decode(self, ids: ArrayLike, *, special: bool = True) -> str:
    """Returns the text of bytes; special ids and invalid UTF-8 have none."""
    del special
    return self._bytes(ids).decode('utf-8', errors='ignore')

  def seqio(self) -> Any:
    import seqio

    return seqio.ByteVocabulary()

  def copy_to(self, folder: pathlib.Path) -> None:
    """Does nothing: there are no files."""

  def _encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    return [
      np.frombuffer(text, np.uint8).astype(np.int32) + self._offset
      for text in texts
    ]

  def _bytes(self, ids: ArrayLike) -> bytes:
    ids = self._valid(ids)
    ids = ids[ids >= self._offset]
    return (ids - self._offset).astype(np.uint8).tobytes()


def _utf8(text: str | bytes) -> bytes:
  # A lone surrogate becomes invalid UTF-8, as it may occur in bytes.
  if isinstance(text, str):
    return text.encode('utf-8', errors='surrogatepass')
  return text
