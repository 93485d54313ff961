"""Tests `lengen_jax/training/trackers.py`."""

import functools
import json
import struct
import sys

import jax.numpy as jnp
import ml_collections
import pytest

from lengen_jax import errors
from lengen_jax.training import metrics, trackers

START = 1_000_000_000.0


class Device:
  """Something that trains."""

  device_kind = 'cpu'
  num_cores = 1
  process_index = 0

  def memory_stats(self):
    return None


def open_log(folder, first=0, **train):
  """A log with the boards that a config's section `train` asks for."""
  train = {'tensorboard': False, 'wandb': ''} | train
  config = ml_collections.ConfigDict({'seed': 3, 'train': train})
  return metrics.Log(
    folder,
    first,
    devices=[Device()] * 2,
    tokens=64,
    flops=197e12,
    trackers=functools.partial(trackers.create, config),
    clock=lambda: START,
  )


def steps(*numbers):
  return [(n, {'loss': jnp.float32(n)}) for n in numbers]


def events(folder):
  """Events in TensorBoard's files, in the order that it reads them."""
  from tensorboardX.proto import event_pb2

  for path in sorted(folder.iterdir()):
    data = path.read_bytes()
    while data:
      # Length, its checksum, the event, its checksum.
      (size,) = struct.unpack('<Q', data[:8])
      yield event_pb2.Event.FromString(data[12 : 12 + size])
      data = data[16 + size :]


def shown(folder):
  """{name: {step: value}}, as TensorBoard shows it."""
  values = {}
  for event in events(folder):
    if event.session_log.status == event.session_log.START:
      for points in values.values():
        for step in [step for step in points if step >= event.step]:
          del points[step]
    for value in event.summary.value:
      points = values.setdefault(value.tag, {})
      assert event.step not in points
      points[event.step] = value.simple_value
  return values


def test_tensorboard(tmp_path):
  log = open_log(tmp_path, tensorboard=True)
  log.write(steps(1, 2), 4.0, None)
  log.write([(3, {'loss': jnp.nan})], 4.0, 2)
  log.write(steps(4), 4.0, 2)
  # Killed here: the log is never closed.
  values = shown(tmp_path / 'tensorboard')
  assert values['loss'] == {1: 1, 2: 2, 4: 4}
  assert values['tokens_per_second'][2] == 32
  assert values['durable_step'] == {3: 2, 4: 2}
  times = {e.wall_time for e in events(tmp_path / 'tensorboard') if e.step > 1}
  assert times == {START}
  log = open_log(tmp_path, first=2, tensorboard=True)
  log.write(steps(3), 1.0, 2)
  log.close()
  assert shown(tmp_path / 'tensorboard')['loss'] == {1: 1, 2: 2, 3: 3}


def test_tensorboard_is_an_option(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorboardX', None)
  open_log(tmp_path).write(steps(1), 1.0, None)
  assert not (tmp_path / 'tensorboard').exists()
  with pytest.raises(errors.ConfigError, match=r'lengen_jax\[tensorboard\]'):
    open_log(tmp_path, tensorboard=True)


def records(folder):
  """What the files of W&B's offline runs hold, a list per file."""
  from wandb.proto import wandb_internal_pb2

  for path in sorted(folder.rglob('*.wandb')):
    # A header, then pieces of records: checksum, size, kind, bytes; none
    # crosses from one block of 32 KiB to the next.
    data, at, piece, found = path.read_bytes(), 7, b'', []
    while at < len(data):
      if 2**15 - at % 2**15 < 7:
        at += 2**15 - at % 2**15
        continue
      size, kind = struct.unpack('<HB', data[at + 4 : at + 7])
      piece += data[at + 7 : at + 7 + size]
      at += 7 + size
      if kind in (1, 4):
        found.append(wandb_internal_pb2.Record.FromString(piece))
        piece = b''
    yield found


def test_tensorboard_in_a_store_without_a_client(tmp_path, monkeypatch):
  from tensorboardX import event_file_writer

  def refuse(*_):
    raise ImportError('boto3 must be installed for S3 support.')

  monkeypatch.setattr(event_file_writer, 'EventsWriter', refuse)
  wanted = 'train.tensorboard cannot write to .*/tensorboard: boto3 must be ins'
  with pytest.raises(errors.ConfigError, match=wanted):
    open_log(tmp_path, tensorboard=True)


@pytest.mark.slow
def test_wandb(tmp_path, monkeypatch):
  import wandb

  monkeypatch.setenv('WANDB_MODE', 'offline')
  for first, last in ((0, 3), (2, 4)):
    log = open_log(tmp_path, first, wandb='mine')
    log.write(steps(*range(first + 1, last + 1)), 4.0, None)
    log.write([(last + 1, {'loss': jnp.nan})], 4.0, None)
    log.close()
  # Waits for W&B's process, which writes the files. At its end a program does
  # so, too.
  wandb.teardown()
  ids = set()
  for (first, last), session in zip(
    ((0, 3), (2, 4)), records(tmp_path / 'wandb'), strict=True
  ):
    (run,) = (one.run for one in session if one.HasField('run'))
    ids.add(run.run_id)
    assert (run.project, run.display_name) == ('mine', tmp_path.name)
    config = {one.key: json.loads(one.value_json) for one in run.config.update}
    assert config['seed'] == 3
    losses = {
      one.history.step.num: json.loads(item.value_json)
      for one in session
      for item in one.history.item
      if 'loss' in (item.key, *item.nested_key)
    }
    assert losses == {n: n for n in range(first + 1, last + 1)}
  # One run, gone on with.
  assert len(ids) == 1


def test_wandb_is_an_option(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  open_log(tmp_path).write(steps(1), 1.0, None)
  with pytest.raises(errors.ConfigError, match=r'lengen_jax\[wandb\]'):
    open_log(tmp_path, wandb='mine')


@pytest.mark.parametrize(
  ('name', 'kind'),
  [
    ('CommError', errors.StorageError),
    ('AuthenticationError', errors.ConfigError),
  ],
)
def test_wandb_that_cannot_be_reached(tmp_path, monkeypatch, name, kind):
  import wandb

  def fail(**_):
    raise getattr(wandb.errors, name)('no answer')

  monkeypatch.setattr(wandb, 'init', fail)
  with pytest.raises(kind, match="wandb='mine': no answer; or set WANDB_MODE"):
    open_log(tmp_path, wandb='mine')


def test_wandb_that_refuses(tmp_path, monkeypatch):
  monkeypatch.setenv('WANDB_MODE', 'offline')
  with pytest.raises(errors.ConfigError, match="wandb='a/b'.*WANDB_MODE"):
    open_log(tmp_path, wandb='a/b')
