"""Tests that no damage to a checkpoint's files gives a wrong state silently."""

import collections
import random
import shutil

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lengen_jax import errors
from lengen_jax.data import windows
from lengen_jax.training import checkpoint
from lengen_jax.training import state as state_lib

STEPS = (1, 2, 3)
FAULTS = 80


class Counted(windows.IndexedBatches):
  """Batches that only count."""

  def batch(self, index):
    return index


@struct.dataclass
class Saved:
  """Checkpoints, and what they have to give.

  Attributes:
    pristine: workdir that stays as it is.
    workdir: copy of it that is damaged and mended.
    states: by step, of numpy arrays.
    abstract: what `restore` is asked for.
    checkpoints: of workdir.
  """

  pristine: object
  workdir: object
  states: object
  abstract: object
  checkpoints: object


def make_state(step):
  """A small state of several kinds of leaves, none of its numbers zero."""
  rng = np.random.default_rng(step)
  params = {
    'embed': {'embedding': rng.normal(size=(64, 32)).astype(np.float32)},
    'layer_0': {
      'kernel': rng.normal(size=(32, 16)).astype(np.float32),
      'bias': jnp.asarray(rng.normal(size=8), jnp.bfloat16),
    },
  }
  tx = optax.adam(1e-3)
  _, opt_state = tx.update(params, tx.init(params), params)
  state = state_lib.TrainState(
    step=jnp.int32(step), params=params, opt_state=opt_state
  )
  return jax.device_put(state, jax.devices()[0])


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  folder = tmp_path_factory.mktemp('corruption')
  pristine, workdir = folder / 'pristine', folder / 'damaged'
  pristine.mkdir()
  writer = checkpoint.Checkpointer(
    pristine, None, keep=3, best='max', run_config={'seed': 0}
  )
  states = {}
  for step in STEPS:
    state = make_state(step)
    batches = Counted()
    for _ in range(step):
      batches.next()
    writer.save(state, batches, value=-step)
    states[step] = jax.device_get(state)
  writer.close()
  shutil.copytree(pristine, workdir)
  abstract = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=leaf.sharding
    ),
    state,
  )
  reader = checkpoint.Checkpointer(workdir, None, keep=3)
  yield Saved(pristine, workdir, states, abstract, reader)
  reader.close()


def flip(rng, folder):
  """Flips a bit, of any file or of any byte."""
  some = [f for f in files(folder) if f.stat().st_size]
  sizes = [f.stat().st_size for f in some] if rng.random() < 0.5 else None
  (file,) = rng.choices(some, sizes)
  content = bytearray(file.read_bytes())
  place = rng.randrange(len(content))
  content[place] ^= 1 << rng.randrange(8)
  file.write_bytes(content)
  return f'bit of byte {place} of {file}'


def truncate(rng, folder):
  """Cuts a file short."""
  file = rng.choice([f for f in files(folder) if f.stat().st_size])
  size = rng.randrange(file.stat().st_size)
  file.write_bytes(file.read_bytes()[:size])
  return f'{file} cut to {size}'


def delete_file(rng, folder):
  """Deletes a file."""
  file = rng.choice(files(folder))
  file.unlink()
  return f'{file} gone'


def delete_folder(rng, folder):
  """Deletes a folder, of items mostly."""
  gone = rng.choice(sorted(f for f in folder.rglob('*') if f.is_dir()))
  shutil.rmtree(gone)
  return f'{gone} gone'


def swap(rng, folder):
  """Replaces an item by that of another checkpoint."""
  item = rng.choice(sorted(f.name for f in folder.iterdir() if f.is_dir()))
  other = rng.choice([s for s in STEPS if str(s) != folder.name])
  shutil.rmtree(folder / item)
  shutil.copytree(folder.with_name(str(other)) / item, folder / item)
  return f'{item} of {folder} from {other}'


def files(folder):
  """Files in an order that seldom depends on the random names of orbax."""
  found = (f for f in folder.rglob('*') if f.is_file())
  return sorted(found, key=lambda f: (f.parent, f.stat().st_size, f))


def damage(rng, workdir):
  """Damages one checkpoint, often the newest, or several."""
  steps = rng.choice([(3,)] * 7 + [(3, 2), (3, 1), STEPS])
  kind = rng.choice([flip] * 6 + [truncate] * 2 + [delete_file] * 2)
  kind = rng.choice([kind] * 8 + [delete_folder, swap])
  done = [kind(rng, workdir / 'checkpoints' / str(step)) for step in steps]
  return kind.__name__, steps, done


def outcome(saved):
  """Restores, and says what came of it; fails if it is wrong."""
  batches, warnings = Counted(), []
  try:
    state = saved.checkpoints.restore(
      saved.abstract, warnings.append, batches=batches
    )
  except errors.CheckpointError as error:
    assert '\n' not in str(error)
    return 'refused'
  step = int(state.step)
  jax.tree.map(
    lambda got, want: np.testing.assert_array_equal(
      np.atleast_1d(got).view(np.uint8), np.atleast_1d(want).view(np.uint8)
    ),
    state,
    saved.states[step],
  )
  assert batches.next() == step
  assert len(warnings) == STEPS[-1] - step
  return 'right' if step == STEPS[-1] else 'older'


def test_no_damage_gives_a_wrong_state(saved):
  rng = random.Random(0)
  counts = collections.Counter()
  for number in range(FAULTS):
    kind, steps, done = damage(rng, saved.workdir)
    try:
      counts[kind, outcome(saved)] += 1
    except BaseException as error:
      raise AssertionError(f'fault {number}: {"; ".join(done)}') from error
    for step in steps:
      place = f'checkpoints/{step}'
      shutil.rmtree(saved.workdir / place, ignore_errors=True)
      shutil.copytree(saved.pristine / place, saved.workdir / place)
  print(dict(counts))
  outcomes = collections.Counter()
  for (_, result), count in counts.items():
    outcomes[result] += count
  # Faults that hit; not all do: orbax writes some things twice.
  assert outcomes['older'] > FAULTS / 4
  assert counts['flip', 'older'] > FAULTS / 10
  assert outcome(saved) == 'right'
  for file in files(saved.workdir / 'checkpoints'):
    file.write_bytes(b'')
  assert outcome(saved) == 'refused'
