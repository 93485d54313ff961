"""Default configs, and helpers for config files."""

from collections.abc import Iterable, Mapping
import dataclasses
import difflib
import functools
import itertools
import operator
from typing import Any

import ml_collections
from ml_collections import config_dict

from lengen_jax import errors
from lengen_jax.models import presets
from lengen_jax.training import config as training_config

SIZES = ('paper', 'small', 'cpu', 'tiny')
# Fields of experiments are tables: a list has the value of each size, and `...`
# where a size has the value of 'paper' or, for 'paper', the default. None makes
# a field a placeholder, which the command line must set.
_COMMON: dict[str, Any] = {
  'train.steps': [..., ..., ..., 8],
  'train.log_every': [..., ..., ..., 4],
  'train.checkpoint_every': [..., ..., ..., 4],
  'eval.batch_tokens': [65536, ..., 16384, 1024],
}
# Finetuning of the models of configs/fire_c4.py; train.init_from names one.
FINETUNING: dict[str, Any] = {
  'model.encoding': 'fire',
  # Without dropout where the steps are too few to overfit.
  'model.dropout_rate': [0.1, ..., 0.0, ...],
  'model.num_layers': [..., 4, ..., ...],
  'model.vocab_size': [..., ..., 259, 259],
  'data.source': 'seqio',
  'data.vocabulary': ['data/c4_50304.model', ..., 'bytes', 'bytes'],
  'optimizer.schedule': 'constant',
  'optimizer.weight_decay': 0.1,
  'optimizer.b2': 0.95,
  'train.init_from': None,
  'train.log_every': [..., ..., ..., 2],
}


def get(**model: Any) -> ml_collections.ConfigDict:
  """Returns the default config of a run.

  Its sections are those of `config.RunConfig`; fields without default are
  placeholders. `model` are fields of the model, for example of a preset.
  """
  config = ml_collections.ConfigDict({'seed': 0, 'positions': 'standard'})
  config.update(sections(training_config.RunConfig))
  config.model.encoding = 'fire'
  config.model.update(model)
  return config


def sections(kind: type) -> dict[str, ml_collections.ConfigDict]:
  """Returns the default sections of `config.RunConfig` or `TaskConfig`.

  The latter have no model.
  """
  return {
    section.name: _fields(section.type)
    for section in dataclasses.fields(kind)
    if dataclasses.is_dataclass(section.type)
  }


def get_task(
  task: str, preset: str, size: str, fields: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """Returns the config of a sweep over a generated task at one of its sizes.

  The vocabulary follows from the task. See `create` for `fields`.
  """
  config = ml_collections.ConfigDict(
    {'task': task, 'positions': 'standard', 'paper': ()}
  )
  config.update(sections(training_config.TaskConfig))
  own = {'attention_scale': 'none', 'contextual_positions': 'none'}
  config.model = presets.get(preset) | own
  del config.model['vocab_size']
  # Relative to sweep.learning_rates.
  config.optimizer.update(learning_rate=1.0, schedule='constant', b2=0.999)
  config.optimizer.update(final_fraction=0.0, weight_decay=0.0)
  overlay(config, size, fields)
  return config


def create(
  preset: str, size: str, fields: Mapping[str, Any], *, remat: str = 'full'
) -> ml_collections.ConfigDict:
  """Returns the config of an experiment at one of its sizes.

  Sizes 'cpu' and 'tiny' have the model presets of the same names. Other sizes
  have `preset`, in bfloat16 with scanned layers and `remat`. `fields` are
  values by dotted field; a list has one for each of SIZES.
  """
  if size in ('cpu', 'tiny'):
    config = get(**presets.get(size))
  else:
    large = dict(dtype='bfloat16', scan_layers=True, remat=remat)
    config = get(**presets.get(preset) | large)
  overlay(config, size, _COMMON, fields)
  return config


def overlay(
  config: ml_collections.ConfigDict, size: str, *tables: Mapping[str, Any]
) -> None:
  """Sets fields to the values of a size, or else of 'paper'.

  Later tables override earlier ones. A list in a table has a value for each of
  SIZES.

  Raises:
    errors.ConfigError: the size is unknown.
  """
  if size not in SIZES:
    raise errors.ConfigError(errors.one_of('size', size, SIZES))
  for name in dict.fromkeys(('paper', size)):
    for key, value in itertools.chain(*(table.items() for table in tables)):
      if isinstance(value, list):
        value = value[SIZES.index(name)]
      elif name != 'paper':
        continue
      *sections, field = key.split('.')
      section = functools.reduce(operator.getitem, sections, config)
      if value is None:
        section[field] = config_dict.placeholder(section.get_type(field))
      elif value is not ...:
        section[field] = value


def table(unit: str, columns: Any, rows: Any) -> ml_collections.ConfigDict:
  """Returns `config.paper`: figures of a paper in some unit.

  `columns` are lengths or tasks. `rows` are pairs of a run and its figures.
  """
  figures = dict(unit=unit, columns=tuple(columns), rows=tuple(rows))
  return ml_collections.ConfigDict(figures)


def choose(arg: str, *choices: Iterable[str]) -> list[str]:
  """Returns one word of each list and a size, from a config file's argument.

  `arg` has comma-separated words, at most one of each list, in their order. The
  first word of a list is its default.

  Raises:
    errors.ConfigError: a word is unknown or out of order.
  """
  menus = [tuple(words) for words in (*choices, SIZES)]
  words = arg.split(',') if arg else []
  chosen = [
    words.pop(0) if words and words[0] in menu else menu[0] for menu in menus
  ]
  if words:
    order = ''.join(f'[{"|".join(menu)}],' for menu in menus)[:-1]
    known = [word for menu in menus for word in menu]
    close = difflib.get_close_matches(words[0], known, n=1)
    is_typo = close and words[0] not in known
    hint = f'; did you mean {close[0]!r}?' if is_typo else ';'
    raise errors.ConfigError(
      f'{words[0]!r} is unknown or out of order{hint} the argument is {order}, '
      'each part optional'
    )
  return chosen


def _fields(cls: Any) -> ml_collections.ConfigDict:
  """Returns the fields of a dataclass; None becomes a typed placeholder.

  A field that takes one value or a tuple of values accepts any literal, unless
  the values are strings.
  """
  fields = ml_collections.ConfigDict()
  for field in dataclasses.fields(cls):
    value: Any = None
    if field.default is not dataclasses.MISSING:
      value = field.default
    kinds = getattr(field.type, '__args__', (field.type,))
    kind = object if tuple in kinds[1:] and str not in kinds else kinds[0]
    if value is None or kind is object:
      value = config_dict.FieldReference(value, field_type=kind)
    fields[field.name] = value
  return fields
