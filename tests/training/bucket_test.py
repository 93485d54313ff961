"""Workdirs and data in a bucket, on an emulator of Google Cloud Storage."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.data import tiny
from tests.training import trackers_test

# make test-peers installs them.
emulator = pytest.importorskip('gcp_storage_emulator.server')
objects = pytest.importorskip('gcp_storage_emulator.handlers.objects')
pytest.importorskip('gcsfs')

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.peers


class Bucket:
  """The bucket gs://bucket in the memory of this process.

  Attributes:
    environment: variables of processes that use it.
  """

  def __init__(self):
    self._server = emulator.create_server(
      'localhost', 0, in_memory=True, default_bucket='bucket'
    )
    self._server.start()
    port = self._server._api._httpd.server_port
    url = f'http://localhost:{port}'
    self.environment = {
      **os.environ,
      'JAX_PLATFORMS': 'cpu',
      'PYTHONPATH': str(ROOT),
      # Of gcsfs, used by etils without TensorFlow, and of tensorstore.
      'EPATH_USE_TF': 'false',
      'STORAGE_EMULATOR_HOST': url,
      'TENSORSTORE_GCS_HTTP_URL': url,
    }

  def close(self):
    self._server.stop()

  def run(self, program):
    """Runs Python code in a process that uses the bucket."""
    done = subprocess.run(
      [sys.executable, '-c', program],
      env=self.environment,
      capture_output=True,
      text=True,
      timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]

  def read(self, name):
    return self.read_bytes(name).decode()

  def read_bytes(self, name):
    return self._server._storage.get_file('bucket', name)

  def names(self):
    return {*self._server._storage.objects.get('bucket', ())}


@pytest.fixture
def bucket(monkeypatch):
  """A bucket, with two features of the service that the emulator lacks."""
  download = objects.download

  def with_generation(request, response, storage):
    place = request.params['bucket_name'], request.params['object_id']
    if place[1] in storage.objects.get(place[0], ()):
      found = storage.get_file_obj(*place)
      response['x-goog-generation'] = found['generation']
    download(request, response, storage)

  def move(request, response, storage):
    request.params['dest_bucket_name'] = request.params['bucket_name']
    objects.copy(request, response, storage)
    objects.delete(request, response, storage)

  name = r'(?P<{}>.*[^/]+)'
  moved = (
    r'^/storage/v1/b/(?P<bucket_name>[-.\w]+)/o/'
    + name.format('object_id')
    + '/moveTo/o/'
    + name.format('dest_object_id')
    + '$'
  )
  monkeypatch.setattr(objects, 'download', with_generation)
  monkeypatch.setattr(
    emulator,
    'HANDLERS',
    ((moved, {emulator.POST: move}), *emulator.HANDLERS),
  )
  made = Bucket()
  yield made
  made.close()


def lines(text):
  return [*map(json.loads, text.splitlines())]


def losses(text):
  """All losses and gradient norms in a file of JSON, or of JSON lines."""
  return re.findall(r'"(?:loss|grad_norm)": [^}"]*', text)


@pytest.fixture
def commands(tmp_path, bucket):
  return Commands(tmp_path / 'printed', bucket)


class Commands:
  """Runs commands whose output is in a file."""

  def __init__(self, printed, bucket):
    self._printed, self._environment = printed, bucket.environment

  def start(self, *arguments, **environment):
    # gcsfs prints more than a pipe holds.
    with self._printed.open('w') as file:
      return subprocess.Popen(
        [sys.executable, '-m', 'lengen_jax.cli', *arguments],
        env={**self._environment, **environment},
        stdout=file,
        stderr=file,
      )

  def train(self, workdir, *arguments, **environment):
    return self.start(
      'train',
      f'--config={ROOT}/configs/stdlib.py:tiny',
      f'--workdir={workdir}',
      *arguments,
      **environment,
    )

  def printed(self):
    return self._printed.read_text()[-3000:]

  def finish(self, process):
    assert process.wait(timeout=200) == 0, self.printed()


def test_a_killed_run_repeats_one_in_a_folder(tmp_path, bucket, commands):
  """Its losses and evaluations are those of a run that is not killed."""
  steps = '--config.train.steps=24', '--config.train.checkpoint_every=4'
  tracked = (*steps, '--config.train.tensorboard=True')
  killed = commands.train('gs://bucket/run', *tracked)
  end = time.monotonic() + 200
  while 'run/checkpoints/8/commit_success.txt' not in bucket.names():
    assert killed.poll() is None, commands.printed()
    assert time.monotonic() < end
    time.sleep(0.05)
  killed.kill()
  assert killed.wait(timeout=60) == -signal.SIGKILL
  assert 'run/checkpoints/24/commit_success.txt' not in bucket.names()
  bucket.run(LEAVE)
  commands.finish(commands.train('gs://bucket/run', *tracked))
  assert not any('checkpoints/6/' in name for name in bucket.names())
  _, resumed = lines(bucket.read('run/sessions.jsonl'))
  assert resumed['first_step'] >= 8
  commands.finish(commands.start('eval', '--workdir=gs://bucket/run'))

  events = tmp_path / 'events'
  events.mkdir()
  for name in bucket.names():
    if name.startswith('run/tensorboard/'):
      (events / name.rpartition('/')[2]).write_bytes(bucket.read_bytes(name))
  assert [*trackers_test.shown(events)['loss']] == [*range(1, 25)]

  local = tmp_path / 'run'
  commands.finish(commands.train(local, *steps))
  commands.finish(commands.start('eval', f'--workdir={local}'))
  for name in ('metrics.jsonl', 'eval.json'):
    found, wanted = bucket.read(f'run/{name}'), (local / name).read_text()
    assert losses(wanted) and losses(found) == losses(wanted), name


LEAVE = """
from lengen_jax.training import files
files.locate('gs://bucket/run/checkpoints/6/state').write_text('incomplete')
"""
MOVE = """
from lengen_jax.training import files
root = files.locate('gs://bucket/moved')
for _ in range(2):
  (root / 'checkpoints/8/state').write_text('damaged')
  files.move_into(root / 'unreadable', root / 'checkpoints/8')
  files.move_into(root / 'unreadable', root / 'checkpoints/9')
"""

LOAD = """
from etils import epath
from lengen_jax import errors
from lengen_jax.training import pretrained
text = '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}'
epath.Path('gs://bucket/llama/config.json').write_text(text)
try:
  pretrained.load('gs://bucket/llama')
except errors.CheckpointError as error:
  assert 'gs://bucket/llama is not local' in str(error), error
else:
  raise AssertionError
"""


REPORT = """
from lengen_jax import cli
from lengen_jax.training import files
curve = {'encoding': 'nope', 'positions': 'standard', 'loss': [1.5]}
curve |= {'attention_scale': 'none', 'seed': 0, 'tokens': 8, 'refused': {}}
curve |= {'parameters': 1, 'train_seconds': 0.1, 'bits_per_byte': [None]}
curve |= {'perplexity': [4.5], 'word_perplexity': [None]}
found = {'train_length': 8, 'lengths': [8], 'curves': [curve]}
files.write_json('gs://bucket/compared/results.json', found)
assert cli.main(['report', '--workdir=gs://bucket/compared']) == 0
"""


def test_results_are_reported(bucket):
  bucket.run(REPORT)


def test_checkpoints_of_transformers_must_be_local(bucket):
  bucket.run(LOAD)


def test_folders_are_moved(bucket):
  """A bucket has no empty folder to move them into."""
  bucket.run(MOVE)
  found = {name for name in bucket.names() if name.startswith('moved/')}
  moved = {f'moved/unreadable/8-{number}/state' for number in (0, 1)}
  assert found == {*moved, 'moved/unreadable/README.txt'}


def test_prepared_data(tmp_path, bucket, commands):
  """A run on another machine than that of lengen prepare."""
  raw = tmp_path / 'raw'
  raw.mkdir()
  for name, documents in (('train', 40), ('valid', 8)):
    texts = [
      json.dumps({'text': tiny.text(seed, 700)}) for seed in range(documents)
    ]
    (raw / f'{name}.jsonl').write_text('\n'.join(texts))

  def options(path):
    return (
      '--config.data.source=prepared',
      '--config.data.task=lm',
      f'--config.data.raw={raw}',
      '--config.data.vocabulary=bytes',
      f'--config.data.path={path}',
      '--config.model.vocab_size=259',
      '--config.train.steps=4',
    )

  for number, path in enumerate(('gs://bucket/data', tmp_path / 'data')):
    cache = {'XDG_CACHE_HOME': str(tmp_path / f'prepare-{number}')}
    config = f'--config={ROOT}/configs/stdlib.py:tiny'
    prepared = commands.start('prepare', config, *options(path), **cache)
    commands.finish(prepared)
    cache = {'XDG_CACHE_HOME': str(tmp_path / f'train-{number}')}
    run = commands.train(tmp_path / f'{number}', *options(path), **cache)
    commands.finish(run)
  assert {'data/manifest.json', 'data/train/00000.array_record'} <= (
    bucket.names()
  )
  assert not any(name.endswith('.partial') for name in bucket.names())
  found, wanted = (
    losses((tmp_path / name / 'metrics.jsonl').read_text()) for name in '01'
  )
  assert wanted and found == wanted
