"""Spec strings: `name` or `name(key=value, ...)`, values being literals.

A spec names an entry of a registry (a plain dict of classes) and sets fields
of it. Specs print well in logs and legends and can be given on a command line.
`module:name(...)` imports a module first, which registers what is named: so a
process that finds the spec in a workdir knows it too.
"""

import ast
from collections.abc import Iterable, Mapping
import dataclasses
import importlib
import math
import numbers
import re
from typing import Any

from lengen_jax import errors

# Kinds to which whoever has a module adds by name.
_OPEN = ('encoding', 'position scheme', 'attention scale')


def split(
  text: str, separator: str = ',', keep_empty: bool = False
) -> list[str]:
  """Splits at `separator` wherever it is not inside brackets or quotes.

  `split('rope(scale=4., base=1e4), nope')` is
  `['rope(scale=4., base=1e4)', 'nope']`.

  Args:
    text: what to split.
    separator: one character.
    keep_empty: keep parts that are empty.

  Raises:
    errors.SpecError: a bracket or quote is not closed.
  """
  parts, depth, quote, start = [], 0, None, 0
  for i, char in enumerate(text):
    if quote:
      quote = None if char == quote else quote
    elif char in '\'"':
      quote = char
    elif char in '([{':
      depth += 1
    elif char in ')]}':
      depth -= 1
    elif char == separator and depth == 0:
      parts.append(text[start:i])
      start = i + 1
  if depth or quote:
    raise errors.SpecError(
      f'a bracket or quote is not closed, or never opened, in {text!r}'
    )
  parts = [part.strip() for part in [*parts, text[start:]]]
  return parts if keep_empty else [part for part in parts if part]


def parse(spec: str) -> tuple[str, dict[str, Any]]:
  """Parses one spec string.

  Args:
    spec: `name` or `name(key=value, ...)`.

  Returns:
    (name, dict of keyword arguments).

  Raises:
    errors.SpecError: not of that form.
  """
  form = 'write name or name(key=value, ...), values being literals'
  try:
    if not isinstance(spec, str):
      raise SyntaxError
    node = ast.parse(spec.strip(), mode='eval').body
  except SyntaxError:
    raise errors.SpecError(f'cannot read the spec {spec!r}; {form}') from None
  if isinstance(node, ast.Name):
    return node.id, {}
  if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
    raise errors.SpecError(f'cannot read the spec {spec!r}; {form}')
  if node.args or any(keyword.arg is None for keyword in node.keywords):
    raise errors.SpecError(f'{spec!r} has a value without a key; {form}')
  kwargs = {}
  for keyword in node.keywords:
    if keyword.arg in kwargs:
      raise errors.SpecError(f'{keyword.arg} stands twice in {spec!r}')
    try:
      kwargs[keyword.arg] = ast.literal_eval(keyword.value)
    except (ValueError, TypeError):
      raise errors.SpecError(
        f'{keyword.arg} in {spec!r} is not a literal; {form}'
      ) from None
  return node.func.id, kwargs


def imported(spec: str) -> str:
  """Imports the module of `module:name(...)`; returns the rest of the spec.

  Args:
    spec: with or without a module.

  Raises:
    errors.SpecError: the module cannot be imported.
  """
  match = re.fullmatch(r'\s*([A-Za-z_][\w.]*)\s*:(.*)', str(spec), re.S)
  if not match:
    return spec
  module, rest = match.groups()
  try:
    importlib.import_module(module)
  except Exception as error:  # Whatever is wrong in the user's own file.
    raise errors.SpecError(
      f'cannot import {module!r} of {spec!r}, {type(error).__name__}: {error}; '
      'it is looked for on PYTHONPATH, and by lengen in the current folder'
    ) from error
  return rest


def keys(
  entry: type, fixed: Iterable[str] = ()
) -> dict[str, dataclasses.Field]:
  """The keys that a spec of the dataclass `entry` takes, with their fields.

  A key is the name of its field, or the field's metadata 'key' where the name
  would hide something of the class.
  """
  hidden = {'parent', 'name', 'make_param', *fixed}
  return {
    field.metadata.get('key', field.name): field
    for field in dataclasses.fields(entry)
    if field.init and field.name not in hidden
  }


def build(
  kind: str, registry: Mapping[str, type], spec: str, **fixed: Any
) -> Any:
  """Builds what a spec names.

  Args:
    kind: what the registry holds, for messages.
    registry: dict from name to dataclass.
    spec: the spec string, perhaps with a module.
    **fixed: fields that the caller sets and that no spec may name.

  Returns:
    An instance of the class the spec names.

  Raises:
    errors.SpecError: a module that cannot be imported, unknown name, unknown
      key, or a value of a wrong type.
  """
  entry_name, kwargs = parse(imported(spec))
  if entry_name not in registry:
    hint = '; one of your own is module:name' * (kind in _OPEN)
    raise errors.SpecError(errors.one_of(kind, entry_name, registry) + hint)
  entry = registry[entry_name]
  valid = keys(entry, fixed)
  values = {}
  for key, value in kwargs.items():
    if key not in valid:
      if not valid:
        raise errors.SpecError(f'{entry_name} takes no keys, got {key!r}')
      raise errors.SpecError(errors.one_of(f'key of {entry_name}', key, valid))
    values[valid[key].name] = _checked(entry_name, key, valid[key], value)
  return entry(**fixed, **values)


def name(entry: Any) -> str:
  """The name of a class, or of an instance's, as specs have it: snake_case."""
  cls = entry if isinstance(entry, type) else type(entry)
  return re.sub('(?<=[a-z])(?=[A-Z])', '_', cls.__name__).lower()


def describe(instance: Any) -> str:
  """The spec of an instance: its name, and the keys that are not default.

  Fields without a default are no keys: whoever builds the instance sets them.
  """
  values = {
    key: getattr(instance, field.name)
    for key, field in keys(type(instance), ('width',)).items()
    if field.default is not dataclasses.MISSING
    and getattr(instance, field.name) != field.default
  }
  text = ', '.join(f'{key}={value!r}' for key, value in values.items())
  return f'{name(instance)}({text})' if text else name(instance)


def register(
  kind: str, registry: dict[str, Any], name: str, entry: type
) -> None:
  """Adds `entry`, a dataclass, to `registry` under `name`.

  Raises:
    errors.SpecError: the name is taken by another class or is no identifier.
  """
  if not name.isidentifier():
    raise errors.SpecError(f'{kind} name {name!r} is not an identifier')
  if registry.get(name, entry) is not entry:
    raise errors.SpecError(f'{kind} {name!r} is registered already')
  registry[name] = entry


def check_types(section: str, instance: Any) -> None:
  """Raises unless the fields of a section of a config have their types.

  Args:
    section: its name, for the message.
    instance: of its dataclass, whose annotations are classes.

  Raises:
    errors.ConfigError: naming the field; a number that is not finite too.
  """
  for field in dataclasses.fields(instance):
    value = getattr(instance, field.name)
    kinds = getattr(field.type, '__args__', (field.type,))
    if not any(_is(value, kind) for kind in kinds):
      raise errors.ConfigError(
        f'{section}.{field.name} is {value!r}; it takes {_names(kinds)}'
      )


def _is(value: Any, kind: Any) -> bool:
  """Whether a value of a config is of a kind; numpy's numbers are numbers."""
  if kind is int:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if kind is float:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and math.isfinite(value)
  # A list serves where a tuple does.
  return isinstance(value, (tuple, list) if kind is tuple else kind)


def _names(kinds: Any) -> str:
  return ' or '.join(
    'None' if kind is type(None) else kind.__name__ for kind in kinds
  )


def _checked(name: str, key: str, field: Any, value: Any) -> Any:
  """`value` as the field's type takes it: an int serves where a float does."""
  kinds = getattr(field.type, '__args__', (field.type,))
  if type(value) in kinds:
    if isinstance(value, float) and not math.isfinite(value):
      raise errors.SpecError(f'{key} of {name} is {value}; it must be finite')
    return value
  if type(value) is int and float in kinds:
    return float(value)
  if isinstance(value, list) and tuple in kinds:
    return tuple(value)
  raise errors.SpecError(
    f'{key} of {name} is {value!r}; it takes {_names(kinds)}'
  )
