"""Lazy imports of the packages in extras."""

import importlib
from typing import Any

from lengen_jax import errors


def load(
  module: str,
  what: str,
  extra: str = 'data',
  error_type: type[errors.LengenError] = errors.CorpusError,
) -> Any:
  """Imports a module of an extra, which the operation `what` requires.

  Raises:
    error_type: the import fails.
  """
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise error_type(
      f"{what} needs the {extra} extra: pip install 'lengen_jax[{extra}]' "
      f'({error})'
    ) from error
