"""The state as part of a checkpoint: what is recorded of it, and reading it."""

import json

import jax
import orbax.checkpoint as ocp

from lengen_jax import errors
from lengen_jax.training import checksums
from lengen_jax.training import multihost
from lengen_jax.training import revision
from lengen_jax.training import saved_data
from lengen_jax.training import unstacked

# What may compute other last bits in other versions.
_COMPUTING = ('lengen_jax', 'jax', 'jaxlib')


def make_record(step, state, *, value, data_folders, config, versions):
  """What is recorded of a step, JSON-able; see `read_record`.

  Args:
    step: its number.
    state: with layers unstacked.
    value: tells the best checkpoint; None or finite.
    data_folders: how many processes save where their data stands.
    config: of the run, JSON-able.
    versions: `runs.versions`, of what computes.
  """
  return checksums.seal(
    {
      'step': step,
      'value': value,
      'state': checksums.of_tree(state),
      'data_folders': data_folders,
      'config': config,
      'versions': versions,
      'revision': revision.running(),
    }
  )


def read_record(folder):
  """The record of a checkpoint.

  Args:
    folder: of the checkpoint, named by its step.

  Raises:
    OSError: it cannot be read.
    ValueError: there is none, or it is damaged.
  """
  file = folder / 'record' / 'metadata'
  if not file.exists():
    raise ValueError('it has no record of its checksums')
  try:
    found = checksums.unseal(json.loads(file.read_bytes()))
  except ValueError:
    raise ValueError('its record is damaged') from None
  if str(found['step']) != folder.name:
    raise ValueError(f'it is step {found["step"]} under another name')
  return found


class Reader:
  """Reads states and checks that they are what was recorded.

  In a run of several processes all of them make the same calls.
  """

  def __init__(self, config, versions):
    """Reads nothing yet.

    Args:
      config: a ModelConfig; None where no layers are scanned.
      versions: `runs.versions` of what computes here.
    """
    self._config, self._versions = config, versions
    # Not a manager, which has barriers that a process may not reach.
    self._handler = ocp.StandardCheckpointHandler()

  def close(self):
    self._handler.close()

  def read(self, folder, abstract_state, *, batches, cast, warn):
    """Reads one checkpoint.

    Args:
      folder: of the checkpoint, named by its step.
      abstract_state: shapes, dtypes and shardings of the state.
      batches: the `data.windows.Batches` to restore too; None for none.
      cast: whether a state of other dtypes is converted.
      warn: told in one line, in the first process, of other versions.

    Returns:
      (state, None), or (None, problem) where the checkpoint is damaged.

    Raises:
      errors.CheckpointError: it is of another model, or of other dtypes.
    """
    recorded, problem = multihost.attempt(lambda: read_record(folder))
    if problem is not None:
      return None, problem
    target = unstacked.abstract(abstract_state)
    _check_fits(recorded['state'], checksums.describe(target), folder, cast)

    def read():
      data = None
      if batches is not None:
        data = saved_data.check(
          folder / 'data', recorded['step'], recorded['data_folders']
        )
      args = ocp.args.StandardRestore(_with_dtypes(target, recorded['state']))
      return data, self._handler.restore(folder / 'state', args=args)

    found, problem = multihost.attempt(read)
    if problem is not None:
      return None, problem
    data, state = found
    sums = checksums.of_tree(state)
    wrong = _in_order(
      path for path in sums if sums[path] != recorded['state'][path]
    )
    if wrong:
      return None, f'the checksums of {_some(wrong, ", ")} are others'
    if batches is not None:
      _, problem = multihost.attempt(lambda: batches.restore(data))
      if problem is not None:
        return None, problem
    self._compare_versions(recorded, warn)
    return unstacked.put_together(state, abstract_state, self._config), None

  def _compare_versions(self, recorded, warn):
    theirs, mine = recorded['versions'], self._versions
    others = [
      f'{name} {theirs.get(name)} (here {mine[name]})'
      for name in _COMPUTING
      if theirs.get(name) != mine[name]
    ]
    if others and multihost.is_first():
      warn(
        f'step {recorded["step"]} was saved with {", ".join(others)}; what '
        'follows may differ in the last bits from what it would have been'
      )


def _check_fits(there, here, folder, cast):
  """Raises unless a record is of a state like the one that is wanted.

  Args:
    there: what is recorded of the state, as `checksums.describe` has it.
    here: the same of what is wanted.
    folder: of the checkpoint.
    cast: whether dtypes may differ.

  Raises:
    errors.CheckpointError: naming what differs.
  """
  where = f'step {folder.name} in {folder.parent}'

  def has(leaves, path):
    return tuple(leaves[path]['shape']) if path in leaves else 'none'

  lines = [
    f'{path} has shape {has(there, path)} there, {has(here, path)} here'
    for path in _in_order({*there, *here})
    if has(there, path) != has(here, path)
  ]
  if lines:
    raise errors.CheckpointError(
      f'{where} cannot be read into this model, it is of another: '
      f'{_some(lines)}; model and optimizer of the config decide'
    )
  lines = [
    f'{path} is {there[path]["dtype"]} there, {here[path]["dtype"]} here'
    for path in _in_order(here)
    if there[path]['dtype'] != here[path]['dtype']
  ]
  if lines and not cast:
    raise errors.CheckpointError(
      f'{where} has other dtypes: {_some(lines)}; they are converted only if '
      'restored with cast=True'
    )


def _with_dtypes(target, described):
  """An abstract tree with the dtypes of `checksums.describe`."""
  leaves, treedef = jax.tree.flatten(target)
  return treedef.unflatten(
    jax.ShapeDtypeStruct(
      leaf.shape, described[path]['dtype'], sharding=leaf.sharding
    )
    for path, leaf in zip(checksums.describe(target), leaves, strict=True)
  )


def _in_order(paths):
  """Paths sorted, those of parameters first."""
  return sorted(paths, key=lambda path: (not path.startswith('params'), path))


def _some(texts, separator='; '):
  rest = len(texts) - 3
  return separator.join(texts[:3]) + (f' and {rest} more' if rest > 0 else '')
