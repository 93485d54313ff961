"""A config with every field that a run takes, for config files to change."""

import dataclasses
import difflib
from typing import Any

import ml_collections
from ml_collections import config_dict

from lengen_jax import data
from lengen_jax import errors
from lengen_jax.evaluation import config as eval_config
from lengen_jax.models import config as model_config
from lengen_jax.training import config as training_config


def get(**model: Any) -> ml_collections.ConfigDict:
  """The defaults.

  Args:
    **model: fields of the model, for example those of a preset.

  Returns:
    A ConfigDict with sections model, data, eval, optimizer, mesh and train, and
    with seed and positions. Fields without a default are there and have no
    value.
  """
  config = ml_collections.ConfigDict()
  config.seed = 0
  # A position scheme; see `lengen list`.
  config.positions = 'standard'
  config.model = _fields(model_config.ModelConfig)
  config.model.encoding = 'fire'
  config.model.update(model)
  config.data = _fields(data.DataConfig)
  config.eval = _fields(eval_config.EvalConfig)

  config.optimizer = _fields(training_config.OptimizerConfig)
  config.mesh = _fields(training_config.MeshConfig)
  config.train = _fields(training_config.TrainConfig)
  return config


def choose(arg: str, *menus: tuple[str, ...]) -> list[str]:
  """Reads the argument of a config file, a comma list.

  Args:
    arg: a word of each menu or of none, in their order.
    *menus: tuples of words; the first of each is its default.

  Returns:
    A word of each menu.

  Raises:
    errors.ConfigError: a word is of no menu, or out of order.
  """
  words = arg.split(',') if arg else []
  chosen = [
    words.pop(0) if words and words[0] in menu else menu[0] for menu in menus
  ]
  if words:
    order = ', then '.join(' or '.join(menu) for menu in menus)
    known = sum(menus, ())
    close = difflib.get_close_matches(words[0], known, n=1)
    hint = f'; did you mean {close[0]!r}?' if close else ';'
    raise errors.ConfigError(
      f'unknown or misplaced {words[0]!r}{hint} write {order}, each or none'
    )
  return chosen


def _fields(cls):
  """Fields of a dataclass; those that are None keep their type."""
  fields = ml_collections.ConfigDict()
  for field in dataclasses.fields(cls):
    kinds = getattr(field.type, '__args__', (field.type,))
    value = None if field.default is dataclasses.MISSING else field.default
    if value is None:
      value = config_dict.placeholder(kinds[0])
    fields[field.name] = value
  return fields
