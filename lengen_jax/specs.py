"""Spec strings: `name` or `name(key=value, ...)` with literal values.

A spec names a class in a registry, which is a dict, and sets fields of it.
`module:name(...)` first imports the module, which registers the class. Another
process that reads the spec from a workdir therefore imports the module too.
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

# Kinds that users can register classes of.
_OPEN = ('encoding', 'position scheme', 'attention scale')


def split(
  text: str, separator: str = ',', keep_empty: bool = False
) -> list[str]:
  """Splits a text at separators outside of brackets and quotes.

  `split('rope(scale=4., base=1e4), nope')` is
  `['rope(scale=4., base=1e4)', 'nope']`.

  Args:
    text: the text.
    separator: one character.
    keep_empty: whether to keep empty parts.

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
    errors.SpecError: the spec has another form.
  """
  form = 'write name or name(key=value, ...) with literal values'
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
      raise errors.SpecError(f'{keyword.arg} occurs twice in {spec!r}')
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
    spec: a spec, with or without a module.

  Raises:
    errors.SpecError: the module cannot be imported.
  """
  match = re.fullmatch(r'\s*([A-Za-z_][\w.]*)\s*:(.*)', str(spec), re.S)
  if not match:
    return spec
  module, rest = match.groups()
  try:
    importlib.import_module(module)
  except Exception as error:  # Any error in the user's module.
    raise errors.SpecError(
      f'cannot import {module!r} of {spec!r}, {type(error).__name__}: {error}; '
      'it must be on PYTHONPATH or, for lengen, in the current folder'
    ) from error
  return rest


def keys(
  entry: type, fixed: Iterable[str] = ()
) -> dict[str, dataclasses.Field]:
  """Returns the keys of specs of the dataclass `entry`, with their fields.

  A key is the name of its field, or the field's metadata 'key' if an attribute
  of the class has that name.
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
  """Creates an instance of the class that a spec names.

  Args:
    kind: kind of the registry's classes, for messages.
    registry: dict from name to dataclass.
    spec: a spec, with or without a module.
    **fixed: fields that the caller sets, which are no keys of the spec.

  Raises:
    errors.SpecError: the module cannot be imported, the name or a key is
      unknown, or a value has the wrong type.
  """
  entry_name, kwargs = parse(imported(spec))
  if entry_name not in registry:
    hint = '; your own is written module:name' * (kind in _OPEN)
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
  """Returns the snake_case name of a class, or of the class of an instance."""
  cls = entry if isinstance(entry, type) else type(entry)
  return re.sub('(?<=[a-z])(?=[A-Z])', '_', cls.__name__).lower()


def describe(instance: Any) -> str:
  """Returns the spec of an instance, with the keys that differ from defaults.

  Fields without a default are not keys; the code that creates the instance sets
  them.
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
    errors.SpecError: another class has the name, or it is not an identifier.
  """
  if not name.isidentifier():
    raise errors.SpecError(f'{kind} name {name!r} is not an identifier')
  if registry.get(name, entry) is not entry:
    raise errors.SpecError(f'{kind} {name!r} is registered already')
  registry[name] = entry


def check_types(section: str, instance: Any) -> None:
  """Raises unless the fields of a section of a config have their types.

  Args:
    section: name of the section, for the message.
    instance: instance of its dataclass. Annotations are classes or unions.

  Raises:
    errors.ConfigError: a field has another type, or a number is not finite.
  """
  for field in dataclasses.fields(instance):
    value = getattr(instance, field.name)
    kinds = getattr(field.type, '__args__', (field.type,))
    if not any(_is(value, kind) for kind in kinds):
      raise errors.ConfigError(
        f'{section}.{field.name} is {value!r}; it takes {_names(kinds)}'
      )


def _is(value: Any, kind: Any) -> bool:
  """Returns whether a value has a type; numpy scalars count as numbers."""
  if kind is int:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if kind is float:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and math.isfinite(value)
  # Lists are accepted as tuples.
  return isinstance(value, (tuple, list) if kind is tuple else kind)


def _names(kinds: Any) -> str:
  return ' or '.join(
    'None' if kind is type(None) else kind.__name__ for kind in kinds
  )


def _checked(name: str, key: str, field: Any, value: Any) -> Any:
  """Returns the value in the field's type: ints become floats if needed."""
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
