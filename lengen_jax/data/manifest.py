"""Manifests of folders of prepared windows, and their verification.

`lengen prepare` writes manifest.json last, with the settings, sizes and hashes
of all files. Until then, the folder contains state.json.
"""

from collections.abc import Mapping
import hashlib
import json
import os
import pathlib
from typing import Any

import numpy as np

from lengen_jax import errors
from lengen_jax import progress as progress_lib
from lengen_jax.data import paths, vocabulary
from lengen_jax.data.config import DataConfig

MANIFEST = 'manifest.json'
STATE = 'state.json'
# Counts of each split.
COUNTS = ('documents', 'bytes', 'tokens', 'windows', 'scored')
_FORMAT = 1
# Keys of both files, beside `format`.
_KEYS = {'task', 'vocabulary', 'mode', 'train_length', 'longest', 'splits'}
# Content of manifest.json or state.json.
Manifest = dict[str, Any]


def identity(
  config: DataConfig, vocab: vocabulary.Vocabulary, longest: int
) -> dict[str, Any]:
  """Returns the settings that windows depend on.

  `longest` is the number of targets of a validation window.
  """
  return {
    'format': _FORMAT,
    'task': config.task,
    'vocabulary': vocab.fingerprint,
    'mode': config.mode,
    'train_length': config.window_length,
    'longest': longest,
  }


def check(
  found: Manifest, wanted: Mapping[str, Any], folder: pathlib.Path
) -> None:
  """Raises CorpusError with all differences of a manifest and an `identity`."""
  names = {
    'longest': 'the longest of eval.lengths',
    'train_length': 'data.train_length or data.source_length',
  }
  differences = [
    f'{names.get(key, "data." + key)}: {found[key]!r} there, {value!r} here'
    for key, value in wanted.items()
    if found[key] != value
  ]
  if differences:
    raise errors.CorpusError(
      f'{folder} contains other data ({"; ".join(differences)}); set data.path '
      'to another folder and run lengen prepare'
    )


def check_config(
  manifest: Manifest, config: DataConfig, longest: int, folder: pathlib.Path
) -> vocabulary.Vocabulary:
  """Returns the vocabulary of a folder that matches a config.

  Validation windows may be longer than `longest`, the maximum evaluated length.
  If the files of `config.vocabulary` do not exist, the folder has a copy.

  Raises:
    errors.CorpusError: the folder does not match; lists all differences.
  """
  spec = config.vocabulary
  if spec != 'bytes' and not pathlib.Path(spec).expanduser().exists():
    if copy := vocabulary.copy_in(folder):
      print(f'data: {spec} does not exist; its copy {copy} is used', flush=True)
      spec = copy
  vocab = vocabulary.create(spec)
  longest = max(longest, manifest['longest'])
  check(manifest, identity(config, vocab, longest), folder)
  return vocab


def read(folder: pathlib.Path) -> Manifest:
  """Reads the manifest of a folder.

  Raises:
    errors.CorpusError: no manifest, or a file is missing or has another size.
  """
  if not (folder / MANIFEST).exists():
    if (folder / STATE).exists():
      raise errors.CorpusError(
        f'{folder} is incomplete; run lengen prepare to resume'
      )
    raise errors.CorpusError(
      f'no prepared data in {folder} (no {MANIFEST}); run lengen prepare with '
      'this --config, or set data.source=seqio to read the raw data. '
      f'{paths.WITHOUT}'
    )
  manifest = read_json(folder / MANIFEST)
  for file, shard in shards(folder, manifest):
    size = file.stat().st_size if file.exists() else None
    if size != shard['size']:
      raise _damaged(
        file, 'is missing' if size is None else f'has {size} bytes', shard
      )
  return manifest


def read_json(path: pathlib.Path) -> Manifest:
  """Reads a manifest or a state.

  Raises:
    errors.CorpusError: the file is corrupt or has another version.
  """
  again = f'delete {path.parent} and run lengen prepare'
  try:
    found = json.loads(path.read_text())
    version = found['format']
    if version == _FORMAT and (missing := _KEYS - found.keys()):
      raise LookupError(f'it lacks {", ".join(sorted(missing))}')
  except OSError as error:
    raise errors.CorpusError(f'cannot read {path}: {error.strerror}') from None
  except (ValueError, LookupError, TypeError) as error:
    raise errors.CorpusError(f'{path} is corrupt ({error}); {again}') from None
  if version != _FORMAT:
    raise errors.CorpusError(
      f'{path} has format {version!r}, this lengen_jax requires {_FORMAT}; '
      f'{again}'
    )
  return found


def is_valid(path: pathlib.Path) -> bool:
  """Returns whether a file is a manifest or a state."""
  try:
    read_json(path)
  except errors.CorpusError:
    return False
  return True


def write_json(path: pathlib.Path, value: Manifest) -> None:
  """Writes a JSON file atomically."""
  partial = path.with_name(path.name + '.partial')
  partial.write_text(json.dumps(value, indent=1) + '\n')
  os.replace(partial, path)


def shards(
  folder: pathlib.Path, manifest: Manifest, split: str | None = None
) -> list[tuple[pathlib.Path, dict[str, Any]]]:
  """Returns (path, manifest entry) of all files, or those of a split."""
  return [
    (folder / name / shard['file'], shard)
    for name, found in manifest['splits'].items()
    for shard in found['shards']
    if split in (None, name)
  ]


def content(manifest: Manifest) -> str:
  """Returns a hash of the content of all windows."""
  windows = {
    name: [shard['sha256'] for shard in found['shards']]
    for name, found in manifest['splits'].items()
  }
  return hashlib.sha256(json.dumps(windows).encode()).hexdigest()


def verify(folder: pathlib.Path, manifest: Manifest) -> None:
  """Raises CorpusError if the hash of a file differs from the manifest."""
  found = shards(folder, manifest)
  with progress_lib.Progress(
    'prepare: checking', len(found), what='file', unit='files'
  ) as progress:
    for number, (file, shard) in enumerate(found, start=1):
      if sha256(file) != shard['sha256']:
        raise _damaged(file, 'has another hash', shard)
      progress.update(number)


def sha256(path: pathlib.Path) -> str:
  """Returns the hash of a file."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def dtype(vocab_size: int) -> np.dtype:
  """Returns the type of token ids in records."""
  return np.dtype('<u2' if vocab_size <= 1 << 16 else '<i4')


def _damaged(
  file: pathlib.Path, what: str, shard: Mapping[str, Any]
) -> errors.CorpusError:
  return errors.CorpusError(
    f'{file} {what}; the manifest has {shard["size"]} bytes with sha256 '
    f'{shard["sha256"][:12]}...; copy the file again, or delete '
    f'{file.parent.parent} and run lengen prepare'
  )
