"""Fields of a config: none missing, none unknown, none too small."""

import dataclasses
import math
import numbers

import ml_collections

from lengen_jax import errors
from lengen_jax.data import config as data_config
from lengen_jax.evaluation import config as eval_config
from lengen_jax.models import config as model_config
from lengen_jax.training import config as training_config

# Field to its least value, or its least and its limit, which it must stay
# below; None where it is no number.
OPTIMIZER = {
  'name': None,
  'learning_rate': 0,
  'schedule': None,
  'warmup_steps': 0,
  'final_fraction': 0,
  'weight_decay': 0,
  'b1': (0, 1),
  'b2': (0, 1),
  'clip_norm': 0,
}

# What the config of a run holds beside the fields of its dataclasses.
_RUN = {
  'optimizer': OPTIMIZER,
  'train': {
    'steps': 0,
    'log_every': 1,
    'checkpoint_every': 1,
    'keep_every': 0,
    'evaluate_every': 0,
    'max_skipped': 1,
    'stall_seconds': 0,
    'tensorboard': None,
    'wandb': None,
    'profile': None,
    'init_from': None,
  },
}
_RUN_CLASSES = {
  'data': data_config.DataConfig,
  'eval': eval_config.EvalConfig,
  'mesh': training_config.MeshConfig,
}

_HINTS = {
  'train.init_from': '; this config goes on from a run: set '
  '--config.train.init_from to its workdir, or to other weights, or to '
  "'' to start from nothing"
}
# What to say of a section that only configs of the other kind have.
_OTHER = {
  'sweep': 'this is the config of a sweep over a generated task; run it by '
  'lengen sweep',
  'data': 'this is the config of a model trained on data; run it by lengen '
  'train or lengen compare',
}


def check_run(config):
  """Raises unless a config is one of a run; loads neither jax nor the data.

  Args:
    config: a ConfigDict; see `defaults.get`. It may have the paper's figures.

  Raises:
    errors.ConfigError: naming a field.
  """
  root = {'positions': None, 'seed': (0, 2**32), 'paper': None}
  check(config, _RUN, root, classes=_RUN_CLASSES, optional=('paper',))


def check(config, sections, root, *, classes, without=(), optional=()):
  """Raises on fields that are missing, unknown or too small.

  Args:
    config: a ConfigDict.
    sections: section to its fields.
    root: fields beside the sections.
    classes: section to the dataclass whose fields it holds, beside 'model' and
      its ModelConfig.
    without: fields of ModelConfig that are not the config's to set.
    optional: fields of `root` that need not be there.

  Raises:
    errors.ConfigError: naming the field.
  """
  classes = {'model': model_config.ModelConfig, **classes}
  listed = {
    section: [f for f in dataclasses.fields(cls) if f.name not in without]
    for section, cls in classes.items()
  }
  sections = {
    **{
      section: {field.name: None for field in fields}
      for section, fields in listed.items()
    },
    **sections,
  }
  known = {'': dict.fromkeys(sections) | root, **sections}
  spared = {
    section: {f.name for f in fields if f.default is not dataclasses.MISSING}
    for section, fields in listed.items()
  } | {'': {*optional}}
  for section, fields in known.items():
    # The root comes first, so that a section that is not there is named.
    values = config[section] if section else config
    prefix = f'{section}.' if section else ''
    if not isinstance(values, ml_collections.ConfigDict):
      raise errors.ConfigError(
        f'{section} of the config is {values!r} and no section of it'
      )
    for key in values:
      if key not in fields:
        if prefix + key in ('sweep', 'data'):
          raise errors.ConfigError(_OTHER[key])
        raise errors.ConfigError(
          errors.one_of(
            'field of the config',
            prefix + key,
            [prefix + field for field in fields],
          )
        )
    needed = {*fields} - spared.get(section, set())
    lacking = needed - {*values}
    # A field without a value is one that a config file leaves to its user.
    lacking |= {
      key
      for key in needed & {*values}
      if values[key] is None and (section in listed or section == 'train')
    }
    for key in sorted(lacking):
      hint = _HINTS.get(prefix + key, '')
      raise errors.ConfigError(f'the config lacks {prefix}{key}{hint}')
    for key, limits in fields.items():
      if limits is not None:
        _check_number(prefix + key, values[key], limits)


def _check_number(name, value, limits):
  """Raises unless a value is a number within its limits."""
  least, limit = limits if isinstance(limits, tuple) else (limits, math.inf)
  if not isinstance(value, numbers.Real) or not math.isfinite(value):
    raise errors.ConfigError(f'{name} must be a number, got {value!r}')
  if not least <= value < limit:
    below = '' if limit == math.inf else f' and below {limit}'
    raise errors.ConfigError(
      f'{name} must be at least {least}{below}, got {value}'
    )
