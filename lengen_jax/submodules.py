"""Submodules of a package as its attributes, imported on first use."""

from collections.abc import Callable
import importlib
from typing import Any

from lengen_jax import errors


def lazy(package: str) -> Callable[[str], Any]:
  """Returns the `__getattr__` of a package (PEP 562)."""

  def get(name: str) -> Any:
    full_name = f'{package}.{name}'
    try:
      return importlib.import_module(full_name)
    except ModuleNotFoundError as error:
      if error.name != full_name:
        raise
      raise AttributeError(
        f'module {package!r} has no attribute {name!r}'
      ) from None
    except errors.ConfigError as error:  # A package that it needs is missing.
      raise AttributeError(str(error)) from error

  return get
