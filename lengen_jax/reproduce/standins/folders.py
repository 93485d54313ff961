"""Folders that are written whole or not at all."""

import pathlib
import shutil
import tempfile


def write_once(folder, fill):
  """Writes a folder unless it is there.

  Args:
    folder: to be there afterwards.
    fill: gets an empty folder and gives the one, it or one below it, that is to
      become `folder`.
  """
  folder = pathlib.Path(folder)
  if folder.exists():
    return
  folder.parent.mkdir(parents=True, exist_ok=True)
  # Beside it, so that one step moves it, and hidden from what reads data: what
  # an interrupted write leaves is never taken for any.
  beside = pathlib.Path(
    tempfile.mkdtemp(prefix=f'.{folder.name}-', dir=folder.parent)
  )
  try:
    filled = fill(beside)
    # Of mkdtemp nobody else may read it.
    filled.chmod(0o755)
    try:
      filled.rename(folder)
    except OSError:
      # Another process has been faster, with the same.
      if not folder.exists():
        raise
  finally:
    shutil.rmtree(beside, ignore_errors=True)
