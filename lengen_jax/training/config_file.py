"""Config files: Python files with `get_config(arg)`, and overrides."""

from collections.abc import Sequence
import difflib
import pathlib
import re
import runpy
import traceback
from typing import Any

from absl import flags
import ml_collections
from ml_collections import config_flags

import lengen_jax
from lengen_jax import errors

_KINDS = {
  bool: 'true or false',
  int: 'a whole number',
  float: 'a number',
  tuple: "several values, for example '(64, 128)'",
}


def load(text: str, overrides: Sequence[str]) -> ml_collections.ConfigDict:
  """Returns the locked ConfigDict of a config file, with overrides applied.

  `text` is 'FILE.py' or 'FILE.py:ARG', where ARG is the argument of its
  `get_config`. If configs/FILE.py does not exist, the package's file of that
  name is read. `overrides` are '--config.KEY=VALUE'.

  Raises:
    errors.ConfigError: the file is missing or raises, or an override has an
      unknown field or an invalid value.
  """
  config = _run(text)
  if not overrides:  # Flags would take most of the time.
    return config
  argv = ['lengen', *overrides]
  for override in overrides:
    if not override.startswith('--config.'):
      fix = 'values of the config are set by --config.KEY=VALUE'
      if '.py' in override:
        fix = f'write --config={override}'
      raise errors.ConfigError(f'unknown argument {override!r}; {fix}')
    _check_key(config, override.partition('=')[0].removeprefix('--config.'))
  values = flags.FlagValues()
  try:
    config_flags.DEFINE_config_dict(
      'config', config, flag_values=values, sys_argv=argv
    )
    values(argv)
  except (flags.Error, TypeError, ValueError) as error:
    raise errors.ConfigError(_wrong_value(config, error)) from error
  return values.config


def folder() -> pathlib.Path:
  """Returns the folder of the package's config files."""
  package = pathlib.Path(lengen_jax.__file__).parent
  wheel, checkout = package / 'configs', package.parent / 'configs'
  return wheel if wheel.is_dir() else checkout


def _check_key(config: ml_collections.ConfigDict, key: str) -> None:
  """Raises unless a dotted key names a field of the config."""
  section: Any = config
  prefix = ''
  for part in key.split('.'):
    if not isinstance(section, ml_collections.ConfigDict):
      raise errors.ConfigError(
        f'--config.{key}: {prefix[:-1]} is a value and has no fields'
      )
    if part not in section:
      valid = [prefix + field for field in section]
      what = 'field of the config'
      message = errors.one_of(what, prefix + part, valid)
      _, _, last = key.rpartition('.')
      for name in (last, *(f'{section}.{last}' for section in config)):
        if _is_value(config, name):
          message += f'; or --config.{name}'
      raise errors.ConfigError(message)
    section, prefix = section.get(part), f'{prefix}{part}.'
  if isinstance(section, ml_collections.ConfigDict):
    fields = ', '.join(f'--config.{key}.{field}' for field in section)
    raise errors.ConfigError(
      f'--config.{key} is a section; set its fields: {fields}'
    )


def _is_value(config: ml_collections.ConfigDict, key: str) -> bool:
  """Returns whether a dotted key names a field that is not a section."""
  section, _, field = key.rpartition('.')
  fields = config.get(section) if section else config
  return (
    isinstance(fields, ml_collections.ConfigDict)
    and field in fields
    and not isinstance(fields.get(field), ml_collections.ConfigDict)
  )


def _wrong_value(config: ml_collections.ConfigDict, error: Exception) -> str:
  """Returns the message for an override whose value has the wrong type."""
  reason = ' '.join(str(error).split())
  match = re.search(r'(--config\.([\w.]+)(=.*?)?)(: |$)', reason)
  if match is None:
    return reason
  argument, key, value, _ = match.groups()
  if value is None:
    return f'{argument} lacks a value; write {argument}=VALUE'
  section, _, field = key.rpartition('.')
  for part in filter(None, section.split('.')):
    config = config[part]
  kind = _KINDS.get(config.get_type(field), 'another kind of value')
  return f'{argument}: {key} takes {kind}'


def _run(text: str) -> ml_collections.ConfigDict:
  """Returns the locked ConfigDict of FILE.py[:ARG]."""
  name, _, arg = text.partition(':')
  path = pathlib.Path(name)
  if not path.is_file() and path.parts[:-1] == ('configs',):
    path = folder() / path.name
  if not path.is_file():
    others = [file.stem for file in path.parent.glob('*.py')]
    hint = ''
    for close in difflib.get_close_matches(path.stem, others, n=1):
      hint = f'; did you mean {pathlib.Path(name).with_stem(close)}?'
    raise errors.ConfigError(f'there is no config file {name}{hint}')
  if path.suffix != '.py':
    raise errors.ConfigError(f'config file {name} is not a Python file')
  try:
    file = runpy.run_path(str(path.absolute()), run_name=path.stem)
    if 'get_config' not in file:
      raise errors.ConfigError('it has no function get_config(arg)')
    config = file['get_config'](arg)
    if not isinstance(config, ml_collections.ConfigDict):
      kind = type(config).__name__
      raise errors.ConfigError(
        f'get_config returned a {kind}, not an ml_collections.ConfigDict'
      )
    return config.lock()
  except errors.LengenError as error:
    raise errors.ConfigError(f'config {text}: {error}') from error
  except (Exception, SystemExit) as error:  # Any error in the file.
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == str(path.absolute())]
    where = f'line {lines[-1]}: ' if lines else ''
    reason = f'{where}{type(error).__name__}: {error}'
    raise errors.ConfigError(f'config {text}: {reason}') from error
