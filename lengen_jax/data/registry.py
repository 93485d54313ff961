"""Registrations of this package in the registries of seqio."""

from collections.abc import Callable, Mapping
from typing import Any

# Maps each registered name to its key.
_registered: dict = {}


def add(
  name: str,
  key: tuple,
  registry: Any,
  arguments: Callable[[], Mapping[str, Any]],
) -> str:
  """Adds a task or mixture to a registry of seqio, replacing an outdated one.

  Args:
    name: name of the task or mixture.
    key: everything that the registration depends on; a new key replaces the
      existing registration.
    registry: a registry class of seqio.
    arguments: function that returns the keyword arguments of `registry.add`.

  Returns:
    The name.
  """
  if _registered.get(name) == key and name in registry.names():
    return name
  registry.remove(name)
  registry.add(name, **arguments())
  _registered[name] = key
  return name
