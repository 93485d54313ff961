"""Packages of the data extra, loaded where they are needed."""

import importlib
from typing import Any

from lengen_jax import errors


def load(module: str, what: str) -> Any:
  """Imports a module of the data extra.

  Args:
    module: its name.
    what: is not possible without it, for the message.

  Raises:
    errors.CorpusError: it is not installed, or broken.
  """
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise errors.CorpusError(
      f"{what} needs the data extra: pip install 'lengen_jax[data]' ({error})"
    ) from error


def reason(error: BaseException) -> str:
  """What an error of another package says, in one line."""
  text = getattr(error, 'strerror', None) or str(error)
  return (text.splitlines() or [type(error).__name__])[0]
