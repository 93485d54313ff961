"""Tests `lengen_jax/data/prepare.py` and `manifest.py`."""

import dataclasses
import gzip
import json
import os
import pathlib
import shutil
import sys

from array_record.python import array_record_module
import numpy as np
import pytest

from lengen_jax import data, errors
from lengen_jax.data import manifest as manifest_lib
from lengen_jax.data import prepare, sources, vocabulary, windows
from lengen_jax.evaluation import config as eval_config
from tests import helpers

LONGEST = 32


class Numbers:
  """A vocabulary in which each token of a corpus is a number of its own."""

  name, fingerprint, size = 'numbers', 'numbers', 1 << 20
  lossless = True
  start, end = 3, 4

  def encode(self, texts):
    return [np.array(text.split(), np.int32) for text in texts]


@pytest.fixture
def numbers(monkeypatch):
  """Documents are numbers, and each number is a token."""
  monkeypatch.setattr(vocabulary, 'create', lambda spec: Numbers())


def number_documents(*sizes):
  """Documents whose tokens count on, each beginning at an even thousand."""
  return [
    ' '.join(map(str, range(first, first + size)))
    for first, size in zip(range(1000, 10**6, 1000), sizes, strict=False)
  ]


def write_raw(folder, train, validation, files=1):
  """JSON lines of documents."""
  folder.mkdir()
  for number in range(files):
    lines = [json.dumps({'text': text}) for text in train[number::files]]
    (folder / f'train_{number}.jsonl').write_text('\n'.join(lines))
  lines = [json.dumps({'text': text}) for text in validation]
  (folder / 'valid.jsonl').write_text('\n'.join(lines))
  return folder


@pytest.fixture(scope='module')
def raw(tmp_path_factory):
  """Raw data of bytes: 40 documents of 1 to 120 bytes in two files."""
  generator = np.random.default_rng(0)
  texts = [
    bytes(generator.integers(97, 123, size).astype(np.uint8)).decode()
    for size in generator.integers(1, 120, 48)
  ]
  return write_raw(
    tmp_path_factory.mktemp('raw') / 'lm', texts[:40], texts[40:], files=2
  )


def config(folder, **fields):
  fields = dict(train_length=16, batch_size=2, mode='doc_pad') | fields
  fields = dict(task='lm', path=str(folder)) | fields
  return data.DataConfig(source='prepared', **fields)


def run(folder, raw, longest=LONGEST, vocabulary_size=0, **fields):
  return prepare.prepare(
    config(folder, **fields),
    raw=str(raw),
    longest=longest,
    vocabulary_size=vocabulary_size,
  )


def read_windows(folder, split, dtype='<u2'):
  """The windows of a split in the order in which they were written."""
  manifest = manifest_lib.read(folder)
  return [
    np.frombuffer(record, dtype)
    for path, _ in manifest_lib.shards(folder, manifest, split)
    for record in array_record_module.ArrayRecordReader(str(path)).read_all()
  ]


def hashes(folder):
  """All that lies in a folder."""
  return {
    str(path.relative_to(folder)): manifest_lib.sha256(path)
    for path in folder.rglob('*')
    if path.is_file()
  }


@pytest.mark.parametrize('length', [1, 7, 16, 64, 500])
@pytest.mark.parametrize('mode', windows.MODES)
def test_every_token_is_scored_once(
  tmp_path, monkeypatch, numbers, mode, length
):
  """Its input is its true predecessor; what is left out is counted."""
  # Several files, so that there are seams.
  monkeypatch.setattr(prepare, '_SHARD_TOKENS', 300)
  monkeypatch.setattr(prepare, '_GROUP', 3)
  sizes = (700, 3, 64, 1, 63, 0, 65, 500, 7, 499, 128)
  found = number_documents(*sizes)
  raw = write_raw(tmp_path / 'raw', found, found)
  folder = tmp_path / 'out'
  counts = run(folder, raw, mode=mode, train_length=length)['splits']['train']

  expected, sizes = [], []
  stream = [[*map(int, text.split()), Numbers.end] for text in found]
  tokens = sum(map(len, stream))
  for document in [sum(stream, [])] if mode == 'concat' else stream:
    pairs = list(zip([Numbers.start, *document], document, strict=False))
    left = 0 if mode == 'doc_pad' else len(pairs) % length
    pairs = pairs[: len(pairs) - left]
    expected += pairs
    sizes += [len(pairs[n : n + length]) for n in range(0, len(pairs), length)]
  got = read_windows(folder, 'train', '<i4')
  scored = [pair for w in got for pair in zip(w[:-1], w[1:], strict=True)]
  assert scored == expected
  assert [len(window) - 1 for window in got] == sizes
  assert len(counts.pop('shards')) > 1
  assert counts == {
    'documents': len(found),
    'bytes': sum(map(len, found)),
    'tokens': tokens,
    'windows': len(got),
    'scored': len(scored),
    'left_out': tokens - len(scored),
  }
  if mode == 'concat':
    assert counts['left_out'] < length
  if mode == 'doc_pad':
    assert counts['left_out'] == 0


def test_validation_windows_are_whole_ones_of_a_document(tmp_path, numbers):
  found = number_documents(100, 3, 32, 33, 65)
  raw = write_raw(tmp_path / 'raw', found, found)
  for mode in windows.MODES:
    folder = tmp_path / mode
    counts = run(folder, raw, mode=mode)['splits']['validation']
    got = read_windows(folder, 'validation', '<i4')
    starts = [1000, 1032, 1064, 3000, 4000, 5000, 5032]
    assert [window[0] for window in got] == starts
    # The last token of a document is its end.
    for window in got:
      assert (np.diff(window[:-1]) == 1).all() and len(window) == LONGEST + 1
    assert counts['scored'] == 7 * LONGEST
    assert counts['left_out'] == 233 + 5 - 7 * LONGEST


def test_bytes_and_their_counts(tmp_path, raw):
  manifest = run(tmp_path, raw)
  texts = {
    split: [
      json.loads(line)['text']
      for path in sorted(raw.glob(f'{name}*'))
      for line in path.read_text().splitlines()
    ]
    for split, name in (('train', 'train'), ('validation', 'valid'))
  }
  for split, found in manifest['splits'].items():
    assert found['documents'] == len(texts[split])
    assert found['bytes'] == len(''.join(texts[split]))
    assert found['tokens'] == found['bytes'] + found['documents']
  got = read_windows(tmp_path, 'train')
  text = bytes((np.concatenate([w[1:] for w in got]) - 3 & 255).tolist())
  # The end of a document, 1, has become 254.
  assert text == '\xfe'.join([*texts['train'], '']).encode('latin-1')
  # What was read is told.
  [file] = manifest['read']['validation']
  path = raw / 'valid.jsonl'
  assert file == [str(path), '', '', path.stat().st_size]
  assert json.loads((tmp_path / 'manifest.json').read_text()) == manifest
  assert not (tmp_path / 'state.json').exists()


@pytest.fixture
def small(monkeypatch):
  """Files of few windows, and few documents between them."""
  monkeypatch.setattr(prepare, '_SHARD_TOKENS', 200)
  monkeypatch.setattr(prepare, '_GROUP', 3)


@pytest.mark.parametrize('mode', windows.MODES)
def test_files_differ_from_one_only_in_where_they_end(
  tmp_path, raw, small, monkeypatch, mode
):
  many = run(tmp_path / 'many', raw, mode=mode)
  assert len(many['splits']['train']['shards']) > 5
  monkeypatch.setattr(prepare, '_SHARD_TOKENS', 1 << 28)
  one = run(tmp_path / 'one', raw, mode=mode)
  assert len(one['splits']['train']['shards']) == 1
  assert manifest_lib.content(many) != manifest_lib.content(one)
  for split in ('train', 'validation'):
    got, want = (read_windows(tmp_path / f, split) for f in ('many', 'one'))
    assert [w.tobytes() for w in got] == [w.tobytes() for w in want]


def kill_at(monkeypatch, owner, name, call):
  """Makes a function end the process, as it were, at some call."""
  real, calls = getattr(owner, name), []

  def function(*args, **kwargs):
    calls.append(args)
    if len(calls) == call:
      raise helpers.Killed
    return real(*args, **kwargs)

  monkeypatch.setattr(owner, name, function)


def kill_at_document(monkeypatch, number):
  real, count = sources.Source.read, iter(range(10**6))

  def read(*args):
    for text in real(*args):
      if next(count) == number:
        raise helpers.Killed
      yield text

  monkeypatch.setattr(sources.Source, 'read', read)


@pytest.mark.parametrize('mode', windows.MODES)
def test_killed_and_begun_again(tmp_path, raw, small, mode):
  """At whatever document: bit for bit what comes out of one run."""
  run(tmp_path / 'whole', raw, mode=mode)
  want = hashes(tmp_path / 'whole')
  for number in range(0, 48, 5):
    folder = tmp_path / str(number)
    killed = 0
    for at in (number, 4, 1):
      with pytest.MonkeyPatch.context() as patch:
        kill_at_document(patch, at)
        # As after a kill: no cleanup runs.
        patch.setattr(prepare._Shard, 'abandon', lambda shard: None)
        try:
          run(folder, raw, mode=mode)
        except helpers.Killed:
          killed += 1
    assert killed > 1
    with pytest.raises(
      errors.CorpusError, match='incomplete; run .*prepare to resume'
    ):
      manifest_lib.read(folder)
    run(folder, raw, mode=mode)
    assert hashes(folder) == want


@pytest.mark.parametrize(
  'owner, name', [(manifest_lib, 'write_json'), (os, 'replace')]
)
def test_killed_while_it_writes(tmp_path, raw, small, owner, name):
  """Before or after a file gets its name, and before that is kept."""
  run(tmp_path / 'whole', raw, mode='concat')
  want = hashes(tmp_path / 'whole')
  for call in range(1, 100):
    folder = tmp_path / str(call)
    try:
      with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, owner, name, call)
        patch.setattr(prepare._Shard, 'abandon', lambda shard: None)
        run(folder, raw, mode='concat')
      break
    except helpers.Killed:
      run(folder, raw, mode='concat')
    assert hashes(folder) == want
  assert call > 10


def test_does_not_begin_from_the_start(tmp_path, raw, small, monkeypatch):
  with pytest.MonkeyPatch.context() as patch:
    kill_at_document(patch, 45)
    with pytest.raises(helpers.Killed):
      run(tmp_path, raw)
  done = sorted((tmp_path / 'train').iterdir())
  assert len(done) > 5 and all(p.suffix == '.array_record' for p in done)
  times = [path.stat().st_mtime_ns for path in done]
  real, read = vocabulary.Bytes.encode, []
  monkeypatch.setattr(
    vocabulary.Bytes,
    'encode',
    lambda self, texts: read.extend(texts) or real(self, texts),
  )
  run(tmp_path, raw)
  assert [path.stat().st_mtime_ns for path in done] == times
  assert 0 < len(read) < 12


def test_a_complete_folder_of_other_raw_data(tmp_path, raw):
  mine = tmp_path / 'raw'
  shutil.copytree(raw, mine)
  folder = tmp_path / 'out'
  manifest = run(folder, raw)
  # The same files elsewhere, or none.
  assert run(folder, mine) == run(folder, tmp_path / 'none') == manifest
  with open(mine / 'train_1.jsonl', 'a') as file:
    file.write('\n{"text": "one more"}')
  with pytest.raises(
    errors.CorpusError,
    match='out was prepared from other files than .*raw: 2 files of .* for '
    'train, not 2 of .*data.path',
  ):
    run(folder, mine)
  (mine / 'train_1.jsonl').unlink()
  with pytest.raises(errors.CorpusError, match='for train, not 1 of '):
    run(folder, mine)


def test_raw_data_that_has_changed(tmp_path, raw, small):
  mine = tmp_path / 'raw'
  shutil.copytree(raw, mine)
  folder = tmp_path / 'out'
  with pytest.MonkeyPatch.context() as patch:
    kill_at_document(patch, 45)
    with pytest.raises(helpers.Killed):
      run(folder, mine)
  with open(mine / 'train_1.jsonl', 'a') as file:
    file.write('\n{"text": "one more"}')
  with pytest.raises(
    errors.CorpusError, match='raw data has changed since .*out.*delete'
  ):
    run(folder, mine)


CHANGES = {
  'task': ('arxiv', "data.task: 'lm' there, 'arxiv' here"),
  'mode': ('concat', "data.mode: 'doc_pad' there, 'concat' here"),
  'train_length': (
    8,
    'data.train_length or data.source_length: 16 there, 8 here',
  ),
  'longest': (64, 'longest of eval.lengths: 32 there, 64 here'),
}


@pytest.mark.parametrize('finished', [True, False])
@pytest.mark.parametrize('key', CHANGES)
def test_a_folder_of_other_windows(tmp_path, raw, key, finished):
  """Finished or not, it is neither gone on with nor written over."""
  with pytest.MonkeyPatch.context() as patch:
    if not finished:
      kill_at_document(patch, 20)
    try:
      run(tmp_path, raw)
    except helpers.Killed:
      pass
  assert (tmp_path / 'manifest.json').exists() == finished
  value, reason = CHANGES[key]
  before = hashes(tmp_path)
  with pytest.raises(
    errors.CorpusError, match=rf'other data \(.*{reason}\); set data.path'
  ):
    run(tmp_path, raw, **{key: value})
  assert hashes(tmp_path) == before


def test_a_second_call_checks_every_byte(tmp_path, raw, small, capsys):
  manifest = run(tmp_path, raw)
  before = hashes(tmp_path)
  assert run(tmp_path, raw) == manifest
  assert 'prepare: checking' in capsys.readouterr().out
  # Shorter windows for evaluation are cut out of these.
  assert run(tmp_path, raw, longest=16) == manifest
  assert hashes(tmp_path) == before
  path = tmp_path / 'train' / '00003.array_record'
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)
  with pytest.raises(
    errors.CorpusError,
    match=r'train/00003\.array_record has another hash.*copy the file again',
  ):
    run(tmp_path, raw)


@pytest.mark.parametrize('what', ['is missing', 'has 100 bytes'])
def test_files_that_are_missing_or_cut_short(tmp_path, raw, small, what):
  run(tmp_path, raw)
  path = tmp_path / 'validation' / '00000.array_record'
  if what == 'is missing':
    path.unlink()
  else:
    os.truncate(path, 100)
  with pytest.raises(
    errors.CorpusError,
    match=rf'validation/00000\.array_record {what}.*; copy the file again, or '
    rf'delete {tmp_path} and run lengen prepare',
  ):
    run(tmp_path, raw)


@pytest.mark.parametrize(
  'content, reason',
  [
    ('{"format"', r'manifest\.json is corrupt \(Expecting'),
    ('[]', r'manifest\.json is corrupt'),
    ('{}', r'manifest\.json is corrupt'),
    ('{"format": 1}', r'manifest\.json is corrupt \(it lacks longest, mode, '),
    ('{"format": 99}', r'manifest\.json has format 99, .* requires 1'),
  ],
)
def test_manifests_that_cannot_be_used(tmp_path, raw, content, reason):
  (tmp_path / 'manifest.json').write_text(content)
  with pytest.raises(
    errors.CorpusError, match=f'{reason}.*; delete {tmp_path} and run lengen'
  ):
    run(tmp_path, raw)


def test_a_state_that_is_broken(tmp_path, raw):
  (tmp_path / 'state.json').write_text('')
  with pytest.raises(errors.CorpusError, match=r'state\.json is corrupt'):
    run(tmp_path, raw)


def test_no_folder(tmp_path):
  with pytest.raises(
    errors.CorpusError,
    match=r'no prepared data in .*nothing \(no manifest\.json\); run lengen',
  ):
    manifest_lib.read(tmp_path / 'nothing')


class FullDisk:
  """A writer as that of ArrayRecord where nothing is left on the disk."""

  def __init__(self, path, options):
    del options
    self._path = pathlib.Path(path)

  def write(self, record):
    self._path.write_bytes(record)

  def close(self):
    raise RuntimeError('write() failed: No space left on device\nstack')


def test_a_full_disk(tmp_path, raw, small, monkeypatch):
  """It is told, what is finished stays, and the same call goes on."""
  run(tmp_path / 'whole', raw)
  folder, real = tmp_path / 'out', array_record_module.ArrayRecordWriter
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      array_record_module,
      'ArrayRecordWriter',
      lambda path, options: (
        FullDisk(path, options) if '00004' in path else real(path, options)
      ),
    )
    with pytest.raises(
      errors.CorpusError,
      match=r'cannot write .*out: write\(\) failed: No space left on device; '
      r'.*finished files are kept.*same command',
    ):
      run(folder, raw)
  left = sorted(path.name for path in (folder / 'train').iterdir())
  assert left == [f'0000{n}.array_record' for n in range(4)]
  run(folder, raw)
  assert hashes(folder) == hashes(tmp_path / 'whole')


def test_folders_that_cannot_be_written(tmp_path, raw):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.CorpusError, match='cannot write .*file/out: Not'):
    run(tmp_path / 'file' / 'out', raw)


def test_splits_without_a_window(tmp_path):
  raw = write_raw(tmp_path / 'raw', ['a' * 5] * 3, ['b' * 50])
  with pytest.raises(
    errors.CorpusError,
    match='train split has no window of 16 tokens in 3 documents; lower '
    'data.train_length',
  ):
    run(tmp_path / 'a', raw, mode='doc_window')
  with pytest.raises(
    errors.CorpusError,
    match='validation split has no window of 64 tokens in 1 documents',
  ):
    run(tmp_path / 'b', raw, longest=64)
  # Not finished: with more text the same call goes on.
  assert not (tmp_path / 'b' / 'manifest.json').exists()


def test_splits_without_a_document(tmp_path):
  (tmp_path / 'raw').mkdir()
  record = {'text': 'a' * 50, 'meta': {'pile_set_name': 'Github'}}
  for name in ('train', 'valid'):
    (tmp_path / 'raw' / f'{name}.jsonl').write_text(json.dumps(record))
  with pytest.raises(
    errors.CorpusError,
    match='validation split has no documents in 1 files such as .*valid.jsonl; '
    '.*records of other sets are skipped$',
  ):
    run(tmp_path / 'out', tmp_path / 'raw', task='arxiv')


@pytest.mark.parametrize('name', ['validation.jsonl', 'validation.txt'])
def test_few_documents_of_which_none_is_held_out(tmp_path, name):
  (tmp_path / 'raw').mkdir()
  record = json.dumps({'text': 'a' * 99})
  (tmp_path / 'raw' / 'a.jsonl').write_text(record)
  with pytest.raises(
    errors.CorpusError,
    match='one document in 200 is held out .* add '
    f'.*{name}.*, or more documents',
  ):
    run(tmp_path / 'out', tmp_path / 'raw')
  (tmp_path / 'raw' / name).write_text(record)
  run(tmp_path / 'out', tmp_path / 'raw')


def test_missing_and_broken_raw_data(tmp_path, raw, monkeypatch):
  with pytest.raises(errors.CorpusError, match='no lm .*, split validation'):
    run(tmp_path / 'out', tmp_path / 'nothing')
  with pytest.raises(errors.SpecError, match='unknown source of text'):
    run(tmp_path / 'out', raw, task='glue_superglue')
  assert not (tmp_path / 'out').exists()
  mine = tmp_path / 'raw'
  shutil.copytree(raw, mine)
  with open(mine / 'train_1.jsonl', 'a') as file:
    file.write('\noops')
  with pytest.raises(errors.CorpusError, match=r'train_1\.jsonl, line 21: no'):
    run(tmp_path / 'out', mine)
  monkeypatch.setitem(
    sys.modules, 'array_record.python.array_record_module', None
  )
  with pytest.raises(errors.CorpusError, match=r'writing .*lengen_jax\[data\]'):
    run(tmp_path / 'other', raw)


def test_results_within_the_raw_data(tmp_path):
  """They are not read as text, by another call or with another config."""
  raw = write_raw(tmp_path / 'raw', ['a text ' * 9] * 20, ['another ' * 9] * 9)
  size = dict(vocabulary=str(raw / 'a.model'), vocabulary_size=264)
  first = run(raw / 'out', raw, longest=16, **size)
  assert run(raw / 'out', raw, longest=16, **size) == first
  other = run(raw / 'other', raw, longest=8, **size)
  for split, documents in (('train', 20), ('validation', 9)):
    assert first['splits'][split]['documents'] == documents
    assert other['splits'][split]['documents'] == documents
  assert other['read'] == first['read']


def test_trains_a_vocabulary(tmp_path, raw, capsys):
  path = tmp_path / 'deep' / 'a.model'
  settings = dict(vocabulary=str(path), mode='concat')
  manifest = run(tmp_path / 'out', raw, vocabulary_size=295, **settings)
  vocab = vocabulary.create(str(path))
  assert vocab.size == 295
  assert manifest['vocabulary'] == vocab.fingerprint
  assert 'training a vocabulary of 295 pieces' in capsys.readouterr().out
  copy = tmp_path / 'out' / 'vocabulary.model'
  assert copy.read_bytes() == path.read_bytes()
  found = read_windows(tmp_path / 'out', 'train')
  text = vocab.decode(np.concatenate([window[1:] for window in found]))
  lines = (raw / 'train_0.jsonl').read_text().splitlines()
  assert text.startswith(''.join(json.loads(line)['text'] for line in lines))
  # Again it is checked, not trained.
  assert run(tmp_path / 'out', raw, vocabulary_size=295, **settings) == manifest
  run(tmp_path / 'more', raw, vocabulary_size=295, **settings)
  with pytest.raises(
    errors.ConfigError, match='has 295 pieces, not --vocabulary-size=300'
  ):
    run(tmp_path / 'other', raw, vocabulary_size=300, **settings)
  with pytest.raises(errors.ConfigError, match="'bytes' cannot be trained"):
    run(tmp_path / 'other', raw, vocabulary_size=300)
  with pytest.raises(errors.CorpusError, match='no vocabulary at .*b.model'):
    run(tmp_path / 'other', raw, vocabulary=str(tmp_path / 'b.model'))
  # The copy serves as well, and may be written where the windows are.
  path.unlink()
  settings['vocabulary'] = str(copy)
  assert run(tmp_path / 'out', raw, **settings) == manifest
  settings['vocabulary'] = str(tmp_path / 'last' / 'vocabulary.model')
  run(tmp_path / 'last', raw, vocabulary_size=295, **settings)
  other = dataclasses.replace(config(tmp_path / 'out'), mode='concat')
  with pytest.raises(
    errors.CorpusError, match="data.vocabulary: '.*' there, 'bytes_plus_3' here"
  ):
    prepare.prepare(other, raw=str(raw), longest=LONGEST)


@pytest.mark.parametrize('family', ['gemma2', 'llama3', 'qwen2'])
def test_tokenizers_of_checkpoints(tmp_path, family, capsys):
  texts = [f'The quick brown fox\n jumps over {n} dogs.' * n for n in range(9)]
  raw = write_raw(tmp_path / 'raw', texts, texts[6:])
  spec = str(helpers.GOLDEN / 'checkpoints' / family)
  settings = dict(vocabulary=spec, mode='concat')
  manifest = run(tmp_path / 'out', raw, **settings)
  vocab = vocabulary.create(spec)
  assert manifest['vocabulary'] == vocab.fingerprint
  told = 'changes white space or rare characters'
  assert (told in capsys.readouterr().out) == (family == 'qwen2')
  found = read_windows(tmp_path / 'out', 'train')
  ids = [found[0][:1], *(window[1:] for window in found)]
  first, *ids = np.concatenate(ids).tolist()
  assert first == vocab.start
  wanted = [[*vocab.encode(text), vocab.end] for text in texts]
  assert ids == sum(wanted, [])[: len(ids)]
  assert manifest['splits']['train']['tokens'] == sum(map(len, wanted))
  opened = data.load(config(tmp_path / 'out', **settings), LONGEST)
  assert opened.vocab_size == vocab.size
  evaluated = opened.evaluation(
    eval_config.EvalConfig((LONGEST,), batch_tokens=64, windows=2)
  )
  size = sum(len(text.encode()) for text in evaluated.texts())
  assert evaluated.bytes_per_token == size / evaluated.tokens > 1
  # The copy serves as well, and a folder of another tokenizer does not.
  settings['vocabulary'] = str(tmp_path / 'out' / 'vocabulary')
  assert run(tmp_path / 'out', raw, **settings) == manifest
  settings['vocabulary'] = str(helpers.GOLDEN / 'checkpoints' / 'gpt_neox')
  with pytest.raises(errors.CorpusError, match='data.vocabulary: '):
    run(tmp_path / 'out', raw, **settings)


def test_a_vocabulary_is_trained_on_some_text_of_every_file(
  tmp_path, monkeypatch
):
  """What short files leave over, later ones may use."""
  texts = ['a' * 10, 'b' * 1000, 'c' * 10, 'd' * 1000]
  raw = write_raw(tmp_path / 'raw', texts, ['e' * 50], files=4)
  seen = {}

  def train(texts, size, path):
    for text in texts:
      seen[text[:1]] = seen.get(text[:1], 0) + len(text)
    pathlib.Path(path).write_bytes(b'')

  monkeypatch.setattr(vocabulary, 'train', train)
  monkeypatch.setattr(prepare, '_VOCABULARY_BYTES', 100)
  with pytest.raises(errors.CorpusError, match='not a SentencePiece model'):
    run(
      tmp_path / 'out',
      raw,
      vocabulary=str(tmp_path / 'a.model'),
      vocabulary_size=300,
    )
  assert seen == {b'a': 10, b'b': 30, b'c': 10, b'd': 50}


def test_progress(tmp_path, raw, monkeypatch):
  """It moves within a file, ends at the end, and never goes back."""
  mine = tmp_path / 'raw'
  mine.mkdir()
  for path in raw.iterdir():
    with gzip.open(mine / f'{path.name}.gz', 'wb') as file:
      file.write(path.read_bytes())
  monkeypatch.setattr(prepare, '_GROUP', 3)
  told = []

  class Progress(prepare.progress_lib.Progress):
    def update(self, done, text=''):
      told.append((self._label, done, self._total))
      super().update(done, text)

  monkeypatch.setattr(prepare.progress_lib, 'Progress', Progress)
  run(tmp_path / 'out', mine)
  done = [entry[1:] for entry in told if entry[0] == 'prepare train']
  assert done == sorted(done)
  assert len(set(done)) > 10
  first, second = (path.stat().st_size for path in sorted(mine.glob('train*')))
  assert done[-1] == (first + second, first + second)
  assert done.count(done[-1]) == 1
  assert (first - 1, first + second) in done


def test_progress_of_a_resumed_file(tmp_path, raw, small, monkeypatch):
  with pytest.MonkeyPatch.context() as patch:
    kill_at_document(patch, 45)
    with pytest.raises(helpers.Killed):
      run(tmp_path / 'out', raw)
  begun = []

  class Progress(prepare.progress_lib.Progress):
    def __init__(self, label, total, **fields):
      begun.append((label, fields['first']))
      super().__init__(label, total, **fields)

  monkeypatch.setattr(prepare.progress_lib, 'Progress', Progress)
  state = json.loads((tmp_path / 'out/state.json').read_text())
  counts = state['splits']['train']
  run(tmp_path / 'out', raw)
  parts = sorted(raw.glob('train*'))
  before = sum(path.stat().st_size for path in parts[: counts['part']])
  first = dict(begun)['prepare train']
  assert first == before + counts['text'] > before
