"""Runs an experiment at a scale; finished runs are reused."""

from collections.abc import Sequence
import shlex

from lengen_jax import errors
from lengen_jax.analysis import reproduction
from lengen_jax.reproduce import claims, costs, power
from lengen_jax.reproduce import parts as parts_lib
from lengen_jax.reproduce.experiment import Experiment, Results, SCALES
from lengen_jax.training import files, revision
from lengen_jax.training import runs as runs_lib
from lengen_jax.types import PathLike

# Settings that the experiment determines, and how to change them.
_FIXED = {
  'seed': 'use --seeds',
  'sweep.seeds': 'use --seeds',
  'sweep.runs': 'use lengen sweep to train other runs',
  'model.encoding': 'use lengen compare to train other encodings',
  'positions': 'use lengen compare to train with other positions',
  'eval.lengths': 'use lengen compare to test at other lengths',
  'eval.score': 'use lengen sweep for another score',
  'train.init_from': 'use lengen train to start from other parameters',
}


def reproduce(
  experiment: Experiment,
  scale: str,
  root: PathLike,
  seeds: Sequence[int] | None = None,
  overrides: Sequence[str] = (),
) -> Results:
  """Runs all parts of an experiment and tests its claims.

  Args:
    experiment: the experiment.
    scale: one of `experiment.SCALES`.
    root: folder of all reproductions: reproduction.json in PAPER/TABLE/SCALE,
      and the models, which experiments share, in `trained`.
    seeds: the seeds; None for those of the experiment.
    overrides: '--config.KEY=VALUE' arguments for all parts.

  Raises:
    errors.LengenError: a part cannot run. Errors that can be detected in
      advance are raised before the first part runs.
  """
  if scale not in SCALES:
    raise errors.ConfigError(errors.one_of('scale', scale, SCALES))
  default_seeds = experiment.seeds_at(scale)
  seeds = default_seeds if seeds is None else tuple(seeds)
  if not seeds or len(set(seeds)) < len(seeds):
    raise errors.ConfigError(
      f'seeds {seeds} must be at least one, each once; change --seeds'
    )
  parts = [part for part in experiment.parts if scale in part.scales]
  if not parts:
    scales = {each for part in experiment.parts for each in part.scales}
    raise errors.ConfigError(
      f'{experiment.name} has no scale {scale!r}; use --scale='
      + ' or '.join(each for each in SCALES if each in scales)
    )
  configured = [x for x in parts if isinstance(x, parts_lib.ConfiguredPart)]
  fixed = dict(_FIXED)
  for part in configured:
    fixed |= dict.fromkeys(part.settings, 'use lengen compare for other values')
  for override in overrides:
    key = override.removeprefix('--config.').partition('=')[0]
    if key in fixed:
      raise errors.ConfigError(
        f'--config.{key} is set by the experiment; {fixed[key]}'
      )
  if overrides and not configured:
    raise errors.ConfigError(
      f'{experiment.name} trains nothing and has no config; leave out '
      f'{overrides[0]}'
    )
  request = parts_lib.Request(
    scale, seeds, tuple(overrides), str(root), experiment.name
  )
  files.make_folder(request.root)
  for part in parts:
    part.check(request)
  files.make_folder(request.folder)
  command = ['lengen', 'reproduce', experiment.name, f'--scale={scale}']
  if seeds != default_seeds:
    command.append('--seeds=' + ','.join(map(str, seeds)))
  results: Results = {
    'name': experiment.name,
    'title': experiment.title,
    'scale': scale,
    'seeds': list(seeds),
    'command': shlex.join([*command, *overrides]),
    'commit': revision.running(),
    'versions': runs_lib.versions(),
    # The path is relative to root.
    'folder': request.folder_name,
    'hardware': experiment.hardware,
    'ours': list(experiment.ours),
    'parts': [],
  }
  if before := power.recorded(experiment, scale, files.locate(root)):
    name, recorded = before
    lines = [*power.report(experiment, recorded, len(seeds))]
    if lines and len(seeds) > 1:
      print(
        f'by the variances in {name}, with a probability of {power.POWER:.0%} '
        'for each difference:'
      )
    for line in lines:
      print(line, flush=True)
  elif experiment.claims:
    print(
      'no recorded variances: no estimate of what the seeds detect', flush=True
    )
  # At smaller scales, a run takes little longer than timing it.
  if scale in ('paper', 'small', 'hours'):
    for line in costs.remaining(parts, request):
      print(f'{experiment.name}: {line}', flush=True)
  for number, part in enumerate(parts):
    place = f'[{number + 1}/{len(parts)}]'
    print(f'{experiment.name}: {part.name} {place}', flush=True)
    results['parts'].append(part.run(request, results['parts']))
  results['claims'] = [claims.judge(one, results) for one in experiment.claims]
  results['summary'] = experiment.summary(results) if experiment.summary else []
  files.write_json(request.folder / reproduction.RESULTS, results)
  return results
