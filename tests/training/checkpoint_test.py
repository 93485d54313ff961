"""Tests `lengen_jax/training/checkpoint.py`."""

import shutil

import jax
import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.training import checkpoint
from lengen_jax.training import loop


@pytest.fixture
def run(tiny_config):
  return loop.Run(tiny_config)


@pytest.fixture
def saved(tmp_path, run):
  """A workdir with checkpoints of steps 4 and 8, and the second state."""
  checkpoints = checkpoint.Checkpointer(tmp_path, run.model)
  state = run.init_state()
  for step in (4, 8):
    state = state.replace(step=state.step * 0 + step)
    checkpoints.save(state)
  checkpoints.close()
  return tmp_path, state


def restore(folder, run, warn=print):
  checkpoints = checkpoint.Checkpointer(folder, run.model)
  try:
    return checkpoints.restore(run.abstract_state(), warn)
  finally:
    checkpoints.close()


def data_files(folder, step):
  """The files that hold arrays, largest first."""
  files = [
    f
    for f in (folder / 'checkpoints' / str(step)).rglob('*')
    if f.is_file() and f.parent.name == 'd'
  ]
  return sorted(files, key=lambda f: -f.stat().st_size)


def test_round_trip(saved, run):
  folder, state = saved
  jax.tree.map(np.testing.assert_array_equal, restore(folder, run), state)


def test_layers_are_unstacked_on_disk(tmp_path, tiny_config):
  tiny_config.model.encoding = 'fire'
  tiny_config.model.scan_layers = True
  scanned = loop.Run(tiny_config)
  state = scanned.init_state()
  checkpoints = checkpoint.Checkpointer(tmp_path, scanned.model)
  checkpoints.save(state)
  checkpoints.close()
  jax.tree.map(np.testing.assert_array_equal, restore(tmp_path, scanned), state)
  # The same files serve the unrolled model.
  tiny_config.model.scan_layers = False
  unrolled = restore(tmp_path, loop.Run(tiny_config))
  assert 'layer_1' in unrolled.params
  np.testing.assert_array_equal(
    unrolled.params['layer_1']['attention']['encoding']['c'],
    state.params['layers']['block_0']['attention']['encoding']['c'][1],
  )


def test_nothing_to_restore(tmp_path, run):
  assert restore(tmp_path, run) is None


def test_falls_back_to_an_older_checkpoint_and_says_so(saved, run):
  folder, _ = saved
  data_files(folder, 8)[0].write_bytes(b'short')
  warnings = []
  assert int(restore(folder, run, warnings.append).step) == 4
  assert len(warnings) == 1 and 'step 8' in warnings[0]


def test_a_half_written_step_is_passed_over(saved, run):
  folder, _ = saved
  (folder / 'checkpoints' / '12').mkdir()
  half = folder / 'checkpoints' / '16.orbax-checkpoint-tmp-1'
  shutil.copytree(folder / 'checkpoints' / '8', half)
  warnings = []
  assert int(restore(folder, run, warnings.append).step) == 8


def test_no_readable_checkpoint(saved, run):
  folder, _ = saved
  for step in (4, 8):
    for file in data_files(folder, step):
      file.unlink()
  before = sorted(folder.rglob('*'))
  with pytest.raises(errors.CheckpointError, match=r'no checkpoint .*step 8:'):
    restore(folder, run)
  assert sorted(folder.rglob('*')) == before


def test_checkpoint_of_another_model(saved, tiny_config):
  folder, _ = saved
  tiny_config.model.mlp_width = 96
  with pytest.raises(errors.CheckpointError, match='no checkpoint .* read'):
    restore(folder, loop.Run(tiny_config))
