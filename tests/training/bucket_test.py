"""A workdir in a bucket, on an emulator of Google Cloud Storage."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

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
      # Of gcsfs, which etils uses without TensorFlow, and of tensorstore.
      'EPATH_USE_TF': 'false',
      'STORAGE_EMULATOR_HOST': url,
      'TENSORSTORE_GCS_HTTP_URL': url,
    }

  def close(self):
    self._server.stop()

  def read(self, name):
    return self._server._storage.get_file('bucket', name).decode()

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


def test_a_killed_run_repeats_one_in_a_folder(tmp_path, bucket):
  """Its losses and evaluations are those of a run that is not killed."""
  printed = tmp_path / 'printed'

  def start(*arguments):
    # gcsfs prints more than a pipe holds.
    with printed.open('w') as file:
      return subprocess.Popen(
        [sys.executable, '-m', 'lengen_jax.cli', *arguments],
        env=bucket.environment,
        stdout=file,
        stderr=file,
      )

  def start_training(workdir):
    return start(
      'train',
      f'--config={ROOT}/configs/stdlib.py:tiny',
      f'--workdir={workdir}',
      '--config.train.steps=24',
      '--config.train.checkpoint_every=4',
    )

  def finish(process):
    assert process.wait(timeout=200) == 0, printed.read_text()[-3000:]

  killed, end = start_training('gs://bucket/run'), time.monotonic() + 200
  while 'run/checkpoints/8/commit_success.txt' not in bucket.names():
    assert killed.poll() is None, printed.read_text()[-3000:]
    assert time.monotonic() < end
    time.sleep(0.05)
  killed.kill()
  assert killed.wait(timeout=60) == -signal.SIGKILL
  assert 'run/checkpoints/24/commit_success.txt' not in bucket.names()
  finish(start_training('gs://bucket/run'))
  _, resumed = lines(bucket.read('run/sessions.jsonl'))
  assert resumed['first_step'] >= 8
  finish(start('eval', '--workdir=gs://bucket/run'))

  local = tmp_path / 'run'
  finish(start_training(local))
  finish(start('eval', f'--workdir={local}'))
  for name in ('metrics.jsonl', 'eval.json'):
    found, wanted = bucket.read(f'run/{name}'), (local / name).read_text()
    assert losses(wanted) and losses(found) == losses(wanted), name
