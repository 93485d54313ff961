"""Tests `lengen_jax/data/vocabulary/pieces.py`."""

import hashlib
import io
import sys

import numpy as np
import pytest
import sentencepiece

from lengen_jax import errors
from lengen_jax.data import vocabulary
from tests.data.vocabulary.odd import ODD

LINES = [
  f'{word} {other}\t{n}  of the text\n'.encode()
  for n, word in enumerate(('alpha', 'beta', 'gamma', '漢字') * 10)
  for other in ('one', 'two', 'three', 'alphabet')
]


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """The path of a small model."""
  path = tmp_path_factory.mktemp('vocabulary') / 'deep' / 'a.model'
  vocabulary.train(LINES, 295, path)
  return path


def test_a_trained_model_loses_nothing(model):
  vocab = vocabulary.create(str(model))
  assert vocab.size == 295
  assert vocab.name == str(model)
  found = vocab.encode([text.encode() for text in ODD])
  assert [vocab.decode(ids) for ids in found] == list(ODD)
  for ids, text in zip(found, ODD, strict=True):
    assert ids.dtype == np.int32
    assert vocab.encode(text) == ids.tolist()
    assert not {*ids.tolist()} & {vocabulary.PAD, vocabulary.END, 2}
    assert vocab.num_bytes(ids) == len(text.encode())
  # Pieces were learned: fewer tokens than bytes.
  [ids] = vocab.encode([b''.join(LINES)])
  assert len(ids) < 0.6 * len(b''.join(LINES))


def train(path, **ids):
  """A small model with SentencePiece's defaults, and these special ids."""
  written = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([line.decode() for line in LINES]),
    model_writer=written,
    vocab_size=60,
    hard_vocab_limit=False,
    minloglevel=2,
    **ids,
  )
  path.write_bytes(written.getvalue())
  return vocabulary.create(str(path))


def test_a_model_that_loses_white_space_says_so(model, tmp_path):
  lossy = train(
    tmp_path / 'lossy.model', pad_id=0, eos_id=1, unk_id=2, bos_id=-1
  )
  assert not lossy.lossless
  assert lossy.start == vocabulary.PAD
  assert vocabulary.create(str(model)).lossless


def test_a_start_beside_the_ids_of_seqio(tmp_path):
  """As in Gemma."""
  path = tmp_path / 'a.model'
  vocab = train(path, pad_id=0, eos_id=1, bos_id=2, unk_id=3)
  assert (vocab.start, vocab.end) == (2, 1)
  # Data of versions that took 0 for the start is another.
  assert vocab.fingerprint != hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def test_bytes_of_windows_add_up(model):
  """Wherever text is cut, within a character too."""
  vocab = vocabulary.create(str(model))
  [ids] = vocab.encode([ODD[2].encode()])
  parts = [vocab.num_bytes(ids[n : n + 1]) for n in range(len(ids))]
  assert sum(parts) == len(ODD[2].encode())
  batch = np.concatenate([ids, [0, 1, 5000]]).reshape(1, -1)
  assert vocab.num_bytes(batch) == len(ODD[2].encode())
  assert vocab.decode(batch) == ODD[2]


def test_what_is_no_utf8_is_replaced(model):
  vocab = vocabulary.create(str(model))
  [ids] = vocab.encode([b'a\xffb'])
  assert vocab.decode(ids) == 'a\ufffdb'


def test_the_same_text_gives_the_same_model(model, tmp_path):
  vocabulary.train(iter(LINES), 295, tmp_path / 'b.model')
  assert (tmp_path / 'b.model').read_bytes() == model.read_bytes()
  assert [path.name for path in tmp_path.iterdir()] == ['b.model']
  vocabulary.train(LINES, 290, tmp_path / 'c.model')
  fingerprints = {
    vocabulary.create(str(path)).fingerprint
    for path in (model, tmp_path / 'b.model', tmp_path / 'c.model')
  }
  assert len(fingerprints) == 2


def test_long_lines_are_learned_from(tmp_path):
  """The trainer by itself would leave them out."""
  text = b''.join(LINES * 3).replace(b'\n', b' ')
  vocabulary.train([text], 295, tmp_path / 'a.model')
  [ids] = vocabulary.create(str(tmp_path / 'a.model')).encode([b'alphabet'])
  assert len(ids) < len(b'alphabet')


@pytest.mark.parametrize(
  'texts, size, reason',
  [
    (LINES, 100_000, 'of 100000 pieces: Vocabulary size too high .* <= '),
    (LINES, 100, 'of 100 pieces: Vocabulary size is smaller than required'),
    ([], 300, 'there is no text'),
    ([b'\n\n'], 300, 'there is no text'),
  ],
)
def test_sizes_that_no_text_gives(tmp_path, texts, size, reason):
  with pytest.raises(errors.CorpusError, match=f'cannot train .*{reason}'):
    vocabulary.train(texts, size, tmp_path / 'a.model')
  assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_written(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.CorpusError, match='cannot write .*file/a.model'):
    vocabulary.train(LINES, 290, tmp_path / 'file' / 'a.model')


@pytest.mark.parametrize(
  'content, reason',
  [
    (None, r'no vocabulary at .*a\.model \(No such file.*--vocabulary-size=N'),
    (b'', r'a\.model \(0 bytes\) is not a .* copy it again'),
    (b'garbage', r'a\.model \(7 bytes\) is not a SentencePiece model'),
  ],
)
def test_models_that_are_missing_or_broken(tmp_path, content, reason):
  if content is not None:
    (tmp_path / 'a.model').write_bytes(content)
  with pytest.raises(errors.CorpusError, match=reason):
    vocabulary.create(str(tmp_path / 'a.model'))


def test_a_model_that_was_cut_short(model, tmp_path):
  content = model.read_bytes()
  (tmp_path / 'a.model').write_bytes(content[: len(content) // 2])
  with pytest.raises(errors.CorpusError, match='is not a SentencePiece model'):
    vocabulary.create(str(tmp_path / 'a.model'))


def test_models_with_other_special_ids(tmp_path):
  """Those of SentencePiece itself, and of LLaMA: no padding, end 2."""

  def write(**special):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=(line.decode() for line in LINES),
      model_writer=written,
      vocab_size=60,
      hard_vocab_limit=False,
      minloglevel=2,
      **special,
    )
    (tmp_path / 'a.model').write_bytes(written.getvalue())
    return str(tmp_path / 'a.model')

  vocab = vocabulary.create(write())
  assert (vocab.start, vocab.end) == (1, 2)
  [ids] = vocab.encode([b'alpha one'])
  assert vocab.decode([vocab.start, *ids, vocab.end]) == 'alpha one'
  assert vocab.num_bytes([vocab.start, vocab.end]) == 0
  # Ids 0 and 1 may be tokens of text.
  vocab = vocabulary.create(write(unk_id=2, bos_id=3, eos_id=4))
  text = 'alphabet one of the text beta three of the text'
  ids = vocab.encode(text)
  assert {0, 1} <= {*ids} and vocab.decode(ids) == text
  assert vocab.num_bytes(ids) == len(f' {text}'.encode())
  with pytest.raises(
    errors.CorpusError, match=r'a\.model has the ids \(-1, 2\) for begin'
  ):
    vocabulary.create(write(bos_id=-1))


def test_without_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, 'sentencepiece', None)
  with pytest.raises(errors.CorpusError, match=r'pip install .*\[data\]'):
    vocabulary.create('a.model')
