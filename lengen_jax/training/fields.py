"""Fields of a config: none missing, none unknown, none too small."""

import dataclasses

from lengen_jax import errors
from lengen_jax.models import config as model_config

# Field to its least value, None where it is no number.
OPTIMIZER = {
  'name': None,
  'learning_rate': None,
  'schedule': None,
  'warmup_steps': 0,
  'final_fraction': 0,
  'weight_decay': 0,
  'b1': 0,
  'b2': 0,
  'clip_norm': 0,
}

_HINTS = {
  'train.init_from': '; this config goes on from a run: set '
  "--config.train.init_from to its workdir, or to '' to start from nothing"
}


def check(config, sections, root, *, classes, without=()):
  """Raises on fields that are missing, unknown or too small.

  Args:
    config: a ConfigDict.
    sections: section to its fields.
    root: fields beside the sections; those that need not be there map to ''.
    classes: section to the dataclass whose fields it holds, beside 'model' and
      its ModelConfig.
    without: fields of ModelConfig that are not the config's to set.

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
  optional = {
    section: {f.name for f in fields if f.default is not dataclasses.MISSING}
    for section, fields in listed.items()
  }
  optional[''] = {key for key, least in root.items() if least == ''}
  for section, fields in known.items():
    values = config[section] if section else config
    prefix = f'{section}.' if section else ''
    for key in values:
      if key not in fields:
        raise errors.ConfigError(
          errors.one_of(
            'field of the config',
            prefix + key,
            [prefix + field for field in fields],
          )
        )
    needed = {*fields} - optional.get(section, set())
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
    for key, least in fields.items():
      if isinstance(least, int) and values[key] < least:
        raise errors.ConfigError(
          f'{prefix}{key} must be at least {least}, got {values[key]}'
        )
