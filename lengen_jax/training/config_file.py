"""Config files: Python with a `get_config(arg)`, and values set beside."""

from collections.abc import Sequence
import importlib.util
import pathlib

from absl import flags
import ml_collections
from ml_collections import config_flags

import lengen_jax
from lengen_jax import errors


def load(text: str, overrides: Sequence[str]) -> ml_collections.ConfigDict:
  """Reads a config file and applies arguments to it.

  Args:
    text: 'FILE.py', or 'FILE.py:ARG' for what its `get_config` takes. A file
      configs/FILE.py that is not there is one of those of the package.
    overrides: list of '--config.KEY=VALUE'.

  Returns:
    A ConfigDict, locked.

  Raises:
    errors.ConfigError: no such file, a mistake in it, or no such field.
  """
  strange = [o for o in overrides if not o.startswith('--config.')]
  if strange:
    raise errors.ConfigError(
      f'unknown argument {strange[0]!r}; values of the config are set by '
      '--config.KEY=VALUE'
    )
  config = _run(text)
  values = flags.FlagValues()
  argv = ['lengen', *overrides]
  try:
    config_flags.DEFINE_config_dict(
      'config', config, flag_values=values, sys_argv=argv
    )
    values(argv)
  except (flags.Error, AttributeError, KeyError, TypeError) as error:
    # Of a KeyError in an AttributeError, the text and not its quotation.
    cause = error.args[0] if error.args else error
    unknown = isinstance(cause, KeyError)
    cause = cause.args[0] if unknown else cause
    reason = 'no field ' * unknown + ' '.join(str(cause).split())
    raise errors.ConfigError(f'config {text}: {reason}') from error
  return values.config


def folder():
  """Where the config files lie that come with the package."""
  package = pathlib.Path(lengen_jax.__file__).parent
  wheel, checkout = package / 'configs', package.parent / 'configs'
  return wheel if wheel.is_dir() else checkout


def _run(text):
  """The ConfigDict that FILE.py[:ARG] describes, locked."""
  name, _, arg = text.partition(':')
  path = pathlib.Path(name)
  if not path.is_file() and path.parts[:-1] == ('configs',):
    path = folder() / path.name
  if not path.is_file():
    raise errors.ConfigError(f'there is no config file {name}')
  spec = importlib.util.spec_from_file_location(path.stem, path)
  if spec is None:
    raise errors.ConfigError(f'config file {name} is no Python file')
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    config = module.get_config(arg)
    if not isinstance(config, ml_collections.ConfigDict):
      raise TypeError(f'get_config gave {config!r} and no ConfigDict')
    return config.lock()
  except Exception as error:  # Whatever is wrong in the user's own file.
    reason = f'{type(error).__name__}: {error}'
    raise errors.ConfigError(f'config {text}: {reason}') from error
