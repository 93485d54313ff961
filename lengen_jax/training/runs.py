"""Runs of a comparison or a sweep: parsing, names, configs and folders."""

import copy
import hashlib
import importlib.metadata
import platform
import re
from typing import Any

import ml_collections

from lengen_jax import __version__, errors, specs

# Specs of encoding, positions and attention scale.
Run = tuple[str, str, str]

_PARTS = ('encoding', 'positions', 'attention_scale')


def parse(text: str, config: ml_collections.ConfigDict) -> list[Run]:
  """Parses `encoding|positions|attention_scale; ...`, later parts optional.

  Several encodings, joined by commas, are cycled over the layers. The values of
  omitted parts are those of `config`.

  Raises:
    errors.SpecError: a run is malformed or repeated, or there is none.
  """
  model = config.model
  default = model.encoding, config.positions, model.attention_scale
  runs: list[Any] = []
  for one in specs.split(text, ';'):
    parts = specs.split(one, '|', keep_empty=True)
    if len(parts) > len(_PARTS):
      raise errors.SpecError(
        f'{one!r} has {len(parts)} parts; a run is {"|".join(_PARTS)}'
      )
    parts += [''] * (len(_PARTS) - len(parts))
    run = tuple(a or b for a, b in zip(parts, default, strict=True))
    if run in runs:
      raise errors.SpecError(f'the run {one!r} is given twice')
    runs.append(run)
  if not runs:
    raise errors.SpecError(
      "no runs; give some, for example --runs='fire; alibi; rope'"
    )
  return runs


def name(run: Run) -> str:
  """Returns the name of a run: its encoding, then the parts without default."""
  encoding, positions, scale = run
  rest = [positions] if positions != 'standard' else []
  rest += [scale] if scale != 'none' else []
  return ' | '.join([encoding, *rest])


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
  """Returns the ConfigDict of one run."""
  each = copy.deepcopy(config)
  each.model.encoding, each.positions, each.model.attention_scale = run
  return each


def folder(run: Run) -> str:
  """Returns the name of the folder of a run."""
  text = '|'.join(run)
  readable = re.sub(r'[^A-Za-z0-9.]+', '-', name(run)).strip('-')[:40]
  return f'{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}'
