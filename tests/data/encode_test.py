"""Tests `lengen_jax/data/encode.py`: pieces, worker processes, Beam, locks."""

import fcntl
import gzip
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile

import numpy as np
import pytest

from lengen_jax import data, errors
from lengen_jax.data import (
  encode,
  prepare,
  readers,
  remote,
  sources,
  vocabulary,
)
from lengen_jax.data import manifest as manifest_lib

LONGEST = 32
ROOT = pathlib.Path(__file__).parents[2]


class Deadly(vocabulary.Bytes):
  """Kills the process that encodes a text with 'kill me', if a file exists."""

  def __init__(self, trigger):
    super().__init__()
    self._trigger = trigger

  def encode(self, texts):
    if any(b'kill me' in text for text in texts) and self._trigger.exists():
      os.kill(os.getpid(), signal.SIGKILL)
    return super().encode(texts)


def texts(count, seed=0):
  generator = np.random.default_rng(seed)
  return [
    bytes(generator.integers(97, 123, size).astype(np.uint8)).decode()
    for size in generator.integers(1, 120, count)
  ]


def lines(found):
  return ''.join(json.dumps({'text': text}) + '\n' for text in found)


@pytest.fixture(scope='module')
def raw(tmp_path_factory):
  """A large file, a compressed one, and many small ones."""
  folder = tmp_path_factory.mktemp('raw')
  found = texts(150)
  (folder / 'a.jsonl').write_text(lines(found[:60]))
  with gzip.open(folder / 'b.jsonl.gz', 'wt') as file:
    file.write(lines(found[60:100]))
  for number, text in enumerate(found[100:]):
    (folder / f'c{number:02}.txt').write_text(text)
  (folder / 'd.txt').write_text('')
  (folder / 'valid.jsonl').write_text(lines(texts(20, seed=1)))
  return folder


@pytest.fixture
def small(monkeypatch):
  """Small files, groups and pieces."""
  monkeypatch.setattr(prepare, '_SHARD_TOKENS', 700)
  monkeypatch.setattr(prepare, '_GROUP', 3)
  monkeypatch.setattr(encode, '_PIECE_BYTES', 500)


def config(folder, **fields):
  fields = dict(train_length=16, batch_size=2, mode='concat') | fields
  return data.DataConfig(
    source='prepared', **dict(task='lm', path=str(folder)) | fields
  )


def run(folder, raw, workers=1, runner='', beam_options='', **fields):
  size = fields.pop('vocabulary_size', 0)
  bad_records = fields.pop('bad_records', 'fail')
  return prepare.prepare(
    config(folder, **fields),
    raw=str(raw),
    longest=LONGEST,
    vocabulary_size=size,
    workers=workers,
    runner=runner,
    beam_options=beam_options,
    bad_records=bad_records,
  )


def hashes(folder):
  return {
    str(path.relative_to(folder)): manifest_lib.sha256(path)
    for path in folder.rglob('*')
    if path.is_file()
  }


def parts_of(raw):
  source = sources.create('lm')
  parts = source.parts(str(raw), 'train')
  return source, parts, [prepare._size(part) for part in parts]


def test_pieces_hold_all_documents_in_order(raw, small, tmp_path):
  source, parts, sizes = parts_of(raw)
  whole = [text for part in parts for text in source.read(part)]
  pieces = list(encode.divide(parts, sizes))
  found = [
    (number, text)
    for piece in pieces
    for part, number, _ in piece.parts
    for text in source.read(part)
  ]
  assert [text for _, text in found] == whole
  assert [n for n, _ in found] == sorted(n for n, _ in found)
  names = [[pathlib.Path(p.path).name for p, _, _ in x.parts] for x in pieces]
  # The large file is divided, the compressed one is not, small ones share.
  assert names.count(['a.jsonl']) > 5
  assert names.count(['b.jsonl.gz']) == 1
  assert max(map(len, names)) > 5
  for piece in pieces:
    assert len(piece.parts) == 1 or sum(n for *_, n in piece.parts) <= 500
  vocab = vocabulary.Bytes()
  encoder = encode.Encoder(source, vocab, 3, tmp_path)
  for piece in pieces:
    encoder.write(piece)
  assert len(list(tmp_path.iterdir())) == len(pieces)
  for first in (0, 2, 100):
    for piece in pieces:
      want = list(encoder.documents(piece, first))
      got = list(encode.read(encoder.file(piece), first))
      assert [d[:2] for d in got] == [d[:2] for d in want]
      for one, other in zip(got, want, strict=True):
        assert one.ids.dtype == other.ids.dtype == np.uint16
        np.testing.assert_array_equal(one.ids, other.ids)


@pytest.mark.parametrize(
  'workers', [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_lines_of_errors_do_not_depend_on_pieces(tmp_path, small, workers):
  content = lines(texts(60)) + '\noops\n' + lines(texts(60))
  raw = tmp_path / 'raw'
  raw.mkdir()
  (raw / 'a.jsonl').write_text(content)
  (raw / 'valid.jsonl').write_text(lines(texts(9)))
  with pytest.raises(errors.CorpusError, match=r'a\.jsonl, line 62: no JSON'):
    run(tmp_path / 'out', raw, workers=workers)


@pytest.fixture
def damaged(raw, tmp_path):
  """Data with bad records, and the same data without them."""
  bad, good = tmp_path / 'bad', tmp_path / 'good'
  good.mkdir()
  found = texts(80)
  (good / 'a.jsonl').write_text(lines(found))
  (good / 'b.jsonl.gz').write_bytes(gzip.compress(lines(found[:9]).encode()))
  (good / 'valid.jsonl').write_text(lines(texts(20, seed=1)))
  shutil.copytree(good, bad)
  rows = (good / 'a.jsonl').read_bytes().splitlines(keepends=True)
  rows.insert(70, b'[]\n')
  rows.insert(40, b'{"txt": "x"}\n')
  rows.insert(30, b'{"text": 3}\n')
  rows.insert(20, b'{"text": "\xff"}\n')
  rows.insert(10, b'{"text": \n')
  (bad / 'a.jsonl').write_bytes(b''.join(rows))
  # A stored block for each line, so that the first nine survive.
  packed = gzip.compress(lines(found[:10]).encode(), compresslevel=0)
  (bad / 'b.jsonl.gz').write_bytes(packed[:-12])
  return bad, good


BAD = [
  'a.jsonl, line 11: no JSON object',
  'a.jsonl, line 22: no JSON object',
  "a.jsonl, line 33: 'text' must be text, got int",
  "a.jsonl, line 44: the record has no 'text'",
  'a.jsonl, line 75: no JSON object (it holds a list)',
]


def check_named(got, folder):
  """Bad records are counted and named."""
  train = got['splits']['train']
  assert 'bad_records' not in got['splits']['validation']
  assert train['bad_records'] == 6
  for message, fact in zip(train['first_bad_records'], BAD, strict=True):
    assert f'{folder}/{fact}' in message


@pytest.mark.parametrize(
  'workers', [1, 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_bad_records_are_skipped(
  tmp_path, small, damaged, workers, monkeypatch
):
  """Also where the run goes on after a failure."""
  bad, good = damaged
  monkeypatch.setattr(prepare, '_SHARD_TOKENS', 1 << 20)
  want = run(tmp_path / 'want', good)['splits']['train']
  with pytest.raises(errors.RecordError, match=r'a\.jsonl, line 11: no JSON'):
    run(tmp_path / 'out', bad, workers=workers)
  got = run(tmp_path / 'out', bad, workers=workers, bad_records='skip')
  check_named(got, bad)
  assert got['splits']['train'] | want == got['splits']['train']
  assert run(tmp_path / 'out', bad) == got


def test_bad_records_are_counted_once(tmp_path, small, damaged, monkeypatch):
  """In a run that is interrupted in each file."""
  bad, _ = damaged
  want = run(tmp_path / 'want', bad, bad_records='skip')
  finish, stops = prepare._Split._finish_shard, 0

  def interrupt(self):
    finish(self)
    raise KeyboardInterrupt

  for _ in want['splits']['train']['shards'][1:]:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
      patch.setattr(prepare._Split, '_finish_shard', interrupt)
      run(tmp_path / 'out', bad, bad_records='skip')
    stops += 1
  assert stops > 5
  got = run(tmp_path / 'out', bad, 2, bad_records='skip')
  check_named(got, bad)
  assert got == want


def test_bad_records_of_files_without_a_split(tmp_path, small, monkeypatch):
  """They are counted in training only."""
  monkeypatch.setattr(sources, 'HELD_OUT', 5)
  raw = tmp_path / 'raw'
  raw.mkdir()
  (raw / 'a.jsonl').write_text('oops\n' + lines(texts(100)))
  found = run(tmp_path / 'out', raw, bad_records='skip')['splits']
  assert found['train']['bad_records'] == 1
  assert 'bad_records' not in found['validation']


def test_a_file_that_is_missing_is_no_bad_record(tmp_path, raw, monkeypatch):
  monkeypatch.setattr(
    readers, '_open', lambda path: open(tmp_path / 'missing', 'rb')
  )
  with pytest.raises(errors.CorpusError, match='No such file') as found:
    run(tmp_path / 'out', raw, bad_records='skip')
  assert 'skipped' not in str(found.value)


def test_a_connection_that_breaks_is_no_bad_record(tmp_path, raw, monkeypatch):
  """Also errors of a kind that only the store knows."""

  class StoreError(Exception):
    pass

  for error in (TimeoutError('timed out'), StoreError('retry')):

    def fail(path, error=error):
      raise error

    with monkeypatch.context() as patch:
      patch.setattr(readers, '_open', fail)
      with pytest.raises(errors.CorpusError, match=str(error)) as found:
        run(tmp_path / 'out', raw, bad_records='skip')
      assert found.type is errors.CorpusError
      assert 'skipped' not in str(found.value)


def test_a_piece_is_written_once(raw, small, tmp_path):
  source, parts, sizes = parts_of(raw)
  piece = next(encode.divide(parts, sizes))
  encoder = encode.Encoder(source, vocabulary.Bytes(), 3, tmp_path)
  path = encoder.file(piece)
  encoder.write(piece)
  path.write_bytes(b'mine')
  encoder.write(piece)
  assert path.read_bytes() == b'mine'
  # Other sizes, text keys, vocabularies and treatments of bad records have
  # other files.
  changed = [(part, number, size + 1) for part, number, size in piece.parts]
  others = [
    encoder.file(encode.Piece(tuple(changed))),
    encode.Encoder(
      sources.create("lm(text_key='a')"), encoder.vocab, 3, tmp_path
    ).file(piece),
    encode.Encoder(source, vocabulary.Bytes(0), 3, tmp_path).file(piece),
    encode.Encoder(source, encoder.vocab, 3, tmp_path, skip=True).file(piece),
  ]
  assert len({path, *others}) == 5


@pytest.mark.parametrize('cut', [0, 1, 200, -1, -136])
def test_files_of_pieces_that_are_cut_short(raw, small, tmp_path, cut):
  """Also between two documents, where nothing else tells."""
  source, parts, sizes = parts_of(raw)
  piece = next(encode.divide(parts, sizes))
  encoder = encode.Encoder(source, vocabulary.Bytes(), 3, tmp_path)
  encoder.write(piece)
  path = encoder.file(piece)
  path.write_bytes(path.read_bytes()[:cut])
  with pytest.raises(
    errors.CorpusError, match='is damaged .*delete it and run'
  ):
    list(encode.read(path))


@pytest.mark.parametrize(
  'workers, mode',
  [
    (2, 'concat'),
    pytest.param(4, 'concat', marks=pytest.mark.slow),
    pytest.param(2, 'doc_pad', marks=pytest.mark.slow),
    pytest.param(2, 'doc_window', marks=pytest.mark.slow),
  ],
)
def test_workers_write_the_bytes_of_one_process(
  tmp_path, raw, small, workers, mode
):
  one = run(tmp_path / 'one', raw, mode=mode)
  assert len(one['splits']['train']['shards']) > 5
  many = run(tmp_path / 'many', raw, mode=mode, workers=workers)
  assert many == one
  assert not (tmp_path / 'many' / 'pieces').exists()
  assert hashes(tmp_path / 'many') == hashes(tmp_path / 'one')


def test_a_killed_worker(tmp_path, small, monkeypatch):
  """It is told; finished pieces are kept, and any workers go on."""
  raw = tmp_path / 'raw'
  raw.mkdir()
  found = texts(150)
  found[140] = 'kill me'
  (raw / 'a.jsonl').write_text(lines(found))
  (raw / 'valid.txt').write_text('a' * 50)
  want = run(tmp_path / 'want', raw)
  trigger = tmp_path / 'trigger'
  trigger.write_text('')
  out = tmp_path / 'out'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(vocabulary, 'create', lambda spec: Deadly(trigger))
    with pytest.raises(
      errors.CorpusError,
      match='one of 2 workers was killed.*run the same command again',
    ):
      run(out, raw, workers=2)
  assert list((out / 'train').iterdir()) and list((out / 'pieces').iterdir())
  trigger.unlink()
  assert run(out, raw) == want
  assert hashes(out) == hashes(tmp_path / 'want')


class Failing(vocabulary.Bytes):
  """Ends the process that is sent it, or fails to encode."""

  def __init__(self, how):
    super().__init__()
    self._how = how
    # More than a pipe holds.
    self._padding = bytes(1 << 20)

  def __reduce__(self):
    if self._how == 'killed':
      return kill_oneself, (self._padding,)
    return super().__reduce__()

  def __setstate__(self, state):
    self.__dict__.update(state)
    if self._how == 'exit':
      sys.exit(3)

  def encode(self, texts):
    raise UnpicklableError('first', 'second')


def kill_oneself(_):
  os.kill(os.getpid(), signal.SIGKILL)


class UnpicklableError(Exception):
  def __init__(self, first, second):
    super().__init__(f'{first} {second}')


@pytest.mark.slow
@pytest.mark.parametrize(
  'how, error, match',
  [
    ('killed', errors.CorpusError, 'one of 3 workers was killed'),
    ('exit', errors.CorpusError, 'one of 3 workers ended with status 3'),
    ('encode', RuntimeError, 'UnpicklableError: first second'),
  ],
)
def test_workers_that_fail(tmp_path, raw, monkeypatch, how, error, match):
  monkeypatch.setattr(vocabulary, 'create', lambda spec: Failing(how))
  with pytest.raises(error, match=match):
    run(tmp_path / 'out', raw, workers=3)


@pytest.mark.parametrize('workers', [1, 2])
def test_a_folder_in_use(tmp_path, raw, workers):
  (tmp_path / 'out').mkdir()
  opened = os.open(tmp_path / 'out', os.O_RDONLY)
  fcntl.flock(opened, fcntl.LOCK_EX)
  with pytest.raises(
    errors.CorpusError, match='another lengen prepare is writing .*out; wait'
  ):
    run(tmp_path / 'out', raw, workers=workers)
  assert not list((tmp_path / 'out').iterdir())
  os.close(opened)
  run(tmp_path / 'out', raw)


def test_folders_without_locks(tmp_path, raw, monkeypatch):
  def flock(*_):
    raise OSError(9, 'Bad file descriptor')

  monkeypatch.setattr(fcntl, 'flock', flock)
  run(tmp_path / 'out', raw)


PROGRAM = """
import sys
from lengen_jax.data import encode, prepare
from tests.data import encode_test

if __name__ == '__main__':
  prepare._SHARD_TOKENS, prepare._GROUP, encode._PIECE_BYTES = 9000, 3, 3000
  encode_test.run(sys.argv[1], sys.argv[2], workers=int(sys.argv[3]))
"""


def children(pid):
  """Process ids of the children of a process, with their start times."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    try:
      fields = path.read_text().rpartition(') ')[2].split()
    except OSError:
      continue
    if int(fields[1]) == pid and fields[0] != 'Z':
      found.append((int(path.parent.name), fields[19]))
  return found


def is_running(pid, started):
  try:
    text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return False
  fields = text.rpartition(') ')[2].split()
  return fields[19] == started and fields[0] != 'Z'


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
@pytest.mark.parametrize('victim', ['worker', 'first process'])
def test_kills_at_random_moments(tmp_path, victim, monkeypatch):
  """Whoever is killed: the same command ends with the same bytes."""
  for name, value in ('_SHARD_TOKENS', 9000), ('_GROUP', 3):
    monkeypatch.setattr(prepare, name, value)
  monkeypatch.setattr(encode, '_PIECE_BYTES', 3000)
  raw = tmp_path / 'raw'
  raw.mkdir()
  for number in range(4):
    (raw / f'{number}.jsonl').write_text(lines(texts(4000, seed=number)))
  (raw / 'valid.jsonl').write_text(lines(texts(300, seed=9)))
  run(tmp_path / 'want', raw)
  want = hashes(tmp_path / 'want')
  program = tmp_path / 'program.py'
  program.write_text(PROGRAM)
  generator = random.Random(0)
  killed, attempt = 0, -1
  # Two kills, and whole groups of two attempts.
  while killed < 2 or attempt % 2 < 1:
    attempt += 1
    assert attempt < 30
    out = tmp_path / f'out{attempt // 2}'
    workers = 2 + attempt % 3
    with (tmp_path / 'told').open('w') as told:
      process = subprocess.Popen(
        [sys.executable, str(program), str(out), str(raw), str(workers)],
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        stderr=told,
        stdout=subprocess.DEVNULL,
      )
    while not (out / 'pieces').exists() and process.poll() is None:
      time.sleep(0.01)
    time.sleep(generator.uniform(0, 0.7))
    found = children(process.pid)
    if victim == 'worker' and found:
      os.kill(generator.choice(found)[0], signal.SIGKILL)
    elif victim != 'worker':
      process.kill()
    if process.wait(timeout=300):
      killed += 1
      text = (tmp_path / 'told').read_text()
      assert victim != 'worker' or 'workers was killed' in text, text
    for _ in range(100):
      left = [one for one in found if is_running(*one)]
      if not left:
        break
      time.sleep(0.1)
    assert not left
    if attempt % 2 == 1:
      run(out, raw, workers=generator.choice([1, 2]))
      assert hashes(out) == want


@pytest.mark.slow
def test_a_vocabulary_does_not_depend_on_workers(tmp_path, raw, small):
  found = {}
  for workers in (1, 2):
    path = tmp_path / f'{workers}.model'
    out = tmp_path / str(workers)
    run(
      out,
      raw,
      workers,
      vocabulary=str(path),
      vocabulary_size=295,
    )
    found[workers] = path.read_bytes(), hashes(out)
  assert found[1] == found[2]


def test_no_beam(tmp_path, raw, monkeypatch):
  monkeypatch.setitem(sys.modules, 'apache_beam', None)
  with pytest.raises(
    errors.CorpusError, match=r"--runner needs .*pip install 'lengen_jax\[beam"
  ):
    run(tmp_path / 'out', raw, runner='direct')
  assert not (tmp_path / 'out').exists()


@pytest.fixture(scope='module')
def beam():
  return pytest.importorskip('apache_beam')


@pytest.mark.parametrize('mode', ['concat', 'doc_pad'])
def test_beam_writes_the_bytes_of_one_process(tmp_path, raw, small, beam, mode):
  one = run(tmp_path / 'one', raw, mode=mode)
  assert run(tmp_path / 'beam', raw, mode=mode, runner='direct') == one
  assert hashes(tmp_path / 'beam') == hashes(tmp_path / 'one')


def test_beam_skips_bad_records(tmp_path, small, damaged, beam):
  bad, _ = damaged
  got = run(tmp_path / 'out', bad, 1, 'direct', bad_records='skip')
  check_named(got, bad)
  assert got == run(tmp_path / 'want', bad, bad_records='skip')


def test_beam_in_several_processes(tmp_path, raw, small, beam, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  one = run(tmp_path / 'one', raw)
  options = '--direct_num_workers=2 --direct_running_mode=multi_processing'
  assert run(tmp_path / 'beam', raw, 1, 'direct', options) == one
  assert hashes(tmp_path / 'beam') == hashes(tmp_path / 'one')


@pytest.mark.parametrize('shared', ['data.path', 'bucket'])
def test_beam_goes_on(tmp_path, raw, small, bucket, shared):
  """After an error in the data, with the pieces that are finished."""
  options, pieces = '', tmp_path / 'out' / 'pieces'
  if shared == 'bucket':
    options, pieces = '--temp_location=bucket://b/temp', bucket / 'temp'
  want = run(tmp_path / 'want', raw)
  mine = tmp_path / 'raw'
  shutil.copytree(raw, mine)
  with open(mine / 'a.jsonl', 'r+b') as file:
    file.seek(-3, os.SEEK_END)
    end = file.read()
    file.seek(-3, os.SEEK_END)
    file.write(b'x' * 3)
  out = tmp_path / 'out'
  for _ in range(2):
    with pytest.raises(errors.CorpusError, match=r'a\.jsonl, line 60: no JSON'):
      run(out, mine, 1, 'direct', options)
  with open(mine / 'a.jsonl', 'r+b') as file:
    file.seek(-3, os.SEEK_END)
    file.write(end)
  assert hashes(pieces)
  got = run(out, mine, 1, 'direct', options)
  assert got['splits'] == want['splits']


def test_runners_that_do_not_exist(tmp_path, raw, beam):
  with pytest.raises(
    errors.ConfigError, match='--runner=drect .*runners are direct, Flink'
  ):
    run(tmp_path / 'out', raw, runner='drect')


def test_beam_that_fails(tmp_path, raw, beam, monkeypatch):
  def write(*_):
    raise OSError('No space left')

  monkeypatch.setattr(encode.Encoder, 'write', write)
  with pytest.raises(
    errors.CorpusError, match='Beam runner direct failed: .*No space left'
  ):
    run(tmp_path / 'out', raw, runner='direct')


def test_an_interrupted_pipeline_is_cancelled(tmp_path, raw, beam, monkeypatch):
  class Service:
    cancelled = threading.Event()

    def wait_until_finish(self):
      self.cancelled.wait(60)

    def cancel(self):
      self.cancelled.set()

  def sleep(_):
    raise KeyboardInterrupt

  monkeypatch.setattr(beam.Pipeline, 'run', lambda pipeline: Service())
  monkeypatch.setattr(encode.time, 'sleep', sleep)
  with pytest.raises(KeyboardInterrupt):
    run(tmp_path / 'out', raw, runner='direct')
  assert Service.cancelled.is_set()


@pytest.fixture(scope='module')
def bucket_type(beam):
  """A folder that Beam sees as bucket://b, with no folders of its own."""
  from apache_beam.io import filesystem, localfilesystem

  class Bucket(localfilesystem.LocalFileSystem):
    root = ''

    @classmethod
    def scheme(cls):
      return 'bucket'

    def _real(self, path):
      return path.replace('bucket://b', self.root)

    def has_dirs(self):
      return False

    def _list(self, prefix):
      for path in pathlib.Path(self.root).rglob('*'):
        name = f'bucket://b/{path.relative_to(self.root)}'
        if path.is_file() and name.startswith(prefix):
          yield filesystem.FileMetadata(name, path.stat().st_size)

    def open(self, path, *args, **kwargs):
      return super().open(self._real(path), *args, **kwargs)

    def create(self, path, *args, **kwargs):
      os.makedirs(os.path.dirname(self._real(path)), exist_ok=True)
      return super().create(self._real(path), *args, **kwargs)

    def rename(self, sources, destinations):
      super().rename(
        [self._real(path) for path in sources],
        [self._real(path) for path in destinations],
      )

    def exists(self, path):
      return os.path.isfile(self._real(path))

    def delete(self, paths):
      for path in paths:
        os.unlink(self._real(path))

  return Bucket


@pytest.fixture
def bucket(tmp_path, bucket_type, monkeypatch):
  """The folder of a bucket."""
  remote._listed.cache_clear()
  monkeypatch.setattr(bucket_type, 'root', str(tmp_path / 'bucket'))
  (tmp_path / 'bucket').mkdir()
  return tmp_path / 'bucket'


def test_raw_data_in_a_bucket(tmp_path, raw, small, bucket):
  """Its files may be packed in any way; paths differ, windows do not."""
  shutil.copytree(raw, bucket / 'raw')
  (bucket / 'raw' / '.hidden.jsonl').write_text('x')
  with zipfile.ZipFile(bucket / 'raw' / 'z.zip', 'w') as archive:
    archive.writestr('z.jsonl', lines(texts(9, seed=5)))
  want = run(tmp_path / 'want', bucket / 'raw')['splits']
  got = run(tmp_path / 'got', 'bucket://b/raw')
  assert got['splits'] == want
  files = [path for path, *_ in got['read']['train']]
  assert files[0] == 'bucket://b/raw/a.jsonl'
  assert not any('hidden' in path for path in files)


def test_beam_with_pieces_in_a_bucket(tmp_path, raw, small, bucket):
  shutil.copytree(raw, bucket / 'raw')
  want = run(tmp_path / 'want', 'bucket://b/raw')
  left = bucket / 'temp' / 'lengen_prepare'
  options = '--temp_location=bucket://b/temp'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(prepare._Shard, 'close', None)
    with pytest.raises(TypeError):
      run(tmp_path / 'out', 'bucket://b/raw', 1, 'direct', options)
  assert hashes(left)
  # Another folder has pieces of its own.
  for name in 'other', 'out':
    got = run(tmp_path / name, 'bucket://b/raw', 1, 'direct', options)
    assert got == want
    assert hashes(tmp_path / name) == hashes(tmp_path / 'want')
    assert bool(hashes(left)) == (name == 'other')


def test_no_file_in_a_bucket(tmp_path, bucket):
  with pytest.raises(
    errors.CorpusError, match='there is no lm .*looked in: bucket://b/nothing'
  ):
    run(tmp_path / 'out', 'bucket://b/nothing')
  with pytest.raises(
    errors.CorpusError,
    match='cannot list unknown://b/lm: .*check that the bucket exists',
  ):
    run(tmp_path / 'out', 'unknown://b')


def test_ids_that_records_cannot_hold(tmp_path):
  class Special(vocabulary.Bytes):
    def encode(self, texts):
      return [np.array([2**16], np.int32) for _ in texts]

  path = tmp_path / 'train.txt'
  path.write_text('text')
  vocab = Special()
  vocab.size = 2**16
  encoder = encode.Encoder(sources.create('lm'), vocab, 3, tmp_path)
  piece = encode.Piece(((sources.Part(str(path)), 0, None),))
  with pytest.raises(errors.CorpusError, match='token id 65536, over the 65,5'):
    list(encoder.documents(piece))
