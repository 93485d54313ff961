"""The git commit of the running code."""

import functools
import os
import pathlib
import subprocess


def running() -> str | None:
  """Returns `of_checkout` for this package."""
  return of_checkout(pathlib.Path(__file__).parent)


@functools.cache
def of_checkout(folder: pathlib.Path) -> str | None:
  """Returns the hash of the commit that a folder is checked out from.

  It ends with '+dirty' if tracked files were changed. None if the files are not
  in a checkout or git is missing.
  """

  # Hooks of git run with variables that name their own repository.
  environment = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith('GIT_') or name.startswith('GIT_CONFIG')
  }

  def git(*arguments: str) -> str:
    return subprocess.run(
      ['git', '-C', str(folder), *arguments],
      capture_output=True,
      check=True,
      env=environment | {'GIT_OPTIONAL_LOCKS': '0'},
      text=True,
      timeout=10,
    ).stdout.strip()

  try:
    if not git('ls-files'):
      return None  # An installation inside the checkout of another repository.
    dirty = git('status', '--porcelain', '--untracked-files=no')
    return git('rev-parse', 'HEAD') + ('+dirty' if dirty else '')
  except (OSError, subprocess.SubprocessError):
    return None
