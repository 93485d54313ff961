"""Local copies of prepared data in an object store.

ArrayRecord files are read at random places, which needs a local disk. A folder
'gs://...' is therefore copied once, to `$XDG_CACHE_HOME/lengen_jax` (by default
`~/.cache/lengen_jax`).
"""

from collections.abc import Iterator
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil

from etils import epath

from lengen_jax import errors
from lengen_jax import progress as progress_lib
from lengen_jax.data import extra, manifest, remote

# Bytes that are copied at once.
_CHUNK = 1 << 24
# Ending of files that are being written.
_PARTIAL = '.partial'


def local(path: str) -> pathlib.Path:
  """Returns the absolute path of a folder, or that of its copy."""
  if not remote.is_remote(path):
    return pathlib.Path(path).expanduser().absolute()
  cache = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  there = epath.Path(path)
  mark = hashlib.sha256(str(there).encode()).hexdigest()[:16]
  folder = pathlib.Path(cache).expanduser().absolute() / 'lengen_jax' / mark
  return folder / there.name


def fetch(path: str, *, missing_ok: bool = False) -> pathlib.Path:
  """Copies a folder of prepared data that is in an object store.

  A finished copy is used again while the manifests are equal and replaced
  otherwise, and an interrupted one continues. The hashes of the files are
  compared with the manifest.

  Returns:
    `local(path)`.

  Raises:
    errors.CorpusError: the store cannot be read, a file differs from its hash,
      the copy cannot be written, or, unless `missing_ok`, there is no data.
  """
  folder = local(path)
  if not remote.is_remote(path):
    return folder
  there, here = _there(path), epath.Path(folder)
  with _reported(path, folder), _locked(folder.parent):
    folder.mkdir(exist_ok=True)
    text = _manifest(there)
    if text is None:
      if not missing_ok and not any(folder.iterdir()):
        raise errors.CorpusError(
          f'no prepared data in {path} (no {manifest.MANIFEST}); run lengen '
          'prepare with this data.path'
        )
      return folder
    before = _manifest(here)
    if before == text:
      return folder
    if before is not None:
      shutil.rmtree(folder)
      folder.mkdir()
    hashes = {
      str(file.relative_to(folder)): shard['sha256']
      for file, shard in manifest.shards(folder, json.loads(text))
    }
    names = [
      name
      for name in _names(there)
      if not (folder / name).exists()
      or manifest.sha256(folder / name) != hashes.get(name)
    ]
    copied = _copy(f'copying {path}', names, there, here)
    for name, sha256 in copied.items():
      if hashes.get(name, sha256) != sha256:
        raise errors.CorpusError(
          f'{there / name} has another hash than the manifest; delete {path} '
          'and run lengen prepare'
        )
    _write(here / manifest.MANIFEST, text)
  return folder


def push(path: str) -> None:
  """Copies the prepared data in `local(path)` to an object store.

  The manifest comes last. Nothing happens if `path` is a local folder, or if
  its manifest is there already.

  Raises:
    errors.CorpusError: the store contains other data or cannot be written.
  """
  if not remote.is_remote(path):
    return
  folder, there = local(path), _there(path)
  here = epath.Path(folder)
  with _reported(path, folder):
    text = _manifest(here)
    if (before := _manifest(there)) is not None:
      if before != text:
        raise errors.CorpusError(
          f'{path} contains other data; set data.path to another folder'
        )
      return
    _copy(f'copying to {path}', _names(here), here, there)
    _write(there / manifest.MANIFEST, text)


def _there(path: str) -> epath.Path:
  return epath.Path(path)


def _manifest(folder: epath.Path) -> str | None:
  """Returns the content of manifest.json, None without the file."""
  file = folder / manifest.MANIFEST
  return file.read_text() if file.exists() else None


def _names(folder: epath.Path) -> list[str]:
  """Returns the names of all files in a folder but the manifest.

  Folders of files are one level deep.
  """
  found = [
    f'{path.name}/{file.name}'
    for path in folder.iterdir()
    if path.is_dir()
    for file in path.iterdir()
  ]
  found += [path.name for path in folder.iterdir() if path.is_file()]
  return sorted(
    name
    for name in found
    if name != manifest.MANIFEST and not name.endswith(_PARTIAL)
  )


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
      partial, found = _partial(target / name), hashlib.sha256()
      with (source / name).open('rb') as read, partial.open('wb') as write:
        while chunk := read.read(_CHUNK):
          write.write(chunk)
          found.update(chunk)
          done += len(chunk)
          progress.update(done)
      partial.replace(target / name)
      hashes[name] = found.hexdigest()
  return hashes


def _partial(file: epath.Path) -> epath.Path:
  return file.with_name(file.name + _PARTIAL)


def _write(file: epath.Path, text: str) -> None:
  partial = _partial(file)
  partial.write_text(text)
  partial.replace(file)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
  """Creates a folder and waits until no other process copies to it."""
  folder.mkdir(parents=True, exist_ok=True)
  opened = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(opened, fcntl.LOCK_EX)
    yield
  finally:
    os.close(opened)


@contextlib.contextmanager
def _reported(path: str, copy: pathlib.Path) -> Iterator[None]:
  """Raises CorpusError in place of other errors of a copy."""
  try:
    yield
  except errors.LengenError:
    raise
  except Exception as error:  # The type depends on the store.
    existing = next(one for one in (copy, *copy.parents) if one.exists())
    free = shutil.disk_usage(existing).free / 1e9
    raise errors.CorpusError(
      f'cannot copy between {path} and {copy} ({free:.1f} GB free): '
      f'{extra.reason(error)}; check that the folder exists and that this '
      'machine has credentials for it (gcloud auth application-default login); '
      'the same command continues'
    ) from error
