"""A model's weights as one safetensors file, under our parameters' paths.

The file holds float32 arrays named as in a checkpoint, layers unstacked, such
as 'layer_0/attention/query/kernel', and in its metadata the ModelConfig and
what the model was trained on. It is read and written by the package
safetensors, from the extra `weights`.
"""

from collections.abc import Mapping
import contextlib
import dataclasses
import importlib
import json
import os
import pathlib

from flax import traverse_util
import jax
import numpy as np

from lengen_jax import errors
from lengen_jax.hints import Params
from lengen_jax.hints import PathLike
from lengen_jax.models import stacking
from lengen_jax.models.config import ModelConfig

SUFFIX = '.safetensors'
_CONFIG, _TRAINED = 'lengen_jax.model', 'lengen_jax.trained_on'


@dataclasses.dataclass(frozen=True)
class TrainedOn:
  """What the model of a file was trained on.

  Attributes:
    vocabulary: fingerprint of that of its data, '' if it is not known.
    length: tokens per row, 0 if it is not known.
  """

  vocabulary: str = ''
  length: int = 0


def check_path(path: PathLike) -> pathlib.Path:
  """Raises unless weights can be written to a path.

  Args:
    path: of the file, '*.safetensors'.

  Returns:
    It, absolute.

  Raises:
    errors.CheckpointError: it is to have another name, there is no folder for
      it, or the package safetensors is missing.
  """
  _library('safetensors.numpy')
  path = _local(path)
  if path.suffix != SUFFIX:
    raise errors.CheckpointError(
      f'weights are written to a file *{SUFFIX}, got {path}'
    )
  if not path.parent.is_dir():
    raise errors.CheckpointError(
      f'cannot write {path}: there is no folder {path.parent}; make it first'
    )
  return path


def save(
  path: PathLike,
  params: Params,
  config: ModelConfig,
  trained_on: TrainedOn = TrainedOn(),
) -> int:
  """Writes the parameters of a model.

  The file is never seen half-written.

  Args:
    path: of the file, '*.safetensors'.
    params: tree of arrays, layers stacked or not.
    config: the ModelConfig.
    trained_on: the TrainedOn.

  Returns:
    How many bytes the file has.

  Raises:
    errors.CheckpointError: it cannot be written; see `check_path`.
  """
  path = check_path(path)
  library = _library('safetensors.numpy')
  flat = traverse_util.flatten_dict(stacking.unstack(params), sep='/')
  arrays = {
    name: np.ascontiguousarray(leaf, np.float32)
    for name, leaf in jax.device_get(flat).items()
  }
  config = dataclasses.replace(config, scan_layers=False)
  metadata = {
    _CONFIG: json.dumps(dataclasses.asdict(config)),
    _TRAINED: json.dumps(dataclasses.asdict(trained_on)),
  }
  partial = path.with_name(path.name + '.partial')
  try:
    # The library's own would be for its owner alone.
    partial.touch()
    mode = partial.stat().st_mode
    library.save_file(arrays, partial, metadata=metadata)
    partial.chmod(mode)
    os.replace(partial, path)
    return path.stat().st_size
  except Exception as error:  # OSError, or the library's own.
    with contextlib.suppress(OSError):
      partial.unlink(missing_ok=True)
    raise errors.CheckpointError(
      f'cannot write {path}: {_reason(error)}'
    ) from error


def load(path: PathLike) -> tuple[Params, ModelConfig]:
  """Reads what `save` wrote.

  Returns:
    (params, ModelConfig): numpy arrays, float32, layers unstacked.

  Raises:
    errors.CheckpointError: the file cannot be read or is of something else.
  """
  path = _local(path)
  arrays, metadata = read(path)
  if _CONFIG not in metadata:
    raise errors.CheckpointError(
      f'{path} was not written by lengen export: it lacks the config of a '
      'model; of a Llama give the folder with its config.json'
    )
  try:
    config = ModelConfig(**json.loads(metadata[_CONFIG]))
  except (TypeError, ValueError) as error:
    raise errors.CheckpointError(
      f'the config of a model in {path} cannot be read: {error}'
    ) from error
  wanted = traverse_util.flatten_dict(stacking.abstract(config)[0], sep='/')
  check(arrays, {name: leaf.shape for name, leaf in wanted.items()}, path)
  return traverse_util.unflatten_dict(arrays, sep='/'), config


def trained_on(path: PathLike) -> TrainedOn:
  """What the model in a file was trained on, as far as the file says.

  Raises:
    errors.CheckpointError: the file cannot be read.
  """
  path = _local(path)
  with _opened(path) as file:
    found = (file.metadata() or {}).get(_TRAINED, '{}')
  try:
    return TrainedOn(**json.loads(found))
  except (TypeError, ValueError) as error:
    raise errors.CheckpointError(
      f'what the model in {path} was trained on cannot be read: {error}'
    ) from error


def read(
  path: PathLike,
) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
  """All arrays of a safetensors file, as float32, and its metadata.

  Args:
    path: of the file.

  Returns:
    (dict of numpy arrays by name, dict of texts).

  Raises:
    errors.CheckpointError: it is missing or broken.
  """
  with _opened(path) as file:
    arrays = {
      name: file.get_tensor(name).astype(np.float32) for name in file.keys()
    }
    return arrays, file.metadata() or {}


def check(
  arrays: Mapping[str, np.ndarray],
  shapes: Mapping[str, tuple[int, ...]],
  where: PathLike,
) -> None:
  """Raises unless arrays are all that is wanted, and nothing else.

  Args:
    arrays: dict of arrays by name.
    shapes: dict of shapes by name.
    where: what holds the arrays, for the message.

  Raises:
    errors.CheckpointError: naming the first that is missing, too many, or of
      another shape.
  """
  problems = [
    *(f'lacks {name}, {shapes[name]}' for name in shapes if name not in arrays),
    *(
      f'has {name}, {arrays[name].shape}, which this model has no use for'
      for name in arrays
      if name not in shapes
    ),
    *(
      f'has {name} of shape {arrays[name].shape}, where its config wants '
      f'{shapes[name]}'
      for name in shapes
      if name in arrays and arrays[name].shape != tuple(shapes[name])
    ),
  ]
  if problems:
    more = f' (and {len(problems) - 1} more)' if len(problems) > 1 else ''
    raise errors.CheckpointError(f'{where} {problems[0]}{more}')


@contextlib.contextmanager
def _opened(path):
  """A safetensors file, whose errors name it."""
  library = _library('safetensors')
  try:
    with library.safe_open(path, framework='np') as file:
      yield file
  except Exception as error:  # OSError, or the library's own.
    missing = isinstance(error, FileNotFoundError)
    raise errors.CheckpointError(
      f'there is no {path}'
      if missing
      else f'{path} cannot be read as safetensors: {_reason(error)}; copy it '
      'again'
    ) from error


def _library(name):
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise errors.CheckpointError(
      "safetensors files need the weights extra: pip install 'lengen_jax"
      f"[weights]' ({error})"
    ) from error


def _local(path):
  if '://' in str(path):
    raise errors.CheckpointError(
      f'{path} is no local file; safetensors files are read and written locally'
    )
  return pathlib.Path(path).expanduser().absolute()


def _reason(error):
  text = getattr(error, 'strerror', None) or str(error)
  return (text.splitlines() or [type(error).__name__])[0]
