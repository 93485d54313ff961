"""What we have put into the registries of seqio."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

# Name to what it was registered with.
_registered: dict = {}


def add(
  name: str,
  key: tuple,
  registry: Any,
  arguments: Callable[[], Mapping[str, Any]],
) -> str:
  """Adds to a registry of seqio what is not there yet.

  Args:
    name: of the task or mixture.
    key: what it depends on; registered anew where that is another.
    registry: of seqio.
    arguments: function that gives what the registry takes.

  Returns:
    The name.
  """
  if _registered.get(name) == key and name in registry.names():
    return name
  registry.remove(name)
  registry.add(name, **arguments())
  _registered[name] = key
  return name
