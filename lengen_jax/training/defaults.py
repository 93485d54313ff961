"""Default configs, and helpers for config files."""

from collections.abc import Iterable, Mapping
import dataclasses
import difflib
from typing import Any

import ml_collections
from ml_collections import config_dict

from lengen_jax import data, errors
from lengen_jax.evaluation import config as eval_config
from lengen_jax.models import config as model_config
from lengen_jax.models import presets
from lengen_jax.training import config as training_config

# Fields by size that most experiments share.
_COMMON: dict[str, dict[str, Any]] = {
  'paper': {'eval.batch_tokens': 65536},
  'cpu': {'eval.batch_tokens': 16384},
  'tiny': {
    'train.steps': 8,
    'train.log_every': 4,
    'train.checkpoint_every': 4,
    'eval.batch_tokens': 1024,
  },
}
# Byte tokens, with the special ids of the vocabulary.
BYTES = {'model.vocab_size': 259, 'data.vocabulary': 'bytes'}


def get(**model: Any) -> ml_collections.ConfigDict:
  """Returns the default config of a run.

  Args:
    **model: fields of the model, for example those of a preset.

  Returns:
    A ConfigDict with the fields seed and positions and the sections model,
    data, eval, optimizer, mesh and train. Fields without default are
    placeholders.
  """
  config = ml_collections.ConfigDict()
  config.seed = 0
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


def get_task(task: str, preset: str) -> ml_collections.ConfigDict:
  """Returns the default config of a sweep over a generated task.

  Args:
    task: name of the task.
    preset: name of the model preset. The vocabulary follows from the task.
  """
  config = ml_collections.ConfigDict()
  config.task = task
  config.positions = 'standard'
  config.model = presets.get(preset)
  del config.model['vocab_size']
  config.model.attention_scale = 'none'
  config.train = _fields(training_config.TaskTrainConfig)
  config.optimizer = _fields(training_config.OptimizerConfig)
  # Relative to sweep.learning_rates.
  config.optimizer.update(
    learning_rate=1.0,
    schedule='constant',
    final_fraction=0.0,
    weight_decay=0.0,
    b2=0.999,
  )
  config.eval = _fields(training_config.TaskEvalConfig)
  config.sweep = _fields(training_config.SweepConfig)
  return config


def create(
  preset: str,
  size: str,
  sizes: Mapping[str, Mapping[str, Any]],
  *,
  remat: str = 'full',
) -> ml_collections.ConfigDict:
  """Returns the config of an experiment at one of its sizes.

  Sizes 'cpu' and 'tiny' have the small model presets of the same names. Other
  sizes have `preset`, in bfloat16 with scanned layers.

  Args:
    preset: name of the model preset of the large sizes.
    size: a key of `sizes`.
    sizes: dotted fields and their values by size. Those of 'paper' apply to all
      sizes.
    remat: `remat` of the large models.
  """
  if size in ('cpu', 'tiny'):
    config = get(**presets.get(size))
  else:
    large = dict(dtype='bfloat16', scan_layers=True, remat=remat)
    config = get(**presets.get(preset) | large)
  for name in dict.fromkeys(('paper', size)):
    overlay(config, _COMMON.get(name, {}))
    overlay(config, sizes[name])
  return config


def overlay(
  config: ml_collections.ConfigDict, values: Mapping[str, Any]
) -> None:
  """Sets fields of a config.

  Args:
    config: the ConfigDict.
    values: dotted fields, for example 'train.steps', and their values. None
      makes a field a placeholder, which the command line must set.
  """
  for key, value in values.items():
    *sections, field = key.split('.')
    section = config
    for name in sections:
      section = section[name]
    if value is None:
      value = config_dict.placeholder(section.get_type(field))
    section[field] = value


def table(unit: str, columns: Any, rows: Any) -> ml_collections.ConfigDict:
  """Returns `config.paper`: the figures of a paper for comparison.

  Args:
    unit: unit of the figures.
    columns: lengths or tasks.
    rows: pairs of a run and its figures, one per column.
  """
  return ml_collections.ConfigDict(
    dict(unit=unit, columns=tuple(columns), rows=tuple(rows))
  )


def choose(arg: str, *choices: Iterable[str]) -> list[str]:
  """Returns one word of each list of choices, from a config file's argument.

  Args:
    arg: comma-separated words, at most one of each list, in their order.
    *choices: lists of words; the first word of each is its default.

  Raises:
    errors.ConfigError: a word is unknown or out of order.
  """
  menus = [tuple(words) for words in choices]
  words = arg.split(',') if arg else []
  chosen = [
    words.pop(0) if words and words[0] in menu else menu[0] for menu in menus
  ]
  if words:
    order = ', then '.join(' or '.join(menu) for menu in menus)
    known = [word for menu in menus for word in menu]
    close = difflib.get_close_matches(words[0], known, n=1)
    hint = f'; did you mean {close[0]!r}?' if close else ';'
    raise errors.ConfigError(
      f'unknown or misplaced {words[0]!r}{hint} write {order}, each or none'
    )
  return chosen


def _fields(cls: type) -> ml_collections.ConfigDict:
  """Returns the fields of a dataclass; None becomes a typed placeholder."""
  fields = ml_collections.ConfigDict()
  for field in dataclasses.fields(cls):
    kinds = getattr(field.type, '__args__', (field.type,))
    value = None if field.default is dataclasses.MISSING else field.default
    if value is None:
      value = config_dict.placeholder(kinds[0])
    fields[field.name] = value
  return fields
