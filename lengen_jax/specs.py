"""Spec strings: `name` or `name(key=value, ...)` with literal values.

A spec names a class in a registry, which is a dict, and sets fields of it.
`module:name(...)` first imports the module, which registers the class. Another
process that reads the spec from a workdir therefore imports the module too.
"""

import ast
from collections.abc import Iterable, Mapping
import dataclasses
import importlib
import itertools
import math
import numbers
import operator
import re
from typing import Any

import numpy as np

from lengen_jax import errors

_MAX_INTEGER = 2**31 - 1
# Names of registered classes.
_registered: dict[type, str] = {}
# Kinds that users can register classes of.
_OPEN = (
  'encoding',
  'position scheme',
  'contextual position scheme',
  'attention scale',
)


def split(
  text: str, separator: str = ',', keep_empty: bool = False
) -> list[str]:
  """Splits a string at a character, except in brackets and quotes.

  `split('rope(scale=4., base=1e4), nope')` is
  `['rope(scale=4., base=1e4)', 'nope']`.

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


def cycle(values: Any) -> tuple[Any, ...]:
  """Returns the values of a field that are cycled over the layers.

  `values` is one value, or a tuple or list of them. A string is specs joined by
  commas, and `N*spec` repeats a spec: `cycle('2*rope, nope')` is
  `('rope', 'rope', 'nope')`.

  Raises:
    errors.SpecError: a string cannot be split, or N is not a positive integer.
  """
  if isinstance(values, tuple | list):
    return tuple(itertools.chain.from_iterable(map(cycle, values)))
  if not isinstance(values, str):
    return (values,)
  found: list[str] = []
  for part in split(values):
    *counts, spec = split(part, '*', keep_empty=True)
    count = counts[0] if counts else '1'
    if len(counts) > 1 or not spec or not count.isdecimal() or int(count) < 1:
      raise errors.SpecError(
        f'cannot repeat {part!r}; write N*spec, with a whole number N from 1 on'
      )
    found += [spec] * int(count)
  return tuple(found)


def parts(spec: str) -> list[str]:
  """Splits a spec, or two that are joined by `+`, into a list of specs.

  Of two, the first acts at the input of a model and the second in attention.

  Raises:
    errors.SpecError: there are more parts, or one is empty.
  """
  if not isinstance(spec, str):
    return [spec]
  found = split(spec, '+', keep_empty=True)
  if len(found) > 2 or (len(found) == 2 and not all(found)):
    raise errors.SpecError(
      f'cannot read {spec!r}; two parts are written at_input + in_attention'
    )
  return found


def parse(spec: str) -> tuple[str, dict[str, Any]]:
  """Parses `name` or `name(key=value, ...)` into (name, keyword arguments).

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
  """Returns the dataclass field of each key that a spec accepts.

  A key is the name of its field, or the field's metadata 'key'.
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
    kind: what the registry contains, for messages.
    registry: dict from name to dataclass.
    spec: a spec, with or without a module.
    **fixed: fields that the caller sets, which are not keys of the spec.

  Raises:
    errors.SpecError: the module cannot be imported, the name or a key is
      unknown, or a value has the wrong type or is out of range.
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
    kinds = _kinds(valid[key])
    if type(value) is int and int not in kinds and float in kinds:
      value = float(value)
    if isinstance(value, list):
      value = tuple(value)
    if not any(_is(value, kind) for kind in kinds):
      raise errors.SpecError(
        f'{key} of {entry_name} is {value!r}; it takes {_names(kinds)}'
      )
    values[valid[key].name] = value
  return entry(**fixed, **values)


def check_ranges(instance: Any) -> None:
  """Checks fields against `ranges`, an attribute of their class.

  `ranges` maps a key to a tuple of the valid values, or to bounds such as
  '>= 1', '> 0 and <= 1', 'even and >= 2', 'square and >= 4', 'None or >= 1' or
  '> {0.low}', where `low` is another field. Integers must fit 32 bits.

  Raises:
    errors.SpecError: a value is out of range.
  """
  fields = keys(type(instance))
  for key, field in fields.items():
    value = getattr(instance, field.name)
    whole = isinstance(value, numbers.Integral) and float not in _kinds(field)
    if whole and abs(value) > _MAX_INTEGER:
      raise errors.SpecError(
        f'{key} of {name(instance)} is {value}; it must be <= {_MAX_INTEGER}'
      )
  for key, valid in instance.ranges.items():
    value = getattr(instance, fields[key].name)
    label = f'{key} of {name(instance)}'
    if isinstance(valid, tuple):
      if value not in valid:
        raise errors.SpecError(errors.one_of(label, value, map(str, valid)))
    elif not _within(value, bounds := valid.format(instance)):
      raise errors.SpecError(f'{label} is {value!r}; it must be {bounds}')


def _within(value: float | None, bounds: str) -> bool:
  if value is None:
    return bounds.startswith('None')
  compare = {'>': operator.gt, '>=': operator.ge, '<=': operator.le}
  for bound in bounds.removeprefix('None or ').split(' and '):
    sign, _, limit = bound.partition(' ')
    if sign == 'even':
      inside = value % 2 == 0
    elif sign == 'square':
      inside = value >= 0 and math.isqrt(int(value)) ** 2 == value
    else:
      inside = compare[sign](value, float(limit))
    if not inside:
      return False
  return True


def name(entry: Any) -> str:
  """Returns the name of a class in specs, or of the class of an instance.

  It is the registered name, or the class's own name in snake_case.
  """
  cls = entry if isinstance(entry, type) else type(entry)
  if cls in _registered:
    return _registered[cls]
  return re.sub('(?<=[a-z])(?=[A-Z])', '_', cls.__name__).lower()


def describe(instance: Any) -> str:
  """Returns the spec of an instance, with the keys that differ from defaults.

  Fields without a default are not keys.
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
  kind: str, registry: dict[str, Any], name: str, entry: type, base: type
) -> None:
  """Adds `entry`, a dataclass derived from `base`, to `registry` under `name`.

  Raises:
    errors.SpecError: `entry` is not such a class, `name` is not an identifier,
      or another class has it.
  """
  if not (isinstance(entry, type) and issubclass(entry, base)):
    raise errors.SpecError(
      f'{entry!r} is not a subclass of {base.__name__}, the base of each {kind}'
    )
  if not name.isidentifier():
    raise errors.SpecError(f'{kind} name {name!r} is not an identifier')
  if registry.get(name, entry) is not entry:
    raise errors.SpecError(
      f'{kind} {name!r} is registered already, as {registry[name]!r}; choose '
      'another name, or restart Python after a change of its class'
    )
  if entry not in registry.values():
    _registered[entry] = name
  registry[name] = entry


def check_types(section: str, instance: Any) -> None:
  """Checks that the fields of a section of a config have their types.

  Raises:
    errors.ConfigError: a field has another type, or a number is not finite.
  """
  for field in dataclasses.fields(instance):
    value = getattr(instance, field.name)
    kinds = _kinds(field)
    if not any(_is(value, kind) for kind in kinds):
      raise errors.ConfigError(
        f'{section}.{field.name} is {value!r}; it takes {_names(kinds)}'
      )


def plain(value: Any) -> Any:
  """Returns numpy scalars as Python's, also those in a tuple or a list."""
  if isinstance(value, (tuple, list)):
    return type(value)(map(plain, value))
  return value.item() if isinstance(value, np.generic) else value


def _is(value: Any, kind: Any) -> bool:
  """Returns whether a value has a type; numpy scalars count as numbers."""
  if kind is int:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if kind is float:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and math.isfinite(value)
  # Lists are accepted as tuples.
  return isinstance(value, (tuple, list) if kind is tuple else kind)


def _kinds(field: Any) -> tuple[Any, ...]:
  """Returns the classes of a field's annotation, a class or a union."""
  return getattr(field.type, '__args__', (field.type,))


def _names(kinds: Any) -> str:
  named = {type(None): 'None', float: 'finite float'}
  return ' or '.join(named.get(kind, kind.__name__) for kind in kinds)
