"""Tensors of a checkpoint in one or several safetensors files."""

from collections.abc import Iterator, Mapping
import contextlib
import json
import os
import pathlib
import re
from typing import Any

import jax
import ml_dtypes
import numpy as np

from lengen_jax import errors
from lengen_jax.interop import weights
from lengen_jax.interop.hf import layouts
from lengen_jax.types import PathLike

_FILE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_DTYPES = {
  'float32': np.float32,
  'bfloat16': ml_dtypes.bfloat16,
  'float16': np.float16,
}
_READ = ('F64', 'F32', 'BF16', 'F16')
# Buffers in checkpoints of old versions. The config determines their values.
_COMPUTED = re.compile(
  r'.*\.(rotary_emb\.inv_freq|attention\.(masked_)?bias)|.*\.rotary_emb\..*'
)
# Output heads, and the embeddings that a tied one equals.
_TIED = {
  'lm_head.weight': 'model.embed_tokens.weight',
  'embed_out.weight': 'gpt_neox.embed_in.weight',
}


def read(
  folder: PathLike, entries: Mapping[str, layouts.Entry]
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the tensors of a checkpoint by name, float32, one at a time.

  Args:
    folder: folder of the checkpoint.
    entries: the expected tensors by name.

  Raises:
    errors.CheckpointError: a file is missing or broken, or a tensor is missing,
      superfluous, of another shape or not finite.
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  files = _files(folder)
  shapes = {
    name: jax.ShapeDtypeStruct(opened.get_slice(name).get_shape(), np.float32)
    for name, opened in _opened_each(folder, files, entries)
  }
  for head, embedding in _TIED.items():
    if head in shapes and head not in entries and embedding in entries:
      # Some checkpoints also store the tied head.
      both = {
        name: opened.get_tensor(name)
        for name, opened in _opened_each(folder, files, entries)
        if name in (head, embedding)
      }
      if np.array_equal(both[head], both.get(embedding)):
        del shapes[head]
  weights.check(
    shapes, {name: entry.shape for name, entry in entries.items()}, folder
  )
  for name, opened in _opened_each(folder, files, entries):
    if name in entries:
      with np.errstate(over='ignore'):
        tensor = opened.get_tensor(name).astype(np.float32)
      if not np.isfinite(tensor).all():
        raise errors.CheckpointError(
          f'{folder} has {name} with values that are NaN or infinite in '
          'float32; copy or convert the checkpoint again'
        )
      yield name, tensor


def _opened_each(
  folder: pathlib.Path,
  files: Mapping[str, list[str] | None],
  entries: Mapping[str, layouts.Entry],
) -> Iterator[tuple[str, Any]]:
  """Yields the name of each tensor but computed ones, and its opened file."""
  for file, names in files.items():
    with weights.opened(folder / file) as opened:
      present = set(opened.keys())
      for name in sorted(present if names is None else names):
        if name not in present:
          raise errors.CheckpointError(
            f'{folder / file} lacks {name}, which {_INDEX} lists'
          )
        if name not in entries and _COMPUTED.fullmatch(name):
          continue
        dtype = opened.get_slice(name).get_dtype()
        if dtype not in _READ:
          raise errors.CheckpointError(
            f'{folder / file} has {name} of dtype {dtype}; supported are '
            f'{", ".join(_READ)}'
          )
        yield name, opened


def json_bytes(content: Any) -> bytes:
  """Returns the content of a JSON file."""
  return (json.dumps(content, indent=2) + '\n').encode()


@contextlib.contextmanager
def replaced_at_end(path: pathlib.Path, content: bytes) -> Iterator[None]:
  """Writes a file, and replaces `path` by it if the context succeeds.

  A full disk is found before other files are replaced.

  Raises:
    OSError: the file cannot be written.
  """
  partial = path.with_name(path.name + '.partial')
  try:
    partial.write_bytes(content)
    yield
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def write(
  folder: pathlib.Path,
  entries: Mapping[str, layouts.Entry],
  params: Mapping[str, Any],
  dtype: str,
  shard_bytes: int,
) -> int:
  """Writes tensors to a folder, and an index if there are several files.

  Files of a former checkpoint are deleted last. Returns the size of the tensors
  in bytes.

  Raises:
    errors.CheckpointError: an unknown dtype, a tensor that overflows in it or
      is not finite, or a file cannot be written.
    OSError: the index cannot be written.
  """
  if dtype not in _DTYPES:
    raise errors.CheckpointError(errors.one_of('dtype', dtype, _DTYPES))
  bytes_each = np.dtype(_DTYPES[dtype]).itemsize
  shards: list[list[str]] = [[]]
  size = total = 0
  for name, entry in entries.items():
    needed = int(np.prod(entry.shape)) * bytes_each
    if shards[-1] and size + needed > shard_bytes:
      shards.append([])
      size = 0
    shards[-1].append(name)
    size, total = size + needed, total + needed
  named = {_FILE: shards[0]}
  if len(shards) > 1:
    of = f'of-{len(shards):05}.safetensors'
    named = {f'model-{i:05}-{of}': x for i, x in enumerate(shards, start=1)}
  weight_map = {name: file for file, names in named.items() for name in names}
  index = {'metadata': {'total_size': total}, 'weight_map': weight_map}
  with replaced_at_end(folder / _INDEX, json_bytes(index)):
    weights.write(
      (
        (
          folder / file,
          {name: _cast(name, entries[name], params, dtype) for name in names},
        )
        for file, names in named.items()
      ),
      {'format': 'pt'},
    )
  if len(shards) == 1:
    (folder / _INDEX).unlink()
  for old in (*folder.glob('model-*-of-*.safetensors'), folder / _FILE):
    if old.name not in named:
      old.unlink(missing_ok=True)
  return total


def _cast(
  name: str, entry: layouts.Entry, params: Mapping[str, Any], dtype: str
) -> np.ndarray:
  """Returns a tensor in a dtype.

  Raises:
    errors.CheckpointError: a value is NaN or infinite, or overflows.
  """
  tensor = entry.join(params)
  with np.errstate(over='ignore'):
    cast = np.ascontiguousarray(tensor.astype(_DTYPES[dtype]))
  if not np.isfinite(tensor).all():
    raise errors.CheckpointError(
      f'{name} has values that are NaN or infinite; export an earlier step, '
      'from before the training diverged'
    )
  if not np.isfinite(cast).all():
    raise errors.CheckpointError(
      f'{name} has values up to {np.abs(tensor).max():.3g}, and the largest '
      f'{dtype} is {float(ml_dtypes.finfo(cast.dtype).max):.3g}; choose '
      'bfloat16 or float32'
    )
  return cast


def _hint(folder: pathlib.Path) -> str:
  """Returns advice on other files of weights in a folder."""
  if any(folder.glob('model-*.safetensors')):
    return f', and several files need {_INDEX}; copy it, too'
  for pattern in ('pytorch_model*.bin', '*.pth', '*.gguf'):
    for other in sorted(folder.glob(pattern)):
      return f'; {other.name} cannot be read: convert it to safetensors'
  return ''


def _files(folder: pathlib.Path) -> dict[str, list[str] | None]:
  """Returns the names of the tensors in each file; None for all.

  A single file precedes an index, which may be older.
  """
  if (folder / _FILE).exists():
    return {_FILE: None}
  if not (folder / _INDEX).exists():
    raise errors.CheckpointError(f'there is no {folder / _FILE}{_hint(folder)}')
  try:
    found = json.loads((folder / _INDEX).read_text())['weight_map']
    files: dict[str, list[str] | None] = {}
    for name, file in found.items():
      files.setdefault(pathlib.PurePath(file).name, []).append(name)
    return files
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    raise errors.CheckpointError(
      f'{folder / _INDEX} is broken: it has no weight_map; copy it again'
    ) from None
