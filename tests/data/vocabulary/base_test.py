"""Tests `lengen_jax/data/vocabulary/base.py`."""

import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.data import vocabulary
from tests.data.vocabulary.odd import ODD


def test_bytes_are_ids_of_seqio():
  """What seqio.ByteVocabulary() gives; it is compared in seqio_test.py."""
  vocab = vocabulary.create('bytes')
  [ids] = vocab.encode(['a\x00 ÿé'.encode()])
  assert ids.dtype == np.int32
  assert ids.tolist() == [100, 3, 35, 198, 194, 198, 172]
  assert vocab.size == 259
  assert (vocabulary.PAD, vocabulary.END) == (0, 1)


def test_all_bytes_come_back():
  vocab = vocabulary.create('bytes')
  everything = bytes(range(256)) * 2
  found = vocab.encode([everything, b'', *(text.encode() for text in ODD)])
  assert sorted({*found[0].tolist()}) == list(range(3, 259))
  assert bytes((found[0] - 3).tolist()) == everything
  assert vocab.num_bytes(found[0]) == 512
  assert [vocab.decode(ids) for ids in found[1:]] == ['', *ODD]
  # A character that is cut is left out.
  assert vocab.decode(vocab.encode(['aé'.encode()])[0][:2]) == 'a'


def test_ids_that_are_no_bytes():
  vocab = vocabulary.create('bytes')
  ids = np.array([[0, 100, 101], [1, 2, 300]])
  assert vocab.decode(ids) == 'ab'
  assert vocab.num_bytes(ids) == 2
  vocab = vocabulary.Bytes(offset=0)
  assert vocab.encode([b'\x00a'])[0].tolist() == [0, 97]
  assert vocab.size == 256
  assert vocab.fingerprint != vocabulary.create('bytes').fingerprint


def test_one_text_or_several():
  vocab = vocabulary.create('bytes')
  assert vocab.lossless
  assert vocab.encode('aé') == vocab.encode('aé'.encode()) == [100, 198, 172]
  assert type(vocab.encode('a')[0]) is int
  for texts in (['a', 'é'], [b'a', 'é'], ('a', 'é'.encode())):
    first, second = vocab.encode(texts)
    assert (first.tolist(), second.tolist()) == ([100], [198, 172])
  assert vocab.encode('') == vocab.encode([]) == []
  # A lone surrogate is no text, but occurs in JSON.
  assert vocab.decode(vocab.encode('a\ud800b')) == 'ab'


def test_vocabularies_by_name(tmp_path):
  for spec in (tmp_path, tmp_path / 'a.json'):
    with pytest.raises(errors.CorpusError, match=r'cannot read .*\.json'):
      vocabulary.create(str(spec))
  for spec in ('a.model', tmp_path / 'none'):
    with pytest.raises(
      errors.CorpusError, match="'bytes', .*SentencePiece model.*tokenizer.json"
    ):
      vocabulary.create(str(spec))
