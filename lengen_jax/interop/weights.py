"""Reads and writes a model as one safetensors file.

The file holds float32 arrays named by their paths in a checkpoint, layers
unstacked and LoRA kernels merged, such as 'layer_0/attention/query/kernel'. Its
metadata holds the ModelConfig and the TrainedOn. The extra `weights` installs
the package safetensors.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import dataclasses
import json
import os
import pathlib
from typing import Any

from flax import traverse_util
import numpy as np

from lengen_jax import errors, extra
from lengen_jax.models import stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.types import Params, PathLike

SUFFIX = '.safetensors'
_CONFIG, _TRAINED = 'lengen_jax.model', 'lengen_jax.trained_on'


@dataclasses.dataclass(frozen=True)
class TrainedOn:
  """The training data of an exported model.

  Attributes:
    vocabulary: fingerprint of the vocabulary, '' if unknown.
    length: tokens per row, 0 if unknown.
    positions: spec of the position scheme.
  """

  vocabulary: str = ''
  length: int = 0
  positions: str = 'standard'


def check_path(path: PathLike) -> pathlib.Path:
  """Returns the absolute path of a file, '*.safetensors', to be written.

  Raises:
    errors.CheckpointError: the suffix differs, or the parent folder or the
      package safetensors is missing.
  """
  library('safetensors.numpy')
  path = local(path)
  if path.suffix != SUFFIX:
    raise errors.CheckpointError(
      f'the file for weights must be named *{SUFFIX}, got {path}'
    )
  if not path.parent.is_dir():
    raise errors.CheckpointError(
      f'cannot write {path}: folder {path.parent} does not exist; create it'
    )
  return path


def save(
  path: PathLike,
  params: Params,
  config: ModelConfig,
  trained_on: TrainedOn = TrainedOn(),
) -> int:
  """Writes parameters to a file, atomically; returns its size in bytes.

  The layers of `params` may be stacked. LoRA kernels are merged, see
  `stacking.merge_lora`. For `path` see `check_path`.

  Raises:
    errors.CheckpointError: the file cannot be written; see `check_path`.
  """
  path = check_path(path)
  params, config = stacking.portable(params, config)
  arrays = {
    name: np.ascontiguousarray(leaf, np.float32)
    for name, leaf in traverse_util.flatten_dict(params, sep='/').items()
  }
  metadata = {
    _CONFIG: json.dumps(dataclasses.asdict(config)),
    _TRAINED: json.dumps(dataclasses.asdict(trained_on)),
  }
  write([(path, arrays)], metadata)
  return path.stat().st_size


def write(
  arrays: Iterable[tuple[pathlib.Path, Mapping[str, np.ndarray]]],
  metadata: Mapping[str, str],
) -> None:
  """Writes the arrays of each path to a safetensors file.

  No file is replaced before all are written.

  Raises:
    errors.CheckpointError: a file cannot be written.
  """
  safetensors = library('safetensors.numpy')
  partial: dict[pathlib.Path, pathlib.Path] = {}
  try:
    for path, content in arrays:
      partial[path] = path.with_name(path.name + '.partial')
      with _written(path):
        # save_file would make the file readable by its owner alone.
        partial[path].touch()
        mode = partial[path].stat().st_mode
        safetensors.save_file(content, partial[path], metadata=metadata)
        partial[path].chmod(mode)
    for path, written in partial.items():
      with _written(path):
        os.replace(written, path)
  finally:
    for written in partial.values():
      with contextlib.suppress(OSError):
        written.unlink(missing_ok=True)


@contextlib.contextmanager
def _written(path: pathlib.Path) -> Iterator[None]:
  """Raises errors.CheckpointError instead of an error of writing a file."""
  try:
    yield
  except Exception as error:  # OSError, or an exception of safetensors.
    raise errors.CheckpointError(
      f'cannot write {path}: {errors.reason(error)}'
    ) from error


def load(path: PathLike) -> tuple[Params, ModelConfig]:
  """Reads a file written by `save`.

  Returns:
    (params, ModelConfig): numpy arrays, float32, layers unstacked.

  Raises:
    errors.CheckpointError: the file cannot be read or was not written by
      `save`.
  """
  path = local(path)
  arrays, metadata = read(path)
  if _CONFIG not in metadata:
    raise errors.CheckpointError(
      f'{path} was not written by lengen export: it lacks the config of a '
      'model; for a checkpoint of transformers, pass the folder that holds its '
      'config.json'
    )
  try:
    config = ModelConfig(**json.loads(metadata[_CONFIG]))
  except (TypeError, ValueError) as error:
    raise errors.CheckpointError(
      f'the ModelConfig in {path} cannot be read: {error}'
    ) from error
  check(arrays, stacking.shapes(config), path)
  return traverse_util.unflatten_dict(arrays, sep='/'), config


def trained_on(path: PathLike) -> TrainedOn:
  """Returns the TrainedOn of a file, with defaults for missing values.

  Raises:
    errors.CheckpointError: the file cannot be read.
  """
  path = local(path)
  with opened(path) as file:
    found = (file.metadata() or {}).get(_TRAINED, '{}')
  try:
    return TrainedOn(**json.loads(found))
  except (TypeError, ValueError) as error:
    raise errors.CheckpointError(
      f'the training data recorded in {path} cannot be read: {error}'
    ) from error


def read(
  path: PathLike,
) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
  """Reads all arrays of a safetensors file, as float32, and its metadata.

  Returns:
    (numpy arrays by name, metadata).

  Raises:
    errors.CheckpointError: the file is missing or broken.
  """
  with opened(path) as file:
    arrays = {
      name: file.get_tensor(name).astype(np.float32) for name in file.keys()
    }
    return arrays, file.metadata() or {}


def check(
  arrays: Mapping[str, Any],
  shapes: Mapping[str, tuple[int, ...]],
  where: PathLike,
) -> None:
  """Raises unless arrays have exactly the expected names and shapes.

  `where` is the file or folder of the arrays.

  Raises:
    errors.CheckpointError: naming the first array that is missing, superfluous,
      or of another shape.
  """
  problems = [
    *(f'lacks {name}, {shapes[name]}' for name in shapes if name not in arrays),
    *(
      f'has {name}, {arrays[name].shape}, which this model does not use'
      for name in arrays
      if name not in shapes
    ),
    *(
      f'has {name} of shape {arrays[name].shape}, where its config requires '
      f'{shapes[name]}'
      for name in shapes
      if name in arrays and arrays[name].shape != tuple(shapes[name])
    ),
  ]
  if problems:
    more = f' (and {len(problems) - 1} more)' if len(problems) > 1 else ''
    raise errors.CheckpointError(f'{where} {problems[0]}{more}')


@contextlib.contextmanager
def opened(path: PathLike) -> Iterator[Any]:
  """Opens a safetensors file; errors contain its path."""
  safetensors = library('safetensors')
  try:
    with safetensors.safe_open(path, framework='np') as file:
      yield file
  except errors.LengenError:
    raise
  except Exception as error:  # OSError, or an exception of safetensors.
    missing = isinstance(error, FileNotFoundError)
    raise errors.CheckpointError(
      f'there is no {path}'
      if missing
      else f'{path} cannot be read as safetensors: {errors.reason(error)}; '
      'copy it again'
    ) from error


def library(name: str) -> Any:
  """Imports a module of the package safetensors.

  Raises:
    errors.CheckpointError: the package is not installed.
  """
  return extra.load(
    name, 'a safetensors file', 'weights', errors.CheckpointError
  )


def local(path: PathLike) -> pathlib.Path:
  """Returns an absolute path.

  Raises:
    errors.CheckpointError: the path is in an object store.
  """
  if '://' in str(path):
    raise errors.CheckpointError(
      f'{path} is not local; safetensors files and checkpoints of transformers '
      'must be, so copy it, for example with gcloud storage cp -r'
    )
  return pathlib.Path(path).expanduser().absolute()
