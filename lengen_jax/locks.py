"""Locks between processes."""

from collections.abc import Callable
from typing import IO


def lock(file: int | IO[str], busy: Callable[[], None]) -> None:
  """Locks an open file or folder until it is closed.

  If another process holds the lock, calls `busy`, which may raise an error, and
  waits. Windows and some network file systems have no locks.
  """
  try:
    import fcntl
  except ImportError:
    return
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    busy()
    fcntl.flock(file, fcntl.LOCK_EX)
  except OSError:  # The file system has no locks.
    pass
