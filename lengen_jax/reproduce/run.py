"""Runs an experiment at a scale; what is done is not done again."""

import shlex

from lengen_jax import errors
from lengen_jax.analysis import reproduction
from lengen_jax.reproduce import answers
from lengen_jax.reproduce import averages
from lengen_jax.reproduce import claims
from lengen_jax.reproduce import curves
from lengen_jax.reproduce import drawings
from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce import probes
from lengen_jax.reproduce import settings
from lengen_jax.reproduce import sweeps
from lengen_jax.reproduce import timings
from lengen_jax.training import files
from lengen_jax.training import revision
from lengen_jax.training import runs as runs_lib

# What no override may set, and what to do instead.
_OURS = {
  'seed': 'use --seeds',
  'sweep.seeds': 'use --seeds',
  'sweep.runs': 'lengen sweep runs others',
  'model.encoding': 'lengen compare runs others',
  'positions': 'lengen compare runs others',
  'eval.lengths': 'lengen compare tests at others',
  'eval.score': 'lengen sweep scores by others',
  'train.init_from': 'lengen train starts from others',
}
RUNNERS = {
  experiment_lib.Curves: curves,
  experiment_lib.Sweep: sweeps,
  experiment_lib.Answers: answers,
  experiment_lib.Average: averages,
  experiment_lib.Timing: timings,
  experiment_lib.Drawing: drawings,
  experiment_lib.Probe: probes,
}


def reproduce(experiment, scale, root, seeds=None, overrides=()):
  """Trains and tests what an experiment is made of.

  Args:
    experiment: an Experiment.
    scale: one of experiment.SCALES.
    root: folder of all reproductions. Its folder PAPER/TABLE/SCALE gets
      reproduction.json when all is done; models go to the folder `trained`,
      where other experiments find them.
    seeds: tuple of ints; None for those of the experiment.
    overrides: list of '--config.KEY=VALUE', for all parts.

  Returns:
    The results, as in reproduction.json.

  Raises:
    errors.LengenError: a part that cannot work, before any is run as far as it
      can be told.
  """
  if scale not in experiment_lib.SCALES:
    raise errors.ConfigError(
      errors.one_of('scale', scale, experiment_lib.SCALES)
    )
  seeds = experiment.seeds if seeds is None else tuple(seeds)
  if not seeds or len(set(seeds)) < len(seeds):
    raise errors.ConfigError(f'seeds {seeds} must be some, each once')
  for one in overrides:
    key = one.removeprefix('--config.').partition('=')[0]
    if key in _OURS:
      raise errors.ConfigError(
        f'--config.{key} is set by the experiment; {_OURS[key]}'
      )
  request = settings.Request(
    scale, seeds, tuple(overrides), str(root), experiment.name
  )
  parts = [part for part in experiment.parts if scale in part.scales]
  if overrides and not any(hasattr(part, 'config') for part in parts):
    raise errors.ConfigError(
      f'{experiment.name} trains nothing and has no config; leave out '
      f'{overrides[0]}'
    )
  files.make_folder(request.root)
  for part in parts:
    RUNNERS[type(part)].check(part, request)
  files.make_folder(request.folder)
  found = {
    'name': experiment.name,
    'title': experiment.title,
    'scale': scale,
    'seeds': list(seeds),
    'command': _command(experiment, scale, seeds, overrides),
    'commit': revision.running(),
    'versions': runs_lib.versions(),
    # Below root.
    'folder': request.folder_name,
    'hardware': experiment.hardware,
    'ours': list(experiment.ours),
    'parts': [],
  }
  for number, part in enumerate(parts):
    print(
      f'{experiment.name}: {part.name} [{number + 1}/{len(parts)}]', flush=True
    )
    found['parts'].append(
      RUNNERS[type(part)].run(part, request, found['parts'])
    )
  found['claims'] = [claims.judge(claim, found) for claim in experiment.claims]
  found['summary'] = experiment.summary(found) if experiment.summary else []
  files.write_json(request.folder / reproduction.RESULTS, found)
  return found


def _command(experiment, scale, seeds, overrides):
  """The command line that does it again."""
  parts = [f'lengen reproduce {experiment.name} --scale={scale}']
  if seeds != experiment.seeds:
    parts.append('--seeds=' + ','.join(map(str, seeds)))
  return shlex.join([*' '.join(parts).split(), *overrides])
