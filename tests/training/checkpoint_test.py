"""Tests `lengen_jax/training/checkpoint.py`."""

import dataclasses
import errno
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from lengen_jax import errors
from lengen_jax.data import windows
from lengen_jax.models import config as model_config
from lengen_jax.models import stacking
from lengen_jax.training import (
  checkpoint,
  checkpoint_format,
  checksums,
  files,
  revision,
  runs,
)
from lengen_jax.training import state as state_lib
from tests import helpers


class Counted(windows.IndexedBatches):
  """Batches that only count."""

  def batch(self, index):
    return index


def make_state(step, width=8, dtype=np.float32):
  """A state that is small, and another for each step."""
  rng = np.random.default_rng(step)
  params = {'embed': rng.normal(size=(16, width)).astype(dtype)}
  tx = optax.adam(1)
  _, opt_state = tx.update(params, tx.init(params))
  state = state_lib.TrainState(
    step=jnp.int32(step), params=params, opt_state=opt_state
  )
  return jax.device_put(state, jax.devices()[0])


def model_state(config):
  """A model of a config, and its first state."""
  model = model_config.ModelConfig(**config.model.to_dict())
  unrolled = dataclasses.replace(model, scan_layers=False)
  params = jax.tree.map(jnp.asarray, helpers.initial(unrolled))
  if model.scan_layers:
    params = stacking.stack(params, model)
  opt_state = jax.jit(optax.adam(1).init)(params)
  state = state_lib.TrainState(
    step=jnp.int32(4), params=params, opt_state=opt_state
  )
  return model, jax.device_put(state, jax.devices()[0])


def abstract(state):
  return jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=leaf.sharding
    ),
    state,
  )


def write(folder, steps, **options):
  """Saves steps one by one."""
  checkpoints = checkpoint.Checkpointer(folder, None, **options)
  for step in steps:
    checkpoints.save(make_state(step))
  checkpoints.close()


def read(folder, warn=print, state=None, **options):
  checkpoints = checkpoint.Checkpointer(folder, None)
  try:
    like = abstract(make_state(0) if state is None else state)
    return checkpoints.restore(like, warn, **options)
  finally:
    checkpoints.close()


def on_disk(folder):
  return sorted(int(f.name) for f in (folder / 'checkpoints').iterdir())


def data_files(folder, step):
  """The files that hold arrays."""
  files = (folder / 'checkpoints' / str(step)).rglob('*')
  return [file for file in files if file.is_file() and file.parent.name == 'd']


def spoil(folder, step):
  for file in data_files(folder, step):
    file.write_bytes(b'short')


def test_layers_are_unstacked_on_disk(tmp_path, tiny_config):
  tiny_config.model.num_layers = 2
  tiny_config.model.encoding = 'fire'
  tiny_config.model.scan_layers = True
  scanned, state = model_state(tiny_config)
  checkpoints = checkpoint.Checkpointer(tmp_path, scanned)
  checkpoints.save(state)
  helpers.assert_same(checkpoints.restore(abstract(state)), state)
  checkpoints.close()
  # The same files serve the unrolled model.
  tiny_config.model.scan_layers = False
  model, like = model_state(tiny_config)
  checkpoints = checkpoint.Checkpointer(tmp_path, model)
  unrolled = checkpoints.restore(abstract(like))
  checkpoints.close()
  helpers.assert_same(unrolled, like)
  np.testing.assert_array_equal(
    unrolled.params['layer_1']['attention']['encoding']['c'],
    state.params['layers']['block_0']['attention']['encoding']['c'][1],
  )


def test_nothing_to_restore(tmp_path):
  assert read(tmp_path) is None


def test_a_state_may_be_donated_once_it_is_saved(tmp_path):
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  state, want = make_state(1), make_state(1)
  checkpoints.save(state)
  for leaf in jax.tree.leaves(state):
    leaf.delete()
  checkpoints.close()
  helpers.assert_same(read(tmp_path), want)


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'options, values, stay, best',
  [
    (dict(), {}, [6, 7], None),
    (dict(keep=1, keep_every=3), {}, [3, 6, 7], None),
    (dict(best='max'), {1: -5, 2: -1, 3: -4, 6: -2}, [2, 6, 7], 2),
    (dict(best='min'), {1: 2, 2: 1, 3: float('nan'), 4: 1}, [4, 6, 7], 4),
    (dict(best='max', keep=1), {5: float('inf')}, [7], None),
    (dict(keep=1), {2: 1}, [7], None),
  ],
  ids=['newest', 'every', 'max', 'min', 'infinite', 'none'],
)
def test_which_checkpoints_stay(tmp_path, options, values, stay, best):
  for steps in ((1, 2, 3, 4), (5, 6, 7)):  # In two sessions.
    checkpoints = checkpoint.Checkpointer(tmp_path, None, **options)
    for step in steps:
      checkpoints.save(make_state(step), value=values.get(step))
    checkpoints.close()
  assert on_disk(tmp_path) == stay
  checkpoints = checkpoint.Checkpointer(tmp_path, None, **options)
  assert checkpoints.best_step() == best
  state = checkpoints.restore(abstract(make_state(0)), step=best)
  helpers.assert_same(state, make_state(best or 7))
  checkpoints.close()


def test_a_given_step(tmp_path):
  write(tmp_path, (1, 2, 3), keep=3)
  helpers.assert_same(read(tmp_path, step=2), make_state(2))
  with pytest.raises(
    errors.CheckpointError, match='has no step 4; there are: 1, 2, 3'
  ):
    read(tmp_path, step=4)
  spoil(tmp_path, 2)
  with pytest.raises(errors.CheckpointError, match='step 2 in .* be read: '):
    read(tmp_path, step=2)


def test_a_step_before_others_is_not_silently_left_out(tmp_path):
  write(tmp_path, (1, 5))
  with pytest.raises(errors.CheckpointError, match='step 4 cannot .* step 5'):
    write(tmp_path, (4,))


def test_falls_back_to_an_older_checkpoint_and_says_so(tmp_path):
  write(tmp_path, (4, 8))
  spoil(tmp_path, 8)
  warnings = []
  helpers.assert_same(read(tmp_path, warnings.append), make_state(4))
  assert len(warnings) == 1 and 'step 8' in warnings[0]
  assert '\n' not in warnings[0]


def test_a_flipped_bit_that_orbax_does_not_see(tmp_path, monkeypatch):
  write(tmp_path, (4, 8))
  original = ocp.PyTreeCheckpointHandler.restore

  def flip(self, directory, *args, **kwargs):
    state = original(self, directory, *args, **kwargs)
    if directory.parent.name == '4':
      return state
    embed = state['params']['embed']
    bits = jax.lax.bitcast_convert_type(embed, jnp.uint32).at[3, 1].add(1)
    embed = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return {**state, 'params': {'embed': embed}}

  monkeypatch.setattr(ocp.PyTreeCheckpointHandler, 'restore', flip)
  warnings = []
  helpers.assert_same(read(tmp_path, warnings.append), make_state(4))
  (line,) = warnings
  assert 'step 8: the checksums of params/embed differ' in line


def test_an_array_that_orbax_leaves_out(tmp_path, monkeypatch):
  """As with damaged metadata: it returns the abstract array."""
  write(tmp_path, (4, 8))
  original = ocp.PyTreeCheckpointHandler.restore

  def leave_out(self, directory, args):
    found = original(self, directory, args=args)
    if directory.parent.name == '8':
      found['params'] = args.item['params']
    return found

  monkeypatch.setattr(ocp.PyTreeCheckpointHandler, 'restore', leave_out)
  warnings = []
  helpers.assert_same(read(tmp_path, warnings.append), make_state(4))
  assert 'step 8: it lacks params/embed' in warnings[0]


def test_what_is_unreadable_is_set_aside(tmp_path):
  for number in range(2):
    write(tmp_path, (4, 8, 9), keep=3)
    spoil(tmp_path, 8)
    spoil(tmp_path, 9)
    checkpoints = checkpoint.Checkpointer(tmp_path, None)
    restored = checkpoints.restore(abstract(make_state(0)), lambda line: None)
    assert int(restored.step) == checkpoints.durable_step() == 4
    # Saving would do it too.
    if number:
      checkpoints.set_aside_unreadable()
    checkpoints.save(make_state(6))
    checkpoints.close()
    assert on_disk(tmp_path) == [4, 6]
    shutil.rmtree(tmp_path / 'checkpoints' / '6')
  aside = tmp_path / 'unreadable_checkpoints'
  names = sorted(folder.name for folder in aside.iterdir())
  assert names == ['8-0', '8-1', '9-0', '9-1']
  assert (aside / '8-1' / 'record' / 'metadata').exists()


def test_what_killed_runs_left(tmp_path):
  write(tmp_path, (4, 8))
  (tmp_path / 'checkpoints' / '12').mkdir()
  half = tmp_path / 'checkpoints' / '16.orbax-checkpoint-tmp-1'
  shutil.copytree(tmp_path / 'checkpoints' / '8', half)
  warnings = []
  assert int(read(tmp_path, warnings.append).step) == 8
  assert len(warnings) == 1 and 'step 12: it has no record' in warnings[0]
  # It may be what another process is writing, for all that a reader knows.
  assert half.exists()
  shutil.rmtree(tmp_path / 'checkpoints' / '12')
  write(tmp_path, (9,))
  assert on_disk(tmp_path) == [8, 9]


def test_no_readable_checkpoint(tmp_path):
  write(tmp_path, (4, 8))
  for step in (4, 8):
    for file in data_files(tmp_path, step):
      file.unlink()
  before = sorted(tmp_path.rglob('*'))
  with pytest.raises(
    errors.CheckpointError, match=r'no checkpoint .*step 8: .*step 4: '
  ) as error:
    read(tmp_path)
  # What is for programs is left out.
  assert '\n' not in str(error.value) and '{' not in str(error.value)
  assert sorted(tmp_path.rglob('*')) == before


def test_checkpoint_of_another_model(tmp_path, tiny_config):
  tiny_config.model.num_layers = 2
  model, state = model_state(tiny_config)
  checkpoints = checkpoint.Checkpointer(tmp_path, model)
  checkpoints.save(state)
  tiny_config.model.mlp_width = 96
  _, other = model_state(tiny_config)
  with pytest.raises(errors.CheckpointError) as error:
    checkpoints.restore(abstract(other))
  checkpoints.close()
  text = str(error.value)
  assert (
    'params/layer_0/mlp/up/kernel has shape (32, 64) there, (32, 96)' in text
  )
  assert 'and 9 more' in text and 'set model and optimizer of the' in text


def test_parameters_that_are_missing_or_too_many(tmp_path):
  state = make_state(1)
  more = state.replace(params={**state.params, 'bias': state.params['embed']})
  checkpoints = checkpoint.Checkpointer(tmp_path / 'a', None)
  checkpoints.save(state)
  with pytest.raises(
    errors.CheckpointError, match=r'bias has shape none there, \(16, 8\) here'
  ):
    checkpoints.restore(abstract(more))
  checkpoints.close()
  checkpoints = checkpoint.Checkpointer(tmp_path / 'b', None)
  checkpoints.save(more)
  with pytest.raises(
    errors.CheckpointError, match=r'bias has shape \(16, 8\) there, none here'
  ):
    checkpoints.restore(abstract(state))
  checkpoints.close()


def test_another_dtype_is_refused_unless_asked_for(tmp_path):
  write(tmp_path, (1,))
  halves = make_state(1, dtype=jnp.bfloat16)
  with pytest.raises(
    errors.CheckpointError,
    match='params/embed is float32 there, bfloat16 here; .*cast=True',
  ):
    read(tmp_path, state=halves)
  cast = read(tmp_path, state=halves, cast=True)
  assert abstract(cast) == abstract(halves)
  helpers.assert_same(cast.params['embed'], halves.params['embed'])


@pytest.mark.parametrize(
  'error, kind',
  [
    (MemoryError(), MemoryError),
    (RuntimeError('RESOURCE_EXHAUSTED: no'), RuntimeError),
    (PermissionError(), PermissionError),
    # Of tensorstore.
    (ValueError('ABORTED: Error reading "gs://b/x": 503'), errors.StorageError),
    (ValueError('PERMISSION_DENIED: "gs://b/x"'), errors.WorkdirError),
    (OSError(errno.EDQUOT, 'quota'), errors.StorageError),
  ],
)
def test_errors_that_are_not_damage(tmp_path, monkeypatch, error, kind):
  """The checkpoints stay, and no older one is restored in their place."""
  write(tmp_path, (1, 2))

  def fail(*args, **kwargs):
    raise error

  monkeypatch.setattr(ocp.PyTreeCheckpointHandler, 'restore', fail)
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  with pytest.raises(kind):
    checkpoints.restore(abstract(make_state(1)))
  checkpoints.set_aside_unreadable()
  checkpoints.close()
  assert sorted(checkpoint.steps(tmp_path)) == [1, 2]


def test_weights_alone_are_read(tmp_path, monkeypatch):
  write(tmp_path, (1,))
  read_paths = []
  original = ocp.PyTreeCheckpointHandler.restore

  def restore(self, directory, args):
    read_paths.extend(checksums.describe(args.item))
    return original(self, directory, args=args)

  monkeypatch.setattr(ocp.PyTreeCheckpointHandler, 'restore', restore)
  weights = make_state(1).weights()
  helpers.assert_same(read(tmp_path, state=weights), weights)
  assert sorted(read_paths) == ['params/embed', 'step']
  with pytest.raises(errors.CheckpointError, match='params/embed has shape'):
    read(tmp_path, state=make_state(1, width=4).weights())


def test_what_is_recorded(tmp_path):
  revision.of_checkout.cache_clear()
  write(tmp_path, (1,), run_config={'seed': 3, 'eval': {'lengths': (1, 2)}})
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  record = checkpoints.record(1)
  assert record['config'] == {'seed': 3, 'eval': {'lengths': [1, 2]}}
  assert record['versions'] == runs.versions()
  assert record['revision'] == revision.running()
  file = tmp_path / 'checkpoints' / '1' / 'record' / 'metadata'
  file.write_bytes(file.read_bytes().replace(b'"seed": 3', b'"seed": 2'))
  with pytest.raises(errors.CheckpointError, match='step 1 .*is damaged'):
    checkpoints.record(1)
  file.unlink()
  with pytest.raises(errors.CheckpointError, match='step 1 .*no record'):
    checkpoints.record(1)
  checkpoints.close()


def test_other_versions_are_mentioned(tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    theirs = runs.versions() | {'jax': '0.1.2', 'numpy': '1.0'}
    patch.setattr(runs, 'versions', lambda: theirs)
    write(tmp_path, (1,))
  warnings = []
  helpers.assert_same(read(tmp_path, warnings.append), make_state(1))
  (line,) = warnings
  assert f'jax 0.1.2 (here {jax.__version__})' in line and 'numpy' not in line


def test_a_renamed_step(tmp_path):
  write(tmp_path, (1, 2))
  folder = tmp_path / 'checkpoints'
  (folder / '2').rename(folder / '3')
  warnings = []
  assert int(read(tmp_path, warnings.append).step) == 1
  assert 'step 3: it is step 2 under the wrong name' in warnings[0]


def test_data_goes_on_where_it_stood(tmp_path):
  checkpoints = checkpoint.Checkpointer(tmp_path, None, keep=3)
  batches = Counted()
  for step in (1, 2):
    batches.next()
    checkpoints.save(make_state(step), batches)
  like = abstract(make_state(0))
  batches = Counted()
  checkpoints.restore(like, batches=batches)
  assert batches.next() == 2
  # A different but plausible number.
  (file,) = (tmp_path / 'checkpoints' / '2' / 'data').rglob('next.json')
  file.write_text(file.read_text().replace('2', '7'))
  batches, warnings = Counted(), []
  assert int(checkpoints.restore(like, warnings.append, batches=batches).step)
  assert batches.next() == 1
  assert 'step 2: the state of the data is damaged' in warnings[0]
  # Restoring without batches ignores the state of the data.
  assert int(checkpoints.restore(like).step) == 2
  checkpoints.save(make_state(3))
  checkpoints.restore(like, warnings.append, batches=batches)
  assert 'step 3: it has no position in the data' in warnings[1]
  checkpoints.close()


class Gate:
  """Holds up what writes the records, or makes it fail."""

  def __init__(self, monkeypatch):
    self.open, self.error = threading.Event(), None
    original = ocp.JsonCheckpointHandler._save_fn

    async def save(handler, *args):
      self.open.wait(30)
      if self.error is not None:
        raise self.error
      await original(handler, *args)

    monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', save)


def test_what_is_begun_is_not_durable(tmp_path, monkeypatch):
  gate = Gate(monkeypatch)
  checkpoints = checkpoint.Checkpointer(tmp_path, None, best='max')
  assert checkpoints.durable_step() is None
  for step in (1, 2):
    gate.open.clear()
    checkpoints.save(make_state(step), value=step)
    checkpoints.check()
    assert checkpoints.durable_step() == (step - 1 or None)
    assert checkpoints.best_step() == (step - 1 or None)
    gate.open.set()
    wait_for(lambda step=step: checkpoints.durable_step() == step)
  checkpoints.close()
  assert checkpoints.best_step() == 2


def test_the_durable_step_is_listed_once(tmp_path, monkeypatch):
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  checkpoints.save(make_state(1))
  wait_for(lambda: checkpoints.durable_step() == 1)
  listed, steps = [], checkpoint.steps
  monkeypatch.setattr(
    checkpoint, 'steps', lambda folder: listed.append(1) or steps(folder)
  )
  checkpoints.rate(1, 0.5)
  listed.clear()
  assert [checkpoints.durable_step() for _ in range(3)] == [1] * 3
  assert len(listed) == 1
  checkpoints.close()


def wait_for(condition):
  end = time.monotonic() + 30
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.01)


@pytest.mark.parametrize('where', ['check', 'save', 'close', 'restore'])
def test_a_save_that_fails_later(tmp_path, monkeypatch, capfd, where):
  gate = Gate(monkeypatch)
  gate.open.set()
  checkpoints = checkpoint.Checkpointer(tmp_path, None, best='max')
  checkpoints.save(make_state(1), value=1)
  checkpoints.save(make_state(2), value=0)
  wait_for(lambda: checkpoints.durable_step() == 2)
  gate.error = OSError(errno.ENOSPC, 'No space left on device')
  gate.open.clear()
  checkpoints.save(make_state(3), value=2)
  checkpoints.check()
  gate.open.set()

  def failed():
    {
      'check': checkpoints.check,
      'save': lambda: checkpoints.save(make_state(4)),
      'close': checkpoints.close,
      'restore': lambda: checkpoints.restore(abstract(make_state(0))),
    }[where]()
    return False

  with pytest.raises(
    errors.CheckpointError,
    match='step 3 cannot be saved in .* free: .*No space left.*unchanged',
  ):
    wait_for(failed)
  gate.error = None
  assert on_disk(tmp_path) == [1, 2]
  assert checkpoints.durable_step() == 2 and checkpoints.best_step() == 1
  if where == 'close':
    checkpoints = checkpoint.Checkpointer(tmp_path, None)
  else:
    checkpoints.check()  # Said once.
  helpers.assert_same(
    checkpoints.restore(abstract(make_state(0))), make_state(2)
  )
  # Once there is room it goes on.
  checkpoints.save(make_state(3))
  checkpoints.close()
  helpers.assert_same(read(tmp_path), make_state(3))
  assert 'Traceback' not in capfd.readouterr().err


def test_what_stays_after_a_save_that_failed(tmp_path, monkeypatch):
  gate = Gate(monkeypatch)
  gate.open.set()
  checkpoints = checkpoint.Checkpointer(tmp_path, None, keep=2)
  for step in (1, 2, 3, 4, 5):
    if step == 3:
      # The third save fails, after the second.
      wait_for(lambda: checkpoints.durable_step() == 2)
    gate.error = OSError('full') if step == 3 else None
    checkpoints.save(make_state(step))
    if step == 3:
      with pytest.raises(errors.CheckpointError, match='step 3 .*full'):
        wait_for(lambda: checkpoints.check())
      assert on_disk(tmp_path) == [1, 2]
  checkpoints.close()
  assert on_disk(tmp_path) == [4, 5]


def test_a_save_that_fails_at_once(tmp_path):
  class Full(Counted):
    def save(self, folder):
      raise OSError(errno.ENOSPC, 'No space left on device')

  write(tmp_path, (1,))
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  with pytest.raises(errors.CheckpointError, match='step 2 .*No space left'):
    checkpoints.save(make_state(2), Full())
  assert on_disk(tmp_path) == [1]
  checkpoints.check()
  checkpoints.save(make_state(2), Counted())
  checkpoints.close()
  helpers.assert_same(read(tmp_path), make_state(2))


def test_no_room_is_seen_before_anything_is_written(tmp_path, monkeypatch):
  write(tmp_path, (1,))
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  with monkeypatch.context() as patch:
    patch.setattr(
      files.shutil,
      'disk_usage',
      lambda folder: shutil._ntuple_diskusage(9, 9, 9),
    )
    with pytest.raises(
      errors.CheckpointError,
      match=r'step 2 .* with 0.0 MiB free: it takes 1.0 MiB; older',
    ):
      checkpoints.save(make_state(2))
  assert on_disk(tmp_path) == [1]
  checkpoints.save(make_state(2))
  checkpoints.close()
  helpers.assert_same(read(tmp_path), make_state(2))


# In a process of its own, as its limits are.
FULL = """
  import pathlib, resource, shutil, sys, time

  import checkpoint_test
  from lengen_jax import errors
  from lengen_jax.training import checkpoint
  from lengen_jax.training import files

  folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
  # The write itself fails: free space is unknown.
  files.free_bytes = lambda folder: None
  # Three times 25 MB; or so little that the limit is still below it.
  wide = 40_000 if how == 'limited' else 400_000
  checkpoints = checkpoint.Checkpointer(folder, None, keep=9)
  like = checkpoint_test.abstract(checkpoint_test.make_state(0, wide))


  def save(step):
    checkpoints.save(checkpoint_test.make_state(step, wide))
    while checkpoints.durable_step() != step:
      checkpoints.check()
      time.sleep(0.01)


  save(1)
  if how == 'limited':
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, resource.RLIM_INFINITY))
  else:
    assert shutil.disk_usage(folder).free < 76 * 2**20
  try:
    save(2)
  except errors.CheckpointError as error:
    print(error)
  assert checkpoint_test.on_disk(folder) == [1]
  assert checkpoints.durable_step() == 1
  checkpoint_test.helpers.assert_same(
    checkpoints.restore(like), checkpoint_test.make_state(1, wide)
  )
  if how == 'limited':
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
  else:
    shutil.rmtree(folder / 'checkpoints' / '1')
  save(2)
  checkpoints.close()
  checkpoint_test.helpers.assert_same(
    checkpoints.restore(like), checkpoint_test.make_state(2, wide)
  )
"""


def python(program, *arguments):
  """Starts a program that can import these tests."""
  here = pathlib.Path(__file__).parent
  root = here.parent.parent
  return subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(program), *map(str, arguments)],
    env=os.environ
    | {'JAX_PLATFORMS': 'cpu', 'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'}
    | {'PYTHONPATH': f'{here}:{root}'},
    stderr=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )


def output(process):
  out, err = process.communicate(timeout=240)
  assert process.returncode == 0, err[-3000:]
  return out


@pytest.fixture
def small_disk(tmp_path):
  """A folder on a file system of 100 MiB."""
  folder = tmp_path / 'small'
  folder.mkdir()
  if (
    sys.platform != 'linux'
    or subprocess.run(
      ['mount', '-t', 'tmpfs', '-o', 'size=100m', 'tmpfs', folder],
      capture_output=True,
      check=False,
    ).returncode
  ):
    pytest.skip('only root may mount a small file system')
  yield folder
  subprocess.run(['umount', folder], check=True)


@pytest.mark.slow
def test_a_disk_that_is_full(small_disk):
  line = output(python(FULL, small_disk, 'full'))
  assert (
    line.count('\n') == 1 and f'step 2 cannot be saved in {small_disk}' in line
  )
  assert 'No space left on device' in line


@pytest.mark.skipif(sys.platform == 'win32', reason='has no such limit')
def test_files_that_cannot_grow(tmp_path):
  line = output(python(FULL, tmp_path, 'limited'))
  assert (
    line.count('\n') == 1 and f'step 2 cannot be saved in {tmp_path}' in line
  )
  assert 'Failed to write' in line


# A scanned model, split over meshes of devices that a process has only once.
MESHES = """
  import pathlib, sys

  import jax

  jax.config.update('jax_num_cpu_devices', int(sys.argv[2]))
  if len(sys.argv) > 3:
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    jax.distributed.initialize(
      sys.argv[3], num_processes=2, process_id=int(sys.argv[4])
    )

  import checkpoint_test
  from configs import stdlib
  from jax.sharding import AxisType, NamedSharding, PartitionSpec
  import numpy as np
  import optax
  from lengen_jax.models import config as model_config
  from lengen_jax.models import stacking
  from lengen_jax.training import checkpoint
  from lengen_jax.training import checkpoint_format
  from lengen_jax.training import state as state_lib

  config = stdlib.get_config('tiny')
  config.model.encoding = 'kerple_log, t5'
  config.model.num_layers = 4
  config.model.scan_layers = True
  model = model_config.ModelConfig(**config.model.to_dict())


  def init():
    return state_lib.init(
      stacking.init(model, jax.random.key(0)), optax.adamw(1e-3)
    )


  def shardings(*shape):
    mesh = jax.make_mesh(
      shape,
      ('data', 'fsdp'),
      axis_types=(AxisType.Auto,) * 2,
      devices=jax.devices()[:shape[0] * shape[1]],
    )

    def one(path, leaf):
      # Whatever divides, but never along the layers.
      spec = [None] * leaf.ndim
      first = int('layers' in jax.tree_util.keystr(path))
      for axis in sorted(range(first, leaf.ndim), key=lambda a: leaf.shape[a]):
        for over in (('data', 'fsdp'), 'data', 'fsdp'):
          if leaf.shape[axis] % mesh.devices.size == 0:
            spec = [None] * leaf.ndim
            spec[axis] = over
            break
      return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree_util.tree_map_with_path(one, jax.eval_shape(init))


  def like(*shape):
    return jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=sharding
      ),
      jax.eval_shape(init),
      shardings(*shape),
    )
"""


def test_another_split(tmp_path):
  """Two devices have a half each, then other halves, all, or one has all."""
  split, across, whole = (
    jax.NamedSharding(jax.make_mesh((2,), ('fsdp',)), jax.P(*axes))
    for axes in (('fsdp',), (None, 'fsdp'), ())
  )

  def place(state, sharding):
    return jax.tree.map(
      lambda leaf: jax.device_put(leaf, sharding if leaf.ndim else whole), state
    )

  want = make_state(1)
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  checkpoints.save(place(want, split))
  alone = jax.sharding.SingleDeviceSharding(jax.devices()[1])
  for target in (
    *(abstract(place(want, one)) for one in (split, across, whole)),
    abstract(jax.device_put(want, alone)),
  ):
    restored = checkpoints.restore(target)
    helpers.assert_same(restored, want)
    assert abstract(restored) == target
  checkpoints.close()


@pytest.mark.slow
def test_another_mesh(tmp_path):
  program = """
    state = jax.jit(init, out_shardings=shardings(2, 2))()
    state = state.replace(opt_state=jax.tree.map(
        lambda leaf: leaf + 3, state.opt_state
    ))
    shards = {
      leaf.sharding.spec for leaf in jax.tree.leaves(state.params['layers'])
    }
    assert len(shards) > 2, shards
    folder = pathlib.Path(sys.argv[1])
    checkpoints = checkpoint.Checkpointer(folder, model)
    checkpoints.save(state)
    for shape in ((2, 2), (1, 8), (4, 1)):
      target = like(*shape)
      restored = checkpoints.restore(target)
      checkpoint_test.helpers.assert_same(restored, state)
      assert checkpoint_test.abstract(restored) == target
    checkpoints.close()
    assert 'params/layer_3/mlp/up/kernel' in checkpoints.record(0)['state']
    print('done')
  """
  program = textwrap.dedent(MESHES) + textwrap.dedent(program)
  assert output(python(program, tmp_path, 8)) == 'done\n'


@pytest.mark.slow
def test_several_processes(tmp_path):
  program = """
    from jax.experimental import multihost_utils

    folder, me = pathlib.Path(sys.argv[1]), jax.process_index()
    target, batches = like(2, 2), checkpoint_test.Counted()
    state = jax.jit(init, out_shardings=shardings(2, 2))()
    add = jax.jit(
      lambda state: state.replace(
        step=state.step + 1, params=jax.tree.map(lambda x: x * 2, state.params)
      ),
      out_shardings=shardings(2, 2),
    )
    same = jax.jit(lambda *states: jax.tree.reduce(
      lambda a, b: a & b,
      jax.tree.map(lambda a, b: (a == b).all(), *states),
    ))
    checkpoints = checkpoint.Checkpointer(folder, model, keep=3, best='min')
    states = [state]
    for step in (1, 2, 3):
      batches.next()
      states.append(add(states[-1]))
      checkpoints.save(states[-1], batches, value=step)
      checkpoints.check()
    checkpoints.close()
    checkpoints = checkpoint.Checkpointer(folder, model, keep=3, best='min')

    def restored(step, warnings):
      batches, lines = checkpoint_test.Counted(), []
      state = checkpoints.restore(target, lines.append, batches=batches)
      assert bool(same(state, states[step])), step
      assert batches.next() == step
      assert len(lines) == (warnings if me == 0 else 0), lines

    restored(3, 0)
    # What one process cannot read, no process takes.
    multihost_utils.sync_global_devices('before')
    if me == 0:
      next((folder / 'checkpoints' / '3' / 'data' / '1').iterdir()).unlink()
    multihost_utils.sync_global_devices('after')
    restored(2, 1)
    original = checkpoint_format.read_record
    if me == 1:
      checkpoint_format.read_record = lambda folder: original(
        folder if folder.name == '1' else folder.parent / '99'
      )
    restored(1, 2)
    checkpoint_format.read_record = original
    checkpoints.save(states[2], value=9)
    assert checkpoints.best_step() == 1
    if me == 1:
      checkpoint.files.free_bytes = lambda folder: 1
    try:
      checkpoints.save(states[3])
    except checkpoint.errors.CheckpointError as error:
      assert 'it takes' in str(error) or 'process 1' in str(error)
      print('done')
    checkpoints.close()
    assert checkpoint_test.on_disk(folder) == [1, 2]
  """
  program = textwrap.dedent(MESHES) + textwrap.dedent(program)
  address = helpers.free_address()
  both = [python(program, tmp_path, 2, address, me) for me in range(2)]
  try:
    assert all(output(process).endswith('done\n') for process in both)
  finally:
    for process in both:
      process.kill()


def test_a_wide_range_of_dtypes(tmp_path):
  state = state_lib.TrainState(
    step=jnp.int32(1),
    params={
      name: jnp.arange(3).astype(name)
      for name in ('float32', 'bfloat16', 'uint8', 'int8', 'bool', 'uint32')
    },
    opt_state=(),
  )
  state = jax.device_put(state, jax.devices()[0])
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  checkpoints.save(state)
  restored = checkpoints.restore(abstract(state))
  checkpoints.close()
  helpers.assert_same(restored, state)
  assert checksums.of_tree(restored) == checksums.of_tree(state)


def test_a_save_does_not_ask_the_preemption_service(tmp_path, monkeypatch):
  """It counts calls, and a save would pass the number of the step."""
  asked = []
  monkeypatch.setattr(ocp.utils, 'reached_preemption', asked.append)
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  checkpoints.save(make_state(3))
  checkpoints.close()
  assert checkpoint.steps(tmp_path) == [3] and not asked


def test_room_is_counted_in_bytes(tmp_path, monkeypatch):
  params = {'embed': jnp.zeros((512, 1024), jnp.float32)}
  state = state_lib.TrainState(step=jnp.int32(1), params=params, opt_state=())
  checkpoints = checkpoint.Checkpointer(tmp_path, None)
  monkeypatch.setattr(files, 'free_bytes', lambda folder: 5 * 2**19)
  with pytest.raises(errors.CheckpointError, match='it takes 3.0 MiB'):
    checkpoints.save(state)
  checkpoints.close()


def test_more_processes_share_the_positions_in_the_data(tmp_path, monkeypatch):
  """A run that one process saved is resumed by three."""
  (tmp_path / '0').mkdir()
  (tmp_path / '0' / 'next.json').write_text('{}')
  found = {'step': 3, 'files': checksums.of_files(tmp_path / '0')}
  (tmp_path / '0.json').write_text(json.dumps(checksums.seal(found)))
  for process in (0, 1, 2):
    monkeypatch.setattr(jax, 'process_index', lambda process=process: process)
    folder = checkpoint_format._check_data(tmp_path, 3, 1)
    assert folder == tmp_path / '0'
