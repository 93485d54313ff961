"""Format of a checkpoint, and functions that read and verify it.

A record describes the state by shapes, dtypes and checksums. On disk the layers
of a state are never stacked. The position in the data is a folder per process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import dataclasses
import functools
import json
from typing import Any

from etils import epath
import jax
from jax.sharding import NamedSharding, PartitionSpec
import orbax.checkpoint as ocp

from lengen_jax import errors
from lengen_jax.data import windows
from lengen_jax.models import stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.training import checksums, files, multihost, revision

# Packages whose version may change the last bits of a computation.
_COMPUTING = ('lengen_jax', 'jax', 'jaxlib')
# A tree of parameters, of all or only of the trained ones, has one of these
# keys at its root.
_ROOTS = {'embed', 'layers', 'encoder', 'decoder'}


def make_record(
  step: int,
  state: Any,
  *,
  value: float | None,
  data_folders: int,
  config: Any,
  versions: Mapping[str, str],
) -> dict[str, Any]:
  """Returns the record of a state with unstacked layers, JSON-able.

  `value` is finite or None and ranks checkpoints. `data_folders` processes save
  the position in their data. For `versions` see `runs.versions`.
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


def read_record(folder: files.Path) -> dict[str, Any]:
  """Reads the record in the folder of a checkpoint.

  Raises:
    OSError: the record cannot be read.
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
    raise ValueError(f'it is step {found["step"]} under the wrong name')
  return found


def write_value(folder: files.Path, value: float | None) -> None:
  """Changes the value in the record in the folder of a checkpoint.

  Raises:
    OSError: the record cannot be read.
    ValueError: it cannot be written, or is damaged.
  """
  sealed = checksums.seal(read_record(folder) | {'value': value})
  files.write_text(folder / 'record' / 'metadata', json.dumps(sealed))


def read(
  folder: files.Path,
  abstract_state: Any,
  *,
  config: ModelConfig | None,
  batches: windows.Batches | None,
  cast: bool,
) -> tuple[Any, dict[str, Any] | None, str | None]:
  """Reads and verifies a checkpoint; see `Checkpointer.restore`.

  All processes of a run must call it.

  Returns:
    (state, record, None), or (None, None, problem) if it is damaged.

  Raises:
    errors.CheckpointError: it has another model, or other dtypes.
  """
  record, problem = multihost.attempt(lambda: read_record(folder))
  if problem is not None:
    return None, None, problem
  target = _unstacked_shapes(abstract_state)
  saved = record['state']
  if abstract_state.opt_state is None:
    saved = {path: saved[path] for path in saved if _is_weight(path)}
  _check_fits(saved, checksums.describe(target), folder, cast)

  def read_items() -> tuple[files.Path | None, Any]:
    data = None
    if batches is not None:
      data = _check_data(
        folder / 'data', record['step'], record['data_folders']
      )
    # Orbax reads the parts that this names.
    item = vars(_with_dtypes(target, saved))
    item = {part: tree for part, tree in item.items() if tree is not None}
    args = ocp.args.PyTreeRestore(
      item,
      ocp.checkpoint_utils.construct_restore_args(item),
      partial_restore=True,
    )
    # A CheckpointManager has barriers, which a failed process would not reach.
    handler = ocp.PyTreeCheckpointHandler()
    with contextlib.closing(handler):
      found = handler.restore(folder / 'state', args=args)
    # Orbax leaves out what its damaged metadata does not name.
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
      if not isinstance(leaf, jax.Array):
        raise ValueError(f'it lacks {checksums.path_name(path)}')
    return data, target.replace(**found)

  found, problem = multihost.attempt(read_items)
  if problem is not None:
    return None, None, problem
  data, state = found
  sums = checksums.of_tree(state)
  wrong = _parameters_first(path for path in sums if sums[path] != saved[path])
  if wrong:
    return None, None, f'the checksums of {_first(wrong, ", ")} differ'
  if batches is not None:
    _, problem = multihost.attempt(lambda: batches.restore(data))
    if problem is not None:
      return None, None, problem
  return _restacked(state, abstract_state, config), record, None


def version_differences(
  record: Mapping[str, Any], versions: Mapping[str, str]
) -> str:
  """Lists the packages of a record with another version than here."""
  saved = record['versions']
  return ', '.join(
    f'{name} {saved.get(name)} (here {versions[name]})'
    for name in _COMPUTING
    if saved.get(name) != versions[name]
  )


class DataHandler(ocp.CheckpointHandler):
  """Saves each process's position in the training data."""

  def save(self, directory: epath.PathLike, args: 'SaveData') -> None:
    directory, name = epath.Path(directory), str(jax.process_index())
    folder = directory / name
    folder.mkdir()
    args.batches.save(folder)
    sealed = checksums.seal(
      {'step': args.step, 'files': checksums.of_files(folder)}
    )
    (directory / f'{name}.json').write_text(json.dumps(sealed))

  def restore(self, directory: epath.PathLike, args: 'SaveData') -> None:
    # `read` does it without barriers between processes.
    raise NotImplementedError

  def finalize(self, directory: epath.PathLike) -> None:
    pass


@ocp.args.register_with_handler(DataHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class SaveData(ocp.args.CheckpointArgs):
  """Arguments of `DataHandler.save`: the data of this process."""

  batches: windows.Batches
  step: int


def _check_data(directory: files.Path, step: int, count: int) -> files.Path:
  """Returns the folder from which this process restores its data.

  Raises ValueError if it is missing or damaged. `count` is the number of
  processes that saved their position.
  """
  if not count:
    raise ValueError('it has no position in the data')
  # A run of more processes shares the folders.
  name = str(jax.process_index() % count)
  try:
    sealed = json.loads((directory / f'{name}.json').read_bytes())
    found = {'step': step, 'files': checksums.of_files(directory / name)}
    if checksums.unseal(sealed) == found:
      return directory / name
  except (OSError, ValueError):
    pass
  raise ValueError('the state of the data is damaged')


def _check_fits(
  saved: Mapping[str, Any],
  wanted: Mapping[str, Any],
  folder: files.Path,
  cast: bool,
) -> None:
  """Raises errors.CheckpointError if shapes or, without `cast`, dtypes differ.

  `saved` and `wanted` are `checksums.describe` of the two states.
  """
  where = f'step {folder.name} in {folder.parent}'

  def shape(leaves: Mapping[str, Any], path: str) -> tuple[int, ...] | str:
    return tuple(leaves[path]['shape']) if path in leaves else 'none'

  lines = [
    f'{path} has shape {shape(saved, path)} there, {shape(wanted, path)} here'
    for path in _parameters_first({*saved, *wanted})
    if shape(saved, path) != shape(wanted, path)
  ]
  if lines:
    raise errors.CheckpointError(
      f'{where} has another model: {_first(lines)}; set model and optimizer of '
      'the config as they were'
    )
  lines = [
    f'{path} is {saved[path]["dtype"]} there, {wanted[path]["dtype"]} here'
    for path in _parameters_first(wanted)
    if saved[path]['dtype'] != wanted[path]['dtype']
  ]
  if lines and not cast:
    raise errors.CheckpointError(
      f'{where} has other dtypes: {_first(lines)}; set those of the config as '
      'they were, or restore with cast=True to convert them'
    )


def _with_dtypes(target: Any, described: Mapping[str, Any]) -> Any:
  """Returns an abstract tree with the dtypes of `checksums.describe`."""

  def convert(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = described[checksums.path_name(path)]['dtype']
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding)

  return jax.tree_util.tree_map_with_path(convert, target)


def _is_weight(path: str) -> bool:
  return path.split('/')[0] in ('params', 'step')


def _parameters_first(paths: Iterable[str]) -> list[str]:
  """Sorts paths, those of parameters before those of the optimizer."""
  return sorted(paths, key=lambda path: (not path.startswith('params'), path))


def _first(texts: list[str], separator: str = '; ') -> str:
  """Joins at most three texts and counts the rest."""
  rest = len(texts) - 3
  return separator.join(texts[:3]) + (f' and {rest} more' if rest > 0 else '')


def unstacked(state: Any) -> Any:
  """Unstacks the layers of parameters and of optimizer trees like them.

  Arrays that are split over processes can be unstacked only by a compiled
  program, which needs the sharding of every result.
  """

  def convert(node: Any) -> Any:
    if not _is_stacked(node):
      return node
    return jax.jit(stacking.unstack, out_shardings=_shardings(_layers(node)))(
      node
    )

  return _map_params(convert, state)


def _unstacked_shapes(state: Any) -> Any:
  """Returns shapes, dtypes and shardings of `unstacked`."""
  return _map_params(
    lambda node: _layers(node) if _is_stacked(node) else node, state
  )


def _restacked(state: Any, like: Any, config: ModelConfig | None) -> Any:
  """Inverts `unstacked`, with the dtypes and shardings of `like`."""

  def convert(wanted: Any, node: Any) -> Any:
    if not _is_stacked(wanted):
      return jax.tree.map(_cast, node, wanted)
    node = jax.tree.map(_cast, node, _layers(wanted))
    stack = functools.partial(stacking.stack, config=config)
    return jax.jit(stack, out_shardings=_shardings(wanted))(node)

  return _map_params(convert, like, state)


def _cast(leaf: jax.Array, wanted: jax.ShapeDtypeStruct) -> jax.Array:
  if leaf.dtype == wanted.dtype:
    return leaf
  cast = functools.partial(jax.lax.convert_element_type, new_dtype=wanted.dtype)
  return jax.jit(cast, out_shardings=wanted.sharding)(leaf)


def _map_params(function: Callable[..., Any], *trees: Any) -> Any:
  """Maps over the parameter trees of a state and its other leaves."""
  return jax.tree.map(function, *trees, is_leaf=_is_params)


def _is_params(node: Any) -> bool:
  return isinstance(node, dict) and not _ROOTS.isdisjoint(node)


def _is_stacked(node: Any) -> bool:
  return _is_params(node) and any(
    'layers' in part
    for part in (node, *node.values())
    if isinstance(part, dict)
  )


def _shardings(tree: Any) -> Any:
  return jax.tree.map(lambda leaf: leaf.sharding, tree)


class _StackedShape:
  """Shape of a stacked array; iterates over the shapes of its layers."""

  def __init__(self, leaf: Any) -> None:
    self.leaf = leaf

  def __iter__(self) -> Iterator['_StackedShape']:
    count, *shape = self.leaf.shape
    sharding = self.leaf.sharding
    if isinstance(sharding, NamedSharding):
      spec = PartitionSpec(*sharding.spec[1:])
      sharding = NamedSharding(sharding.mesh, spec)
    layer = jax.ShapeDtypeStruct(shape, self.leaf.dtype, sharding=sharding)
    return iter([_StackedShape(layer)] * count)


def _layers(node: Any) -> Any:
  """Returns shapes, dtypes and shardings of unstacked parameters."""
  return jax.tree.map(
    lambda stacked: jax.ShapeDtypeStruct(
      stacked.leaf.shape, stacked.leaf.dtype, sharding=stacked.leaf.sharding
    ),
    stacking.unstack(jax.tree.map(_StackedShape, node)),
  )
