"""Reads the sections of a config into their dataclasses."""

from collections.abc import Collection, Mapping
import dataclasses
from typing import Any

import ml_collections

from lengen_jax import errors
from lengen_jax.data import config as data_config
from lengen_jax.evaluation import config as eval_config
from lengen_jax.models import config as model_config
from lengen_jax.training import config as training_config


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """The sections of the config of a run."""

  model: model_config.ModelConfig
  data: data_config.DataConfig
  eval: eval_config.EvalConfig
  optimizer: training_config.OptimizerConfig
  mesh: training_config.MeshConfig
  train: training_config.TrainConfig


@dataclasses.dataclass(frozen=True)
class TaskConfig:
  """The sections of the config of a sweep over a generated task.

  `model` has the fields of ModelConfig without vocabulary and output size, and
  its encoding may be the name of a recurrent model.
  """

  model: dict[str, Any]
  optimizer: training_config.OptimizerConfig
  train: training_config.TaskTrainConfig
  eval: training_config.TaskEvalConfig
  sweep: training_config.SweepConfig


# Hints for sections that belong to the other kind of config.
_OTHER_KIND = {
  'sweep': 'this is the config of a sweep over a generated task; run it with '
  'lengen sweep',
  'data': 'this is the config of a model trained on data; run it with lengen '
  'train or lengen compare',
}
# Code reads every field of these sections from the ConfigDict.
_COMPLETE = ('optimizer', 'train')


def check_run(config: ml_collections.ConfigDict) -> RunConfig:
  """Returns the sections of the config of a run; loads neither jax nor data.

  Args:
    config: a ConfigDict; see `defaults.get`. `paper`, the figures of a paper,
      is optional.

  Raises:
    errors.ConfigError: a field is missing, unknown or invalid; the message
      names it.
  """
  sections = {f.name: f.type for f in dataclasses.fields(RunConfig)}
  _check_fields(config, sections, ('positions', 'seed', 'paper'), {'paper'})
  seed = config.seed
  if not isinstance(seed, int | float) or not 0 <= seed < 2**32:
    raise errors.ConfigError(
      f'seed must be a number, at least 0 and below {2**32}, got {seed!r}'
    )
  return RunConfig(**_build(config, sections))


def check_task(config: ml_collections.ConfigDict) -> TaskConfig:
  """Returns the sections of the config of a sweep over a generated task.

  Args:
    config: a ConfigDict; see configs/chomsky.py.

  Raises:
    errors.ConfigError: see `check_run`.
  """
  sections = {f.name: f.type for f in dataclasses.fields(TaskConfig)}
  checked = {**sections, 'model': model_config.ModelConfig}
  _check_fields(
    config,
    checked,
    ('task', 'positions', 'paper'),
    without=('vocab_size', 'output_size'),
  )
  del sections['model']
  return TaskConfig(config.model.to_dict(), **_build(config, sections))


def _build(
  config: ml_collections.ConfigDict, sections: Mapping[str, Any]
) -> dict[str, Any]:
  return {
    name: section(**config[name].to_dict())
    for name, section in sections.items()
  }


def _check_fields(
  config: ml_collections.ConfigDict,
  sections: Mapping[str, Any],
  root: Collection[str],
  optional: Collection[str] = (),
  without: Collection[str] = (),
) -> None:
  """Raises on fields of a config that are missing or unknown.

  Args:
    config: the ConfigDict.
    sections: dataclass of each section.
    root: names of the fields outside sections.
    optional: fields in `root` that may be missing.
    without: fields of the model that cannot be set.
  """
  known: dict[str, list[str]] = {'': [*sections, *root]}
  needed = {'': {*sections, *root} - {*optional}}
  for name, section in sections.items():
    fields = [f for f in dataclasses.fields(section) if f.name not in without]
    known[name] = [field.name for field in fields]
    needed[name] = {
      field.name
      for field in fields
      if field.default is dataclasses.MISSING or name in _COMPLETE
    }
  # The root comes first: a missing section is reported before its fields.
  for name, fields_of_section in known.items():
    values = config[name] if name else config
    prefix = f'{name}.' if name else ''
    if not isinstance(values, ml_collections.ConfigDict):
      raise errors.ConfigError(f'{name} must be a section, got {values!r}')
    for key in values:
      if key in fields_of_section:
        continue
      if prefix + key in _OTHER_KIND:
        raise errors.ConfigError(_OTHER_KIND[key])
      raise errors.ConfigError(
        errors.one_of(
          'field of the config',
          prefix + key,
          [prefix + field for field in fields_of_section],
        )
      )
    # Placeholders of required fields have the value None.
    for key in sorted(needed[name]):
      missing = key not in values
      if missing or (name not in ('', *_COMPLETE) and values[key] is None):
        raise errors.ConfigError(f'the config lacks {prefix}{key}')
