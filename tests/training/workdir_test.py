"""Tests `lengen_jax/training/workdir.py`: where workdirs lie, who writes."""

import errno
import json
import pathlib
import subprocess
import sys

import jax
import pytest

from configs import chomsky
from lengen_jax import cli, errors, locks
from lengen_jax.training import defaults as training_defaults
from lengen_jax.training import files
from lengen_jax.training import workdir as workdir_lib


def test_a_relative_workdir_is_made_absolute(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert files.locate('runs/a') == tmp_path / 'runs' / 'a'


def test_one_initial_model_written_in_two_ways(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  config = training_defaults.get()
  for path in ('runs/a', './runs/a/'):
    config.train.init_from = path
    workdir_lib.claim('run', config)
  for path in ('runs/b', '', str(tmp_path / 'runs/a')):
    config.train.init_from = path
    with pytest.raises(errors.WorkdirError, match='init_from'):
      workdir_lib.claim('run', config)


def test_a_folder_without_a_lock(tmp_path, monkeypatch):
  """The folder cannot be written, or its file system has no locks."""
  (tmp_path / 'full/.lock').mkdir(parents=True)
  with pytest.raises(errors.WorkdirError, match='cannot write .*full: '):
    with files.locked(tmp_path / 'full', wait=False):
      pass

  def flock(*_):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr('fcntl.flock', flock)
  with files.locked(tmp_path / 'network', wait=False):
    pass


def test_an_error_while_another_process_holds_the_lock(tmp_path):
  """It is not taken for a file system without locks."""

  def busy():
    raise BrokenPipeError

  with (tmp_path / 'a').open('w') as first, (tmp_path / 'a').open() as second:
    locks.lock(first, busy)
    with pytest.raises(BrokenPipeError):
      locks.lock(second, busy)


def test_checkpoints_of_an_unfinished_sweep(tmp_path, tiny_config):
  (tmp_path / 'rope/unfinished-0123').mkdir(parents=True)
  with pytest.raises(errors.WorkdirError, match=r'no sweep\.json'):
    workdir_lib.claim(tmp_path, tiny_config, kind=workdir_lib.SWEEP)
  # A run is none of a sweep.
  (tmp_path / 'runs/rope').mkdir(parents=True)
  (tmp_path / 'runs/rope/config.json').write_text('{}')
  workdir_lib.claim(tmp_path / 'runs', tiny_config, kind=workdir_lib.SWEEP)


def test_checkpoints_of_a_lost_config(tmp_path, tiny_config):
  """They may be of another seed, which only the config recorded."""
  (tmp_path / 'checkpoints').mkdir()
  message = r'no config\.json.*--workdir'
  with pytest.raises(errors.WorkdirError, match=message):
    workdir_lib.claim(tmp_path, tiny_config)
  with pytest.raises(errors.WorkdirError, match=message):
    workdir_lib.read_config(tmp_path)
  assert not (tmp_path / 'config.json').exists()


@pytest.mark.parametrize('section', ['data', 'optimizer', 'train'])
def test_a_config_without_a_section(tmp_path, tiny_config, section):
  workdir_lib.claim(tmp_path, tiny_config)
  fields = json.loads((tmp_path / 'config.json').read_text())
  del fields[section]
  (tmp_path / 'config.json').write_text(json.dumps(fields))
  with pytest.raises(errors.WorkdirError, match=f'lacks {section}; restore'):
    workdir_lib.read_config(tmp_path)
  fields[section] = None
  (tmp_path / 'config.json').write_text(json.dumps(fields))
  with pytest.raises(
    errors.WorkdirError, match=f'has {section}=None, .*; rest'
  ):
    workdir_lib.read_config(tmp_path)


@pytest.mark.parametrize(
  'kind', [workdir_lib.RUN, workdir_lib.COMPARISON, workdir_lib.SWEEP]
)
def test_a_field_that_was_added_since(tmp_path, tiny_config, kind):
  config = tiny_config
  if kind == workdir_lib.SWEEP:
    config = chomsky.get_config('tiny')
  path = workdir_lib.claim(tmp_path, config, kind=kind) / kind
  fields = json.loads(path.read_text())
  before = fields['optimizer'].pop('encoding_rate')
  path.write_text(json.dumps(fields))
  workdir_lib.claim(tmp_path, config, kind=kind)
  assert json.loads(path.read_text())['optimizer']['encoding_rate'] == before
  path.write_text(json.dumps(fields))
  config.optimizer.encoding_rate = 2 * before
  with pytest.raises(errors.WorkdirError, match='encoding_rate'):
    workdir_lib.claim(tmp_path, config, kind=kind)


@pytest.mark.parametrize(
  'path, text',
  [('s3://b/run', 's3://b/run .* gs://'), ('gs:/b/run', 'one slash')],
)
def test_a_workdir_that_cannot_hold_checkpoints(
  path, text, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(errors.ConfigError, match=text), files.locked(path):
    pass
  assert not [*tmp_path.iterdir()]


def test_a_workdir_in_a_bucket_is_no_folder_here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  path = files.locate('gs://bucket/runs/a')
  assert str(path / 'x') == 'gs://bucket/runs/a/x'
  assert list(tmp_path.iterdir()) == []


def test_a_bucket_without_credentials(tiny_config, monkeypatch, capsys):
  class Bucket(type(files.locate('gs://bucket'))):
    def mkdir(self, *args, **kwargs):
      raise RuntimeError('401 Anonymous caller\n at line 7')

  monkeypatch.setattr(files.epath, 'Path', Bucket)
  with pytest.raises(
    errors.WorkdirError,
    match=r'gs://bucket/run: 401 Anonymous caller; .*\(gcloud auth',
  ):
    workdir_lib.claim('gs://bucket/run', tiny_config)
  config = pathlib.Path(__file__).parents[2] / 'configs' / 'stdlib.py'
  monkeypatch.setattr('lengen_jax.training.sharding.start', lambda: 0)
  arguments = [f'--config={config}:tiny', '--workdir=gs://bucket/run']
  assert cli.main(['train', *arguments]) == 2
  error = capsys.readouterr().err
  assert 'gcloud auth' in error and error.count('\n') == 1


def test_one_process_of_several_writes(tmp_path, monkeypatch):
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: True)
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  files.write_json(tmp_path / 'a.json', {})
  assert not (tmp_path / 'a.json').exists()
  monkeypatch.setattr(jax, 'process_index', lambda: 0)
  files.write_json(tmp_path / 'a.json', {})
  assert (tmp_path / 'a.json').exists()


def test_a_folder_is_one_process_own(tmp_path):
  """Another one waits until it is free, and says so."""
  code = (
    'import sys\n'
    'from lengen_jax.training import files\n'
    'with files.locked(sys.argv[1]):\n'
    "  print('in', flush=True)\n"
  )
  command = [sys.executable, '-c', code, str(tmp_path / 'here')]
  with files.locked(tmp_path / 'here'):
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert 'waiting for another process' in other.stdout.readline()
    assert other.poll() is None
  assert other.communicate(timeout=60)[0] == 'in\n'
  # Whoever is killed holds it no longer.
  with files.locked(tmp_path / 'here'):
    pass


def test_a_full_disk_leaves_no_part(tmp_path, monkeypatch):
  def full(path, text):
    path.write_bytes(b'part')
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(pathlib.Path, 'write_text', full)
  with pytest.raises(errors.StorageError, match='free some space and run the'):
    files.write_text(tmp_path / 'table.csv', 'text')
  assert not list(tmp_path.iterdir())


def test_a_workdir_that_is_a_file(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(
    errors.WorkdirError, match='is not a folder; choose anoth'
  ):
    files.make_folder(tmp_path / 'file')
