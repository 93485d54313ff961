"""Files and folders: atomic writes, locks, free space and removal."""

from collections.abc import Iterable, Iterator
import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import time
from typing import Any, TypeAlias

from etils import epath

from lengen_jax import errors, locks
from lengen_jax.data.remote import is_remote
from lengen_jax.training import multihost
from lengen_jax.types import PathLike

Path: TypeAlias = pathlib.Path | epath.Path


def locate(path: PathLike) -> Path:
  """Returns an absolute path, or that of an object store: 'gs://...'."""
  if is_remote(path):
    return epath.Path(path)
  return pathlib.Path(path).expanduser().absolute()


def make_folder(path: PathLike) -> Path:
  """Creates a folder if it does not exist, and returns its absolute path.

  Raises:
    errors.WorkdirError: the folder cannot be created.
  """
  path = locate(path)
  try:
    path.mkdir(parents=True, exist_ok=True)
    path.exists()
  except Exception as error:  # Object stores raise errors of their own.
    hint = f'; {errors.BUCKET_HINT}' if is_remote(path) else ''
    if isinstance(error, ImportError):
      hint = "; buckets need the data extra: pip install 'lengen_jax[data]'"
    if isinstance(error, FileExistsError):
      hint = ', and is not a folder; choose another path'
    kind = errors.WorkdirError
    if fix := errors.again(error):
      kind, hint = errors.StorageError, f'; {fix}'
    raise kind(
      f'cannot make the workdir {path}: {errors.reason(error)}{hint}'
    ) from None
  return path


def _check_store(workdir: str) -> None:
  """Raises errors.ConfigError if a path cannot have checkpoints."""
  if is_remote(workdir) and not workdir.startswith('gs://'):
    raise errors.ConfigError(
      f'--workdir={workdir} cannot have checkpoints; use a folder, or gs://'
    )
  if re.match(r'[a-z0-9]{2,}:/[^/]', workdir):
    raise errors.ConfigError(
      f'--workdir={workdir} has one slash after the colon; write two'
    )


@contextlib.contextmanager
def locked(folder: PathLike, *, wait: bool = True) -> Iterator[None]:
  """Creates a folder and locks it for this process.

  If another process holds the lock, prints a line and waits. Object stores,
  Windows and some network file systems have no locks.

  Raises:
    errors.ConfigError: an object store cannot have checkpoints.
    errors.WorkdirError: the folder cannot be written, or another process holds
      the lock and `wait` is False.
  """
  _check_store(str(folder))
  path = make_folder(folder)
  if is_remote(path) or not multihost.is_first():
    yield
    return

  def busy() -> None:
    if not wait:
      raise errors.WorkdirError(
        f'another process is at work in {path}; stop it, or choose another '
        '--workdir'
      )
    print(f'waiting for another process at work in {path} ...', flush=True)

  try:
    file = (path / '.lock').open('w')
  except OSError as error:
    raise unwritable(path, error) from None
  with file:
    locks.lock(file, busy)
    yield


def write_json(path: PathLike, value: Any) -> None:
  """Writes a JSON file atomically; see `write_text`."""
  write_text(path, json.dumps(value, indent=1, allow_nan=False) + '\n')


def write_lines(path: PathLike, values: Iterable[Any]) -> None:
  """Writes a file of JSON lines atomically; see `write_text`."""
  write_text(path, ''.join(json.dumps(value) + '\n' for value in values))


def write_text(path: PathLike, text: str) -> None:
  """Writes a text file atomically, in the first process of a run only.

  Raises:
    errors.WorkdirError: the file cannot be written; StorageError if it may be
      written later.
  """
  if not multihost.is_first():
    return
  path = locate(path)
  partial = path.with_name(path.name + '.partial')
  try:
    partial.write_text(text)
    partial.replace(path)
  except Exception as error:  # Object stores raise errors of their own.
    with contextlib.suppress(Exception):
      partial.unlink()
    raise unwritable(path, error) from None


def unwritable(path: Path, error: Exception) -> errors.WorkdirError:
  """Returns a clear error in place of that of writing a file or folder."""
  text = f'cannot write {path}: {errors.reason(error)}'
  if fix := errors.again(error):
    return errors.StorageError(f'{text}; {fix}')
  return errors.WorkdirError(text)


def finite(value: Any) -> float | None:
  """Returns a float, or None for None, NaN and infinity, which JSON lacks."""
  known = value is not None and math.isfinite(value)
  return float(value) if known else None


def read_json(
  path: Path,
  fields: Iterable[str] = (),
  fix: str = 'restore the file, or delete it and repeat the command that wrote '
  'it',
) -> Any:
  """Reads a JSON file, an object with `fields` if there are any.

  Raises:
    errors.WorkdirError: the file cannot be read, or lacks a field. The message
      ends with `fix`.
  """
  try:
    value = json.loads(path.read_text())
  except OSError as error:
    raise errors.WorkdirError(
      f'cannot read {path}: {errors.reason(error)}'
    ) from None
  except ValueError as error:
    raise errors.WorkdirError(
      f'cannot read {path}: {errors.reason(error)}; {fix}'
    ) from None
  missing = {*fields} - (value.keys() if isinstance(value, dict) else set())
  if missing:
    raise errors.WorkdirError(
      f'{path} lacks {", ".join(sorted(missing))}; {fix}'
    )
  return value


def physical_memory() -> int | None:
  """Returns the memory of this machine, bytes; None if it is unknown."""
  try:
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  except (AttributeError, OSError, ValueError):  # Not on Windows.
    return None


def free_bytes(folder: Path) -> int | None:
  """Returns the free bytes of a file system; None for an object store."""
  try:
    return shutil.disk_usage(folder).free
  except OSError:
    return None


def readable_size(count: int) -> str:
  """Formats a number of bytes in MiB or GiB."""
  unit, name = (2**30, 'GiB') if count >= 2**30 else (2**20, 'MiB')
  return f'{count / unit:.1f} {name}'


def move_into(target: Path, folder: Path) -> None:
  """Moves a folder into `target` under an unused name, if it exists."""
  if not folder.exists():
    return
  target.mkdir(exist_ok=True)
  if not target.exists():
    # Object stores have no empty folders.
    (target / 'README.txt').write_text('Folders that could not be read.\n')
  number = 0
  while (target / f'{folder.name}-{number}').exists():
    number += 1
  with contextlib.suppress(FileNotFoundError):
    folder.replace(target / f'{folder.name}-{number}')


def wait_until_unchanged(folder: Path) -> None:
  """Waits until no file of a folder changes for 0.2 seconds.

  Returns after 10 seconds in any case. The folder may disappear.
  """
  end, before = time.monotonic() + 10, None
  while time.monotonic() < end:
    try:
      now = {file: file.stat().st_mtime_ns for file in folder.rglob('*')}
    except FileNotFoundError:
      now = None
    if now is not None and now == before:
      return
    before = now
    time.sleep(0.2)


def remove(folders: Iterable[Path]) -> None:
  """Removes folders with their contents; ignores what cannot be removed."""
  for folder in folders:
    if is_remote(folder):
      epath.Path(folder).rmtree(missing_ok=True)
    else:
      shutil.rmtree(folder, ignore_errors=True)
