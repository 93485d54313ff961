"""Which commit is running."""

import functools
import os
import pathlib
import subprocess


def running():
  """As `of_checkout`, for this package."""
  return of_checkout(pathlib.Path(__file__).parent)


@functools.cache
def of_checkout(folder):
  """The commit of the checkout that a folder's files are of.

  Args:
    folder: path.

  Returns:
    Its hash, with '+dirty' if files were changed since; None where no checkout
    has the files, or there is no git.
  """

  def git(*arguments):
    return subprocess.run(
      ['git', '-C', str(folder), *arguments],
      capture_output=True,
      check=True,
      env=os.environ | {'GIT_OPTIONAL_LOCKS': '0'},
      text=True,
      timeout=10,
    ).stdout.strip()

  try:
    if not git('ls-files'):
      return None  # Installed somewhere below the checkout of something else.
    dirty = git('status', '--porcelain', '--untracked-files=no')
    return git('rev-parse', 'HEAD') + ('+dirty' if dirty else '')
  except (OSError, subprocess.SubprocessError):
    return None
