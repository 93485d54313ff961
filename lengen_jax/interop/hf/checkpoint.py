"""Reads and writes checkpoints of transformers; see the package."""

import contextlib
import pathlib

from flax import traverse_util
import numpy as np

from lengen_jax import errors
from lengen_jax.interop import weights
from lengen_jax.interop.hf import config_json, describe, families, tensors
from lengen_jax.models import stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.types import Params, PathLike

# Files of a tokenizer and of generation, which `save` copies.
_COPIED = (
  *('tokenizer.json', 'tokenizer_config.json', 'tokenizer.model'),
  *('special_tokens_map.json', 'added_tokens.json', 'vocab.json', 'merges.txt'),
  *('chat_template.jinja', 'chat_template.json', 'generation_config.json'),
)


def load(folder: PathLike) -> tuple[Params, ModelConfig]:
  """Reads the checkpoint in a folder.

  Tensors are converted one at a time, so that memory holds the parameters and
  at most one shard.

  Returns:
    (params, ModelConfig): numpy float32 arrays with unstacked layers.

  Raises:
    errors.CheckpointError: a file is missing or broken, no ModelConfig fits, or
      a tensor is missing, superfluous, of another shape or not finite.
  """
  folder = weights.local(folder)
  found = config_json.read(folder)
  family = families.of(found)
  try:
    config = ModelConfig(**family.model_fields(found))
    shapes = stacking.shapes(config)
  except errors.CheckpointError:
    raise
  except errors.LengenError as error:
    raise found.error(f'describes an invalid model: {error}') from error
  params: dict[str, np.ndarray] = {}
  entries = family.entries(shapes)
  for name, tensor in tensors.read(folder, entries):
    params |= entries[name].split(tensor)
  return traverse_util.unflatten_dict(params, sep='/'), config


def save(
  folder: PathLike,
  params: Params,
  config: ModelConfig,
  like: PathLike | None = None,
  dtype: str = 'float32',
  *,
  max_length: int | None = None,
  shard_bytes: int = 5 * 10**9,
) -> int:
  """Writes a checkpoint that transformers reads; returns its size in bytes.

  The family of `like` is written if it represents the model, else the first
  that does. Encodings are written as `rope_parameters`, and for transformers
  before version 5 also as `rope_theta` and `rope_scaling`.

  Args:
    folder: folder to write, created if missing.
    params: parameters; their layers may be stacked. LoRA kernels are merged.
    config: the ModelConfig.
    like: folder of a checkpoint, whose tokenizer files are copied and whose ids
      of special tokens are kept if the vocabulary has them. Its model may be of
      another architecture.
    dtype: 'float32', 'bfloat16' or 'float16', of all tensors.
    max_length: training length in tokens. `max_position_embeddings` is the
      training length of a dynamic encoding. For llama3, yarn and longrope, it
      is their train_length times their scale, or that of `like` if its
      encodings are equal. For other encodings, it is the larger of `max_length`
      and that of `like`, or 2048 if both are unknown.
    shard_bytes: maximum size of a file.

  Raises:
    errors.CheckpointError: no family represents the model, a value is NaN or
      infinite or overflows in `dtype`, a file cannot be written, or the folder
      has a config.json of something else.
  """
  there = check_folder(folder)
  base = None if like is None else config_json.read(like)
  copied = {} if like is None else _tokenizer_files(like)
  if not describe.families_of(base):
    # It has settings of another model.
    copied.pop('generation_config.json', None)
  params, config = stacking.portable(params, config)
  family, written = describe.choose(config, base, max_length)
  written['dtype'] = dtype
  flat = traverse_util.flatten_dict(params, sep='/')
  shapes = {path: tuple(leaf.shape) for path, leaf in flat.items()}
  entries = family.entries(shapes)
  try:
    there.mkdir(parents=True, exist_ok=True)
    files = {'config.json': tensors.json_bytes(written)} | copied
    with contextlib.ExitStack() as at_end:
      for name, content in files.items():
        at_end.enter_context(tensors.replaced_at_end(there / name, content))
      size = tensors.write(there, entries, flat, dtype, shard_bytes)
  except OSError as error:
    raise errors.CheckpointError(
      f'cannot write {there}: {error.strerror}'
    ) from error
  return size


def check_folder(folder: PathLike) -> pathlib.Path:
  """Returns the absolute path of a folder to which `save` may write.

  Raises:
    errors.CheckpointError: it has a config.json that is not that of a
      transformers model, for example that of a run; or its name is that of a
      file of weights.
  """
  there = weights.local(folder)
  if there.suffix == weights.SUFFIX:
    raise errors.CheckpointError(
      f'cannot write {there}: a checkpoint of transformers is a folder, whose '
      f'name must not end in {weights.SUFFIX}; choose another name'
    )
  path = there / 'config.json'
  if path.exists() and not config_json.is_checkpoint(there):
    raise errors.CheckpointError(
      f'cannot write {there}: its config.json is not that of a transformers '
      'model, and would be replaced; choose another folder'
    )
  return there


def _tokenizer_files(folder: PathLike) -> dict[str, bytes]:
  """Returns the content of each of `_COPIED` that is in a folder."""
  paths = [pathlib.Path(folder).expanduser() / name for name in _COPIED]
  try:
    return {path.name: path.read_bytes() for path in paths if path.is_file()}
  except OSError as error:
    raise errors.CheckpointError(
      f'cannot read {error.filename}: {error.strerror}'
    ) from error
