"""Runs an experiment at a scale; finished runs are reused."""

from collections.abc import Sequence
import dataclasses
import shlex

from lengen_jax import errors
from lengen_jax.analysis import reproduction
from lengen_jax.reproduce import claims, costs, figures, power
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
  rows: Sequence[str] = (),
) -> Results:
  """Runs all parts of an experiment and tests its claims.

  Args:
    experiment: the experiment.
    scale: one of `experiment.SCALES`.
    root: folder of all reproductions: reproduction.json in PAPER/TABLE/SCALE,
      and the models, which experiments share, in `trained`.
    seeds: the seeds; None for those of the experiment. Without any of these,
      the results are a replication, in PAPER/TABLE/SCALE-replication.
    overrides: '--config.KEY=VALUE' arguments for all parts.
    rows: names of the rows to run, with those whose models they need; () for
      all. A name is ROW, in every part that has it, or PART: ROW. Results with
      `overrides` or `rows` have a folder of their own.

  Raises:
    errors.LengenError: a part cannot run. Errors that can be detected in
      advance are raised before the first part runs.
  """
  seeds, parts = _checked(experiment, scale, seeds, overrides, rows)
  request = parts_lib.Request(
    scale,
    seeds,
    tuple(overrides),
    str(root),
    experiment.name,
    experiment.replicates(scale, seeds),
    tuple(rows),
  )
  files.make_folder(request.root)
  for part in parts:
    part.check(request)
  files.make_folder(request.folder)
  chosen = _row_names(parts, scale) if rows else None
  for line in power.lines(
    experiment, scale, files.locate(root), len(seeds), chosen
  ):
    print(line, flush=True)
  # At smaller scales, a run takes little longer than timing it.
  if scale in ('paper', 'small', 'hours'):
    for line in costs.remaining(parts, request):
      print(f'{experiment.name}: {line}', flush=True)
  results = _description(experiment, request)
  for number, part in enumerate(parts):
    place = f'[{number + 1}/{len(parts)}]'
    print(f'{experiment.name}: {part.name} {place}', flush=True)
    results['parts'].append(part.run(request, results['parts']))
  results['claims'] = [claims.judge(one, results) for one in experiment.claims]
  results['summary'] = experiment.summary(results) if experiment.summary else []
  files.write_json(request.folder / reproduction.RESULTS, results)
  return results


def _checked(
  experiment: Experiment,
  scale: str,
  seeds: Sequence[int] | None,
  overrides: Sequence[str],
  rows: Sequence[str],
) -> tuple[tuple[int, ...], list[parts_lib.Part]]:
  """Returns the seeds and the parts to run; for the arguments see `reproduce`.

  Raises:
    errors.ConfigError: an argument is invalid.
  """
  if scale not in SCALES:
    raise errors.ConfigError(errors.one_of('scale', scale, SCALES))
  seeds = experiment.seeds_at(scale) if seeds is None else tuple(seeds)
  if not seeds or len(set(seeds)) < len(seeds):
    raise errors.ConfigError(
      f'--seeds requires at least one seed, each once; got {seeds}'
    )
  parts = [part for part in experiment.parts if scale in part.scales]
  if not parts:
    scales = {each for part in experiment.parts for each in part.scales}
    raise errors.ConfigError(
      f'{experiment.name} has no scale {scale!r}; use --scale='
      + ' or '.join(each for each in SCALES if each in scales)
    )
  if rows:
    parts = _with_rows(parts, rows, scale)
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
  return seeds, parts


def _description(experiment: Experiment, request: parts_lib.Request) -> Results:
  """Returns results without parts: what is run, and with which versions."""
  command = ['lengen', 'reproduce', experiment.name, f'--scale={request.scale}']
  if request.seeds != experiment.seeds_at(request.scale):
    command.append('--seeds=' + ','.join(map(str, request.seeds)))
  if request.rows:
    command.append('--rows=' + '; '.join(request.rows))
  return {
    'name': experiment.name,
    'title': experiment.title,
    'scale': request.scale,
    'seeds': list(request.seeds),
    'rows': list(request.rows),
    'command': shlex.join([*command, *request.overrides]),
    'commit': revision.running(),
    'versions': runs_lib.versions(),
    # The path is relative to root.
    'folder': request.folder_name,
    'hardware': experiment.hardware,
    'ours': list(experiment.ours),
    'parts': [],
  }


def _with_rows(
  parts: Sequence[parts_lib.Part], rows: Sequence[str], scale: str
) -> list[parts_lib.Part]:
  """Returns parts with some rows, and with those whose models these need.

  Parts without any of them are left out. A row is named ROW, in every part
  that has it, or PART: ROW.

  Raises:
    errors.ConfigError: no part has a row of one of the names at the scale.
  """
  by_place = {
    (part.name, row.name): (part, row)
    for part in parts
    if isinstance(part, parts_lib.ConfiguredPart)
    for row in part.rows_at(scale)
  }
  if not by_place:
    raise errors.ConfigError(
      'the experiment trains nothing and has no rows; leave out --rows'
    )
  needed = set()
  for row_name in rows:
    name = ': '.join(part.strip() for part in row_name.split(':'))
    named = {
      place: ': '.join(place) if ': ' in name else place[1]
      for place in by_place
    }
    found = {place for place, each in named.items() if each == name}
    if not found:
      # Names contain commas.
      text = errors.one_of(
        f'row at scale {scale}', name, set(named.values()), '; '
      )
      raise errors.ConfigError(text)
    needed |= found
  # A row may be tested on the model of another, which starts from a third.
  for _ in range(2):
    for part, row in [by_place[place] for place in needed if place in by_place]:
      if row.trained_as:
        needed.add((part.name, row.trained_as))
      if init_part := part.init_part_at(scale):
        needed.add((init_part, row.init_name))
  chosen: list[parts_lib.Part] = []
  for part in parts:
    if isinstance(part, parts_lib.ConfiguredPart):
      kept = tuple(
        row for row in part.rows_at(scale) if (part.name, row.name) in needed
      )
      if kept:
        chosen.append(dataclasses.replace(part, rows=kept))
    elif isinstance(part, figures.Figure):
      names = tuple(name for name in part.rows if (part.part, name) in needed)
      if names:
        chosen.append(dataclasses.replace(part, rows=names))
    elif isinstance(part, figures.Average):
      if _row_names([*chosen, part], scale)[part.name]:
        chosen.append(part)
  return chosen


def _row_names(
  parts: Sequence[parts_lib.Part], scale: str
) -> dict[str, set[str]]:
  """Returns the names of the rows of each part; a mean has the common ones."""
  names: dict[str, set[str]] = {}
  for part in parts:
    if isinstance(part, parts_lib.ConfiguredPart):
      names[part.name] = {row.name for row in part.rows_at(scale)}
    elif isinstance(part, figures.Figure):
      names[part.name] = {*part.rows}
    elif isinstance(part, figures.Average):
      members = [names[one] for one in part.members if one in names]
      names[part.name] = set.intersection(*members) if members else set()
  return names
