"""Runs an experiment at a scale; finished runs are reused."""

from collections.abc import Sequence
import shlex

from lengen_jax import errors
from lengen_jax.analysis import reproduction
from lengen_jax.hints import PathLike
from lengen_jax.reproduce import claims
from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce import parts as parts_lib
from lengen_jax.training import files, revision
from lengen_jax.training import runs as runs_lib

# Settings that the experiment determines, and how to change them.
_FIXED = {
  'seed': 'use --seeds',
  'sweep.seeds': 'use --seeds',
  'sweep.runs': 'lengen sweep runs others',
  'model.encoding': 'lengen compare runs others',
  'positions': 'lengen compare runs others',
  'eval.lengths': 'lengen compare tests at others',
  'eval.score': 'lengen sweep scores by others',
  'train.init_from': 'lengen train starts from others',
}


def reproduce(
  experiment: experiment_lib.Experiment,
  scale: str,
  root: PathLike,
  seeds: Sequence[int] | None = None,
  overrides: Sequence[str] = (),
) -> experiment_lib.Results:
  """Runs all parts of an experiment and tests its claims.

  Args:
    experiment: the experiment.
    scale: one of `experiment.SCALES`.
    root: folder of all reproductions. Its folder PAPER/TABLE/SCALE receives
      reproduction.json at the end; its folder `trained` holds the models, which
      experiments share.
    seeds: the seeds; None for those of the experiment.
    overrides: '--config.KEY=VALUE' arguments for all parts.

  Returns:
    The results, as in reproduction.json.

  Raises:
    errors.LengenError: a part cannot run. Errors that can be detected in
      advance are raised before the first part runs.
  """
  if scale not in experiment_lib.SCALES:
    raise errors.ConfigError(
      errors.one_of('scale', scale, experiment_lib.SCALES)
    )
  seeds = experiment.seeds if seeds is None else tuple(seeds)
  if not seeds or len(set(seeds)) < len(seeds):
    raise errors.ConfigError(
      f'seeds {seeds} must be at least one, each once; change --seeds'
    )
  parts = [part for part in experiment.parts if scale in part.scales]
  _check_overrides(experiment.name, parts, overrides)
  request = parts_lib.Request(
    scale, seeds, tuple(overrides), str(root), experiment.name
  )
  files.make_folder(request.root)
  for part in parts:
    part.check(request)
  files.make_folder(request.folder)
  results: experiment_lib.Results = {
    'name': experiment.name,
    'title': experiment.title,
    'scale': scale,
    'seeds': list(seeds),
    'command': _command(experiment, scale, seeds, overrides),
    'commit': revision.running(),
    'versions': runs_lib.versions(),
    # Relative to root.
    'folder': request.folder_name,
    'hardware': experiment.hardware,
    'ours': list(experiment.ours),
    'parts': [],
  }
  for number, part in enumerate(parts):
    print(
      f'{experiment.name}: {part.name} [{number + 1}/{len(parts)}]', flush=True
    )
    results['parts'].append(part.run(request, results['parts']))
  results['claims'] = [claims.judge(one, results) for one in experiment.claims]
  results['summary'] = experiment.summary(results) if experiment.summary else []
  files.write_json(request.folder / reproduction.RESULTS, results)
  return results


def _check_overrides(
  name: str, parts: Sequence[parts_lib.Part], overrides: Sequence[str]
) -> None:
  for override in overrides:
    key = override.removeprefix('--config.').partition('=')[0]
    if key in _FIXED:
      raise errors.ConfigError(
        f'--config.{key} is set by the experiment; {_FIXED[key]}'
      )
  configured = (isinstance(one, parts_lib.ConfiguredPart) for one in parts)
  if overrides and not any(configured):
    raise errors.ConfigError(
      f'{name} trains nothing and has no config; leave out {overrides[0]}'
    )


def _command(
  experiment: experiment_lib.Experiment,
  scale: str,
  seeds: Sequence[int],
  overrides: Sequence[str],
) -> str:
  """Returns the command line that reproduces the results."""
  words = ['lengen', 'reproduce', experiment.name, f'--scale={scale}']
  if seeds != experiment.seeds:
    words.append('--seeds=' + ','.join(map(str, seeds)))
  return shlex.join([*words, *overrides])
