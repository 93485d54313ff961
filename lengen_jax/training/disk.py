"""Folders: room, moving out of the way, removing."""

import contextlib
import shutil
import time


def free(folder):
  """Bytes that are free; None for what is no local path."""
  try:
    return shutil.disk_usage(folder).free
  except OSError:
    return None


def size(count):
  """Bytes for people to read."""
  unit, name = (2**30, 'GiB') if count >= 2**30 else (2**20, 'MiB')
  return f'{count / unit:.1f} {name}'


def move_into(target, folder):
  """Moves a folder under a name that is free; does nothing if it is gone."""
  target.mkdir(exist_ok=True)
  number = 0
  while (target / f'{folder.name}-{number}').exists():
    number += 1
  with contextlib.suppress(FileNotFoundError):
    folder.replace(target / f'{folder.name}-{number}')


def wait_until_at_rest(folder, rest=0.2, at_most=10.0):
  """Waits until nobody seems to write into a folder.

  Args:
    folder: path.
    rest: seconds without a change.
    at_most: seconds to wait in all.
  """
  end, before = time.monotonic() + at_most, None
  while time.monotonic() < end:
    try:
      now = {file: file.stat().st_mtime_ns for file in folder.rglob('*')}
    except FileNotFoundError:  # Gone meanwhile.
      now = None
    if now is not None and now == before:
      return
    before = now
    time.sleep(rest)


def remove(folders):
  """Removes folders and what is in them, as far as possible."""
  for folder in folders:
    if '://' in str(folder):
      folder.rmtree(missing_ok=True)
    else:
      shutil.rmtree(folder, ignore_errors=True)
