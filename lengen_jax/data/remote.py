"""Files in object stores such as gs://, through the file systems of Beam."""

import functools
import io
import pathlib
import posixpath
from typing import Any, IO, TypeAlias

from lengen_jax import errors, extra


class Path:
  """A path in an object store, with those methods of `pathlib.Path` in use."""

  def __init__(self, path: str) -> None:
    """Takes a path such as 'gs://bucket/folder'."""
    self._path = path.rstrip('/')

  def __str__(self) -> str:
    return self._path

  def __truediv__(self, name: str) -> 'Path':
    return Path(f'{self._path}/{name}')

  @property
  def name(self) -> str:
    """The last part of the path."""
    return posixpath.basename(self._path)

  @property
  def parent(self) -> 'Path':
    """The path without its last part."""
    return Path(posixpath.dirname(self._path))

  def with_name(self, name: str) -> 'Path':
    """Returns a path in the same folder."""
    return self.parent / name

  def exists(self) -> bool:
    """Returns whether there is a file; folders do not exist by themselves."""
    return _systems().exists(self._path)

  is_file = exists

  def mkdir(self, exist_ok: bool = False) -> None:
    """Does nothing: files imply their folders."""
    del exist_ok

  def open(self, mode: str) -> IO[bytes]:
    """Opens the file in mode 'rb' or 'wb'. It is complete when it is closed."""
    function = {'rb': _systems().open, 'wb': _systems().create}[mode]
    # Otherwise Beam decompresses by the extension.
    file = function(self._path, compression_type='uncompressed')
    # Files of some stores have no `peek`, and read lines byte by byte.
    return io.BufferedReader(file, 1 << 20) if mode == 'rb' else file

  def replace(self, target: 'Path') -> None:
    """Renames the file."""
    _systems().rename([self._path], [str(target)])

  def unlink(self, missing_ok: bool = False) -> None:
    """Deletes the file."""
    if not missing_ok or self.exists():
      _systems().delete([self._path])

  def read_text(self) -> str:
    """Returns the content of the file."""
    with self.open('rb') as file:
      return file.read().decode()

  def write_text(self, text: str) -> None:
    """Writes the file."""
    with self.open('wb') as file:
      file.write(text.encode())


AnyPath: TypeAlias = pathlib.Path | Path


def is_remote(path: object) -> bool:
  """Returns whether a path is in an object store."""
  return '://' in str(path)


def files(folder: str) -> list[str]:
  """Returns the sorted paths of all files below a folder, or that of a file.

  Raises:
    errors.CorpusError: the store cannot be reached.
  """
  return sorted(_listed(folder.rstrip('/'), '/**') or _listed(folder, ''))


def size(path: str) -> int:
  """Returns the bytes of a file.

  Raises:
    errors.CorpusError: the store cannot be reached.
    OSError: the file does not exist.
  """
  # A request per file would take minutes for a large corpus.
  found = _listed(posixpath.dirname(path), '/*')
  if path not in found:
    raise OSError('it does not exist')
  return found[path]


@functools.lru_cache(maxsize=64)
def _listed(folder: str, pattern: str) -> dict[str, int]:
  """Returns the sizes of the files that a pattern matches."""
  systems = _systems()
  try:
    [found] = systems.match([folder + pattern])
  except Exception as error:  # The type depends on the store.
    raise errors.CorpusError(
      f'cannot list {folder}: {errors.reason(error)}; {errors.BUCKET_HINT}'
    ) from error
  return {one.path: one.size_in_bytes for one in found.metadata_list}


def _systems() -> Any:
  module = 'apache_beam.io.filesystems'
  return extra.load(module, 'an object store', 'beam').FileSystems
