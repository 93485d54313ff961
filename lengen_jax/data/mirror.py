"""Local copies of prepared data in an object store.

ArrayRecord files are read at random places, which needs a local disk. A folder
'gs://...' is therefore copied once, to `$XDG_CACHE_HOME/lengen_jax` (by default
`~/.cache/lengen_jax`).
"""

from collections.abc import Iterator
import contextlib
import hashlib
import os
import pathlib
import posixpath
import re
import shutil
from typing import Any

from etils import epath

from lengen_jax import errors, locks
from lengen_jax import progress as progress_lib
from lengen_jax.data import manifest, remote, vocabulary

_STORES = ('gs://', 's3://', 'az://')
# Bytes that are copied at once.
_CHUNK = 1 << 24
# Ending of files that are being written.
_PARTIAL = '.partial'


def local(path: str) -> pathlib.Path:
  """Returns the absolute path of a folder, or of its copy if it is remote.

  Raises:
    errors.ConfigError: the path is of an unknown kind of object store.
  """
  if not remote.is_remote(path):
    if re.match(r'[a-z0-9]{2,}:/', path):
      raise errors.ConfigError(
        f'data.path={path} has one slash after the colon; write two'
      )
    return pathlib.Path(path).expanduser().absolute()
  if not path.startswith(_STORES):
    raise errors.ConfigError(
      f'data.path={path} is in an unknown kind of object store; use a folder, '
      f'or one of {", ".join(_STORES)}'
    )
  path = path.rstrip('/')
  cache = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  mark = hashlib.sha256(path.encode()).hexdigest()[:16]
  folder = pathlib.Path(cache).expanduser().absolute() / 'lengen_jax' / mark
  return folder / posixpath.basename(path)


def fetch(path: str, *, missing_ok: bool = False) -> pathlib.Path:
  """Copies a folder of prepared data that is in an object store.

  A finished copy is used again while the manifests are equal and replaced
  otherwise, and an interrupted one continues. The hashes of the files are
  compared with the manifest.

  Returns:
    `local(path)`.

  Raises:
    errors.CorpusError: the store cannot be read, a file is missing there or
      differs from its hash, the copy cannot be written, or, unless
      `missing_ok`, there is no data.
    errors.StorageError: the store fails, or the disk is full.
  """
  folder = local(path)
  if not remote.is_remote(path):
    return folder
  with _reported(path, folder), _locked(folder.parent):
    there, here = _there(path), epath.Path(folder)
    if not (there / manifest.MANIFEST).exists():
      if not missing_ok:
        raise errors.CorpusError(
          f'no prepared data in {path} (no {manifest.MANIFEST}); run lengen '
          'prepare with this data.path'
        )
      return folder
    found = manifest.read_json(there / manifest.MANIFEST)
    copy = here / manifest.MANIFEST
    finished = copy.exists()
    if finished and manifest.read_json(copy) != found:
      shutil.rmtree(folder)
      finished = False
    folder.mkdir(exist_ok=True)
    shards = _shards(folder, found)
    missing = [
      name
      for name, shard in shards.items()
      if not (folder / name).exists()
      or (folder / name).stat().st_size != shard['size']
      or (not finished and manifest.sha256(folder / name) != shard['sha256'])
    ]
    if not finished:
      missing += _vocabulary(there)
    if not missing:
      return folder
    for name in missing:
      if not (there / name).exists():
        raise errors.CorpusError(
          f'{there / name} is missing, and the manifest has it; copy it again, '
          f'or delete {path} and run lengen prepare'
        )
    size = sum((there / name).stat().length for name in missing)
    if size > (free := shutil.disk_usage(folder).free):
      raise errors.CorpusError(
        f'{path} needs {size / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} '
        'GB are free; set XDG_CACHE_HOME to a folder on a larger disk'
      )
    copy.unlink(missing_ok=True)
    copied = _copy(f'copying {path}', missing, there, here)
    for name, sha256 in copied.items():
      if name in shards and shards[name]['sha256'] != sha256:
        raise errors.CorpusError(
          f'{there / name} has another hash than the manifest; delete {path} '
          'and run lengen prepare'
        )
    _copy_manifest(there, here)
  return folder


def push(path: str) -> None:
  """Copies the prepared data in `local(path)` to an object store.

  The manifest comes last. Files of the same size that are there already are
  not copied. Nothing happens if `path` is a local folder, or if its manifest is
  there already.

  Raises:
    errors.CorpusError: the store contains other data or cannot be written.
    errors.StorageError: the store fails.
  """
  if not remote.is_remote(path):
    return
  folder = local(path)
  with _reported(path, folder):
    there, here = _there(path), epath.Path(folder)
    found = manifest.read_json(folder / manifest.MANIFEST)
    if (there / manifest.MANIFEST).exists():
      if manifest.read_json(there / manifest.MANIFEST) != found:
        raise errors.CorpusError(
          f'{path} contains other data; set data.path to another folder'
        )
      return
    names = [
      name
      for name in [*_shards(folder, found), *_vocabulary(here)]
      if not (there / name).exists()
      or (there / name).stat().length != (here / name).stat().length
    ]
    _copy(f'copying to {path}', names, here, there)
    _copy_manifest(here, there)


def _there(path: str) -> epath.Path:
  return epath.Path(path)


def _shards(folder: pathlib.Path, found: manifest.Manifest) -> dict[str, Any]:
  """Returns the manifest's entries of all files by name."""
  return {
    str(file.relative_to(folder)): shard
    for file, shard in manifest.shards(folder, found)
  }


def _vocabulary(folder: epath.Path) -> list[str]:
  """Returns the names of the files of the vocabulary's copy, if any."""
  found = []
  for name in vocabulary.COPIES:
    copy = folder / name
    if copy.is_dir():
      found += [f'{name}/{file.name}' for file in copy.iterdir()]
    elif copy.exists():
      found.append(name)
  return [name for name in found if not name.endswith(_PARTIAL)]


def _copy(
  label: str, names: list[str], source: epath.Path, target: epath.Path
) -> dict[str, str]:
  """Copies files of a folder with progress; returns their hashes by name."""
  total, done = sum((source / name).stat().length for name in names), 0
  hashes = {}
  with progress_lib.Progress(
    f'data: {label}', total, what='byte', unit='bytes'
  ) as progress:
    for name in names:
      (target / name).parent.mkdir(parents=True, exist_ok=True)
      partial = (target / name).with_name((target / name).name + _PARTIAL)
      found = hashlib.sha256()
      with (source / name).open('rb') as read, partial.open('wb') as write:
        while chunk := read.read(_CHUNK):
          write.write(chunk)
          found.update(chunk)
          done += len(chunk)
          progress.update(done)
      partial.replace(target / name)
      hashes[name] = found.hexdigest()
  return hashes


def _copy_manifest(source: epath.Path, target: epath.Path) -> None:
  partial = target / (manifest.MANIFEST + _PARTIAL)
  partial.write_text((source / manifest.MANIFEST).read_text())
  partial.replace(target / manifest.MANIFEST)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
  """Creates a folder and waits until no other process copies to it."""
  folder.mkdir(parents=True, exist_ok=True)

  def busy() -> None:
    print(f'data: waiting for another copy to {folder} ...', flush=True)

  with (folder / '.lock').open('w') as file:
    locks.lock(file, busy)
    yield


@contextlib.contextmanager
def _reported(path: str, copy: pathlib.Path) -> Iterator[None]:
  """Raises CorpusError or StorageError in place of other errors of a copy."""
  try:
    yield
  except errors.LengenError:
    raise
  except Exception as error:  # The type depends on the store.
    fix, kind = errors.BUCKET_HINT, errors.CorpusError
    if getattr(error, 'errno', None):
      fix = 'check XDG_CACHE_HOME and the free space'
    if errors.again(error):
      kind = errors.StorageError
    raise kind(
      f'cannot copy between {path} and {copy}: {errors.reason(error)}; {fix}; '
      'the same command continues'
    ) from error
