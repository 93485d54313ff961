"""Lazy imports of the packages in the `data` extra."""

import importlib
from typing import Any

from lengen_jax import errors


def load(module: str, what: str) -> Any:
  """Imports a module of the `data` extra, which the operation `what` requires.

  Raises:
    errors.CorpusError: the import fails.
  """
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise errors.CorpusError(
      f"{what} needs the data extra: pip install 'lengen_jax[data]' ({error})"
    ) from error


def reason(error: BaseException) -> str:
  """Returns the message of an exception as one line."""
  text = getattr(error, 'strerror', None) or str(error)
  return (text.splitlines() or [type(error).__name__])[0]
