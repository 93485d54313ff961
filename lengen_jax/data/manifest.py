"""What a folder of prepared windows says of itself, and whether it is so.

`lengen prepare` writes manifest.json last: what the windows were made from and
how, and the size and hash of each file. Until then state.json stands there.
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
# What is counted of each split.
COUNTS = ('documents', 'bytes', 'tokens', 'windows', 'scored')
_FORMAT = 1
# Content of manifest.json or state.json.
Manifest = dict[str, Any]


def identity(
  config: DataConfig, vocab: vocabulary.Vocabulary, longest: int
) -> dict[str, Any]:
  """What windows depend on beside the text: a dict.

  Args:
    config: a DataConfig.
    vocab: of the token ids; see `vocabulary`.
    longest: tokens of a validation window.
  """
  return {
    'format': _FORMAT,
    'task': config.task,
    'vocabulary': vocab.fingerprint,
    'mode': config.mode,
    'train_length': config.train_length,
    'longest': longest,
  }


def check(
  found: Manifest, wanted: Mapping[str, Any], folder: pathlib.Path
) -> None:
  """Raises where a folder holds other windows than wanted.

  Args:
    found: what `read` gave; or of a folder that is not finished, its identity.
    wanted: an `identity`.
    folder: for the message.

  Raises:
    errors.CorpusError: naming each difference.
  """
  names = {'longest': 'the longest of eval.lengths'}
  differences = [
    f'{names.get(key, "data." + key)}: {found[key]!r} there, {value!r} here'
    for key, value in wanted.items()
    if found[key] != value
  ]
  if differences:
    raise errors.CorpusError(
      f'{folder} holds other data ({"; ".join(differences)}); set data.path to '
      'another folder, and run lengen prepare'
    )


def check_config(
  manifest: Manifest, config: DataConfig, longest: int, folder: pathlib.Path
) -> vocabulary.Vocabulary:
  """Raises where a finished folder does not hold what a config asks for.

  Validation windows that are longer than asked for serve: they are cut.

  Args:
    manifest: what `read` gave.
    config: a DataConfig.
    longest: the longest length that is evaluated.
    folder: for the message.

  Returns:
    The vocabulary.

  Raises:
    errors.CorpusError: naming each difference.
  """
  vocab = vocabulary.create(config.vocabulary)
  longest = max(longest, manifest['longest'])
  check(manifest, identity(config, vocab, longest), folder)
  return vocab


def read(folder: pathlib.Path) -> Manifest:
  """The manifest of a folder that was prepared.

  Raises:
    errors.CorpusError: there is none, or a file is missing or has another size.
  """
  if not (folder / MANIFEST).exists():
    if (folder / STATE).exists():
      raise errors.CorpusError(
        f'{folder} is not finished; go on with it by lengen prepare'
      )
    raise errors.CorpusError(
      f'no prepared data in {folder} (no {MANIFEST}); write it with lengen '
      'prepare, which says where it looks for the raw data and how to get it; '
      f'or read the raw data by data.source=seqio. {paths.WITHOUT}'
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
  """Content of a manifest or a state.

  Raises:
    errors.CorpusError: it is broken, or of another version.
  """
  again = f'delete {path.parent} and run lengen prepare'
  try:
    found = json.loads(path.read_text())
    version = found['format']
  except OSError as error:
    raise errors.CorpusError(f'cannot read {path}: {error.strerror}') from None
  except (ValueError, LookupError, TypeError) as error:
    raise errors.CorpusError(f'{path} is broken ({error}); {again}') from None
  if version != _FORMAT:
    raise errors.CorpusError(
      f'{path} is of format {version!r}, this version of lengen_jax has '
      f'{_FORMAT}; {again}'
    )
  return found


def write_json(path: pathlib.Path, value: Manifest) -> None:
  """Writes JSON so that the file is never seen half-written."""
  partial = path.with_name(path.name + '.partial')
  partial.write_text(json.dumps(value, indent=1) + '\n')
  os.replace(partial, path)


def shards(
  folder: pathlib.Path, manifest: Manifest, split: str | None = None
) -> list[tuple[pathlib.Path, dict[str, Any]]]:
  """(path, entry of the manifest) of all files, or those of a split."""
  return [
    (folder / name / shard['file'], shard)
    for name, found in manifest['splits'].items()
    for shard in found['shards']
    if split in (None, name)
  ]


def content(manifest: Manifest) -> str:
  """A hash of the windows, whatever place they were made from."""
  windows = {
    name: [shard['sha256'] for shard in found['shards']]
    for name, found in manifest['splits'].items()
  }
  return hashlib.sha256(json.dumps(windows).encode()).hexdigest()


def verify(folder: pathlib.Path, manifest: Manifest) -> None:
  """Reads every file and compares its hash.

  Raises:
    errors.CorpusError: naming a file that is damaged.
  """
  found = shards(folder, manifest)
  with progress_lib.Progress(
    'prepare: checking', len(found), what='file', unit='files'
  ) as progress:
    for number, (file, shard) in enumerate(found, start=1):
      if sha256(file) != shard['sha256']:
        raise _damaged(file, 'has another hash', shard)
      progress.update(number)


def sha256(path: pathlib.Path) -> str:
  """Hash of a file's content."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def dtype(vocab_size: int) -> np.dtype:
  """Of token ids in records."""
  return np.dtype('<u2' if vocab_size <= 1 << 16 else '<i4')


def _damaged(
  file: pathlib.Path, what: str, shard: Mapping[str, Any]
) -> errors.CorpusError:
  return errors.CorpusError(
    f'{file} {what}; the manifest has {shard["size"]} bytes with sha256 '
    f'{shard["sha256"][:12]}...: the file is damaged; copy it again, or delete '
    f'{file.parent.parent} and run lengen prepare'
  )
