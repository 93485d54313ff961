"""Runs of a comparison or a sweep: parsing, names, configs and folders."""

import copy
import hashlib
import importlib.metadata
import platform
import re
from typing import NamedTuple

import ml_collections

from lengen_jax import __version__, errors, specs
from lengen_jax.positions import contextual

_PARTS = ('encoding', 'positions', 'attention_scale')


class Run(NamedTuple):
  """Specs of a run.

  Its model is tested with the specs of `tested_as`, if it is not None.
  """

  encoding: str
  positions: str
  attention_scale: str
  tested_as: 'Run | None' = None

  def __str__(self) -> str:
    return '|'.join(self[:3])


def parse(text: str, config: ml_collections.ConfigDict) -> list[Run]:
  """Parses `encoding|positions|attention_scale; ...`, later parts optional.

  Positions are a position scheme or a contextual one. Several encodings or
  scales, joined by commas, are cycled over the layers. The values of omitted
  parts are those of `config`. `log_n` without keys has the training length of
  the data. `RUN => RUN` is a run whose model is tested with the specs of the
  second.

  Raises:
    errors.SpecError: a run is malformed or repeated, or there is none.
  """
  runs: list[Run] = []
  for one in specs.split(text, ';'):
    trained, *tested = (_parse(side, config) for side in one.split('=>'))
    if len(tested) > 1:
      raise errors.SpecError(f'{one!r} has more than one =>')
    run = trained
    if tested and tested[0] != trained:
      run = trained._replace(tested_as=tested[0])
    if run in runs:
      raise errors.SpecError(f'the run {one!r} is given twice')
    runs.append(run)
  if not runs:
    raise errors.SpecError(
      'no runs; give one or more by --runs, or sweep.runs of a sweep, for '
      "example 'fire; alibi; rope'"
    )
  return runs


def _parse(text: str, config: ml_collections.ConfigDict) -> Run:
  """Parses one side of a run."""
  parts = specs.split(text, '|', keep_empty=True)
  if len(parts) > len(_PARTS):
    raise errors.SpecError(
      f'{text.strip()!r} has {len(parts)} parts; a run is {"|".join(_PARTS)}'
    )
  if not any(parts):
    raise errors.SpecError('a run is missing before or after =>')
  parts += [''] * (len(_PARTS) - len(parts))
  default, (encoding, own, scale) = of(config), parts
  return Run(
    encoding or default.encoding,
    own or default.positions,
    _with_length(scale, config) or default.attention_scale,
  )


def _with_length(scale: str, config: ml_collections.ConfigDict) -> str:
  """Gives logit scales `log_n` the training length of the data, by default."""
  if 'data' not in config:
    return scale
  own = f'log_n(train_length={config.data.train_length})'
  return re.sub(r'(?<![\w.:])log_n(?=\s*(,|$))', own, scale)


def of(config: ml_collections.ConfigDict) -> Run:
  """Returns the run that a config describes; see `configure`."""
  model = config.model
  return Run(model.encoding, positions(config), model.attention_scale)


def positions(config: ml_collections.ConfigDict) -> str:
  """Returns the spec of the positions of a config: a scheme or contextual.

  Raises:
    errors.CombinationError: the config has both.
  """
  # Workdirs of earlier versions have no contextual positions.
  own = config.model.get('contextual_positions', 'none')
  if own == 'none':
    return config.positions
  if config.positions != 'standard':
    raise errors.CombinationError(
      f'{own} computes positions from contents and {config.positions} from '
      'indices; use one of them'
    )
  return own


def name(run: Run) -> str:
  """Returns the name of a run: its encoding, then parts other than defaults."""
  rest = [run.positions] if run.positions != 'standard' else []
  rest += [run.attention_scale] if run.attention_scale != 'none' else []
  text = ' | '.join([run.encoding, *rest])
  return f'{text} => {name(run.tested_as)}' if run.tested_as else text


def versions() -> dict[str, str]:
  """Returns the versions of Python and of the packages that compute."""
  packages = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')
  return {
    'python': platform.python_version(),
    'lengen_jax': __version__,
    **{package: importlib.metadata.version(package) for package in packages},
  }


def configure(
  config: ml_collections.ConfigDict, run: Run
) -> ml_collections.ConfigDict:
  """Returns the ConfigDict that trains a run."""
  each = copy.deepcopy(config)
  model = each.model
  model.encoding, each.positions, model.attention_scale = run[:3]
  model.contextual_positions = 'none'
  if contextual.is_contextual(run.positions):
    each.positions, model.contextual_positions = 'standard', run.positions
  return each


def folder(run: Run) -> str:
  """Returns the name of the folder of a trained run."""
  trained = run._replace(tested_as=None)
  readable = re.sub(r'[^A-Za-z0-9.]+', '-', name(trained)).strip('-')[:40]
  return f'{readable}-{hashlib.sha256(str(run).encode()).hexdigest()[:8]}'
