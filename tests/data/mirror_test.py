"""Tests `lengen_jax/data/mirror.py` on folders in place of an object store.

`tests/training/bucket_test.py` uses an emulated store.
"""

import json
import shutil

from etils import epath
import numpy as np
import pytest

from lengen_jax import data, errors
from lengen_jax.data import manifest as manifest_lib
from lengen_jax.data import mirror, prepare
from tests.data import tiny

PATH, LONGEST = 'gs://bucket/data', 32


def settings(path=PATH, **fields):
  fields = {'vocabulary': 'bytes'} | fields
  return data.DataConfig(
    source='prepared',
    task='lm',
    path=str(path),
    train_length=16,
    batch_size=4,
    **fields,
  )


@pytest.fixture
def raw(tmp_path):
  folder = tmp_path / 'raw'
  folder.mkdir()
  for name, first, count in (('train', 0, 30), ('valid', 1000, 8)):
    lines = [
      json.dumps({'text': tiny.text(seed, 100)})
      for seed in range(first, first + count)
    ]
    (folder / f'{name}.jsonl').write_text('\n'.join(lines))
  return folder


@pytest.fixture
def store(tmp_path, monkeypatch):
  """The folder of a store that holds PATH."""
  monkeypatch.setattr(prepare, '_SHARD_TOKENS', 700)
  monkeypatch.setattr(prepare, '_GROUP', 1)
  monkeypatch.setattr(
    mirror, '_there', lambda path: epath.Path(tmp_path / 'store' / path[5:])
  )
  machine(tmp_path, monkeypatch, 'first')
  return tmp_path / 'store' / 'bucket' / 'data'


def machine(tmp_path, monkeypatch, name):
  """Continues on a machine that has no copies yet."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / name))


def write(raw, path=PATH, **fields):
  return prepare.prepare(
    settings(path, **fields), raw=str(raw), longest=LONGEST
  )


def batches(path=PATH, **fields):
  config = settings(path, **fields)
  found = data.load(config, LONGEST).training(config, seed=0)
  return np.stack([found.next()['inputs'] for _ in range(5)])


def contents(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


def test_prepared_data_in_a_store(raw, store, tmp_path, monkeypatch):
  """It equals that in a folder, and is read on another machine."""
  model = tmp_path / 'mine.model'
  pieces = {'vocabulary': tiny.write_pieces(model)}
  assert write(raw, **pieces) == write(raw, tmp_path / 'local', **pieces)
  assert contents(store) == contents(tmp_path / 'local')
  assert len(contents(store)) == 5
  machine(tmp_path, monkeypatch, 'second')
  data.check_present(settings())
  want = batches(tmp_path / 'local', **pieces)
  # The folder has a copy of the vocabulary.
  model.unlink()
  np.testing.assert_array_equal(batches(**pieces), want)
  # Also lengen prepare finds the data.
  machine(tmp_path, monkeypatch, 'third')
  raw.rename(tmp_path / 'moved')
  assert write(raw, **pieces) == manifest_lib.read(tmp_path / 'local')


def test_an_interrupted_copy_continues(raw, store, tmp_path, monkeypatch):
  write(raw)
  machine(tmp_path, monkeypatch, 'second')
  copy = mirror.fetch(PATH)
  (copy / manifest_lib.MANIFEST).unlink()
  first, second, third, *_ = sorted((copy / 'train').iterdir())
  first.unlink()
  second.write_bytes(b'begun')
  before = third.stat().st_mtime_ns
  mirror.fetch(PATH)
  assert contents(copy) == contents(store)
  assert third.stat().st_mtime_ns == before
  # The hashes of a finished copy are not compared again, but the sizes are.
  size = second.stat().st_size
  second.write_bytes(size * b'x')
  mirror.fetch(PATH)
  assert second.read_bytes() == size * b'x'
  second.write_bytes(b'x')
  mirror.fetch(PATH)
  assert contents(copy) == contents(store)


def test_replaced_data_is_copied_again(raw, store, tmp_path, monkeypatch):
  write(raw)
  copy = mirror.fetch(PATH)
  before = contents(copy)
  shutil.rmtree(store)
  machine(tmp_path, monkeypatch, 'second')
  (raw / 'train.jsonl').write_text(json.dumps({'text': tiny.text(7, 600)}))
  write(raw)
  assert not before.keys() <= contents(store).keys()
  machine(tmp_path, monkeypatch, 'first')
  assert mirror.fetch(PATH) == copy
  assert contents(copy) == contents(store)


def test_damage_and_absence(raw, store, tmp_path, monkeypatch):
  with pytest.raises(errors.CorpusError, match=f'no prepared data in {PATH}'):
    data.check_present(settings())
  write(raw)
  machine(tmp_path, monkeypatch, 'second')
  shard = sorted((store / 'train').iterdir())[1]
  good = shard.read_bytes()
  shard.write_bytes(good[:-1] + b'!')
  for _ in range(2):
    with pytest.raises(errors.CorpusError, match=f'{shard.name} has another'):
      data.check_present(settings())
  shard.write_bytes(good)
  data.check_present(settings())
  # A file is missing in the store, and comes back.
  machine(tmp_path, monkeypatch, 'third')
  shard.unlink()
  for _ in range(2):
    with pytest.raises(errors.CorpusError, match=f'{shard.name} is missing'):
      data.check_present(settings())
  shard.write_bytes(good)
  data.check_present(settings())


def test_a_broken_manifest_leaves_the_copy(raw, store):
  write(raw)
  before = contents(mirror.fetch(PATH))
  (store / manifest_lib.MANIFEST).write_text('{')
  with pytest.raises(errors.CorpusError, match=r'manifest\.json is corrupt'):
    mirror.fetch(PATH)
  assert contents(mirror.local(PATH)) == before


def test_a_store_that_fails(raw, store, tmp_path, monkeypatch):
  write(raw)
  machine(tmp_path, monkeypatch, 'second')
  shard = sorted((store / 'train').iterdir())[1]
  shard.unlink()
  shard.mkdir()
  with pytest.raises(
    errors.CorpusError, match='cannot copy .*the same command'
  ):
    data.check_present(settings())
  usage = shutil.disk_usage(tmp_path)._replace(free=1000)
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
  with pytest.raises(errors.CorpusError, match='needs 0.0 GB .*XDG_CACHE_HOME'):
    data.check_present(settings())


def test_a_store_that_fails_for_a_while(raw, store, tmp_path, monkeypatch):
  write(raw)
  machine(tmp_path, monkeypatch, 'second')
  kind = type('UnavailableError', (Exception,), {'__module__': 'tensorflow.x'})

  def fail(*_):
    raise kind('no answer')

  monkeypatch.setattr(mirror, '_copy', fail)
  with pytest.raises(errors.StorageError, match='no answer; .*same command'):
    data.check_present(settings())


def test_an_interrupted_upload_continues(raw, store, monkeypatch):
  def interrupted(*paths):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(mirror, '_copy_manifest', interrupted)
    with pytest.raises(KeyboardInterrupt):
      write(raw)
  first, second, *_ = sorted((store / 'train').iterdir())
  first.unlink()
  (store / 'train' / 'stale.array_record').write_text('stale')
  before = second.stat().st_mtime_ns
  with pytest.raises(errors.CorpusError, match=f'no prepared data in {PATH}'):
    data.check_present(settings())
  write(raw)
  assert first.exists() and second.stat().st_mtime_ns == before
  # What is not in the manifest is not copied.
  shutil.rmtree(mirror.local(PATH))
  assert not [*mirror.fetch(PATH).rglob('stale*')]


@pytest.mark.parametrize(
  'path, message',
  [
    ('foo://b/data', r'unknown kind .* gs://, s3://, az://'),
    ('gs:/b/data', 'one slash'),
  ],
)
def test_paths_that_are_no_store(path, message):
  with pytest.raises(errors.ConfigError, match=message):
    data.check_present(settings(path))


def test_a_vocabulary_is_not_trained_in_a_store(raw, store):
  config = settings(vocabulary='gs://bucket/mine.model')
  with pytest.raises(errors.ConfigError, match='set it to a local path'):
    prepare.prepare(config, raw=str(raw), longest=LONGEST, vocabulary_size=300)


def test_other_data_is_kept(raw, store, tmp_path, monkeypatch):
  write(raw)
  before = contents(store)
  path = mirror.local(PATH) / manifest_lib.MANIFEST
  path.write_text(json.dumps(json.loads(path.read_text()) | {'longest': 9}))
  with pytest.raises(errors.CorpusError, match='contains other data'):
    mirror.push(PATH)
  assert contents(store) == before


def test_a_second_prepare_ends(raw, store, monkeypatch):
  """Also while the first one uploads."""
  with prepare._locked(mirror.local(PATH)):
    with pytest.raises(errors.CorpusError, match='another lengen prepare'):
      write(raw)
  push = mirror.push

  def during(path):
    with pytest.raises(errors.CorpusError, match='another lengen prepare'):
      write(raw)
    push(path)
    uploaded.append(path)

  uploaded = []
  monkeypatch.setattr(mirror, 'push', during)
  write(raw)
  assert uploaded == [PATH]
