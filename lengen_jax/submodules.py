"""Submodules of a package as its attributes, imported on first use."""

from collections.abc import Callable, Mapping
import importlib
import types
from typing import Any

from lengen_jax import errors


def lazy(
  package: str, attributes: Mapping[str, str] = types.MappingProxyType({})
) -> Callable[[str], Any]:
  """Returns the `__getattr__` of a package (PEP 562).

  Args:
    package: name of the package.
    attributes: further attributes, and the submodule that defines each.
  """

  def get(name: str) -> Any:
    full_name = f'{package}.{attributes.get(name, name)}'
    try:
      module = importlib.import_module(full_name)
      return getattr(module, name) if name in attributes else module
    except ModuleNotFoundError as error:
      if error.name != full_name:
        raise
      raise AttributeError(
        f'module {package!r} has no attribute {name!r}'
      ) from None
    except errors.ConfigError as error:  # A package that it needs is missing.
      raise AttributeError(str(error)) from error

  return get
