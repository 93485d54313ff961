"""A vocabulary of this package as one of seqio."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
import seqio
import tensorflow as tf

from lengen_jax.data import seqio_files
from lengen_jax.data.vocabulary import base


class Wrapped(seqio.Vocabulary):
  """Encodes and decodes with a `vocabulary.Vocabulary`.

  Two are equal if their fingerprints are. There is no id for padding: `pad_id`
  is the end, which has no text. seqio pads rows with zeros; where id 0 is a
  token, the sizes of rows distinguish it from padding.
  """

  def __init__(self, vocabulary: base.Vocabulary) -> None:
    super().__init__()
    self._vocabulary = vocabulary

  @property
  def bos_id(self) -> int:
    return self._vocabulary.start

  @property
  def eos_id(self) -> int:
    return self._vocabulary.end

  @property
  def pad_id(self) -> int:
    return self._vocabulary.end

  @property
  def unk_id(self) -> None:
    return None

  @property
  def _base_vocab_size(self) -> int:
    return self._vocabulary.size

  def _encode(self, s: str | bytes) -> list[int]:
    return self._vocabulary.encode(s)

  def _decode(self, ids: ArrayLike) -> str:
    return self._vocabulary.decode(ids, special=False)

  def _encode_tf(self, s: Any) -> Any:
    def encode(text: Any) -> np.ndarray:
      # Outside of a graph, an array of one text.
      return np.array(self._encode(bytes(np.asarray(text).item())), np.int32)

    ids = tf.numpy_function(encode, [s], tf.int32, stateful=False)
    ids.set_shape([None])
    return ids

  def _decode_tf(self, ids: Any) -> Any:
    def decode(ids: np.ndarray) -> np.ndarray:
      rows = ids.reshape(math.prod(ids.shape[:-1]), ids.shape[-1])
      found = seqio_files.texts([self._decode(row).encode() for row in rows])
      return found.reshape(ids.shape[:-1])

    texts = tf.numpy_function(decode, [ids], tf.string, stateful=False)
    texts.set_shape(ids.shape[:-1])
    return texts

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, Wrapped):
      return NotImplemented
    return self._vocabulary.fingerprint == other._vocabulary.fingerprint

  def __hash__(self) -> int:
    return hash(self._vocabulary.fingerprint)

  def __str__(self) -> str:
    name, fingerprint = self._vocabulary.name, self._vocabulary.fingerprint
    return f'Wrapped({name}, fingerprint={fingerprint})'
