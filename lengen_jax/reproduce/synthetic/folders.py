"""Atomic writes of folders."""

from collections.abc import Callable
import pathlib
import shutil
import tempfile

from lengen_jax.hints import PathLike


def write_once(
  path: PathLike, fill: Callable[[pathlib.Path], pathlib.Path]
) -> None:
  """Writes a folder atomically, unless it exists.

  Args:
    path: the folder.
    fill: writes into an empty folder and returns the folder, this one or one
      below it, that becomes `path`.
  """
  folder = pathlib.Path(path)
  if folder.exists():
    return
  folder.parent.mkdir(parents=True, exist_ok=True)
  # A hidden sibling can be renamed in one step, and readers of the data ignore
  # what an interrupted write leaves behind.
  beside = pathlib.Path(
    tempfile.mkdtemp(prefix=f'.{folder.name}-', dir=folder.parent)
  )
  try:
    filled = fill(beside)
    # Folders of mkdtemp are private.
    filled.chmod(0o755)
    try:
      filled.rename(folder)
    except OSError:
      # Another process may have written the same data first.
      if not folder.exists():
        raise
  finally:
    shutil.rmtree(beside, ignore_errors=True)
