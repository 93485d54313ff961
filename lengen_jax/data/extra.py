"""Lazy imports of the packages in extras."""

import importlib
from typing import Any

from lengen_jax import errors


def load(module: str, what: str, extra: str = 'data') -> Any:
  """Imports a module of an extra, which the operation `what` requires.

  Raises:
    errors.CorpusError: the import fails.
  """
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise errors.CorpusError(
      f"{what} needs the {extra} extra: pip install 'lengen_jax[{extra}]' "
      f'({error})'
    ) from error
