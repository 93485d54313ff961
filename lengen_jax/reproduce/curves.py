"""Runs `experiment.Curves`: a comparison for each seed."""

import dataclasses

from lengen_jax import data
from lengen_jax.reproduce import rows as rows_lib
from lengen_jax.reproduce import settings
from lengen_jax.training import compare
from lengen_jax.training import evaluate
from lengen_jax.training import files
from lengen_jax.training import loop
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib


def make_config(part, request):
  """The config that all rows share."""
  # What a user sets comes after what a scale does.
  overrides = [*settings.standin(part, request), *request.overrides]
  config = settings.load(part.config, request.scale, overrides)
  with config.unlocked():
    whole = config.data.train_length
    length = whole // part.shrink
    config.data.train_length = length
    # Documents are cut when they are prepared: data/c4_512 beside data/c4_2048.
    config.data.path = config.data.path.replace(f'_{whole}', f'_{length}')
    config.eval.lengths = tuple(settings.columns(part, config).values())
    if part.window:
      config.model.window = int(length * part.window)
    if 'paper' in config:
      del config.paper
  return config


def check(part, request):
  """Raises unless its config and runs can be read and its data is there."""
  settings.check(part, request, make_config)


def run(part, request, before):
  """Trains and tests every row with every seed; a part of the results."""
  config = make_config(part, request)
  rows = settings.rows(part, request.scale)
  specs = settings.runs(part, config, request.scale)
  runs = settings.parse(part, config, request.scale)
  if part.starts_from is not None:
    # Models of another kind of start are others.
    config.train.init_from = start_part(part, before)['trained']
  trained = request.trained(part, config)
  folder = files.locate(request.root) / trained
  by_seed = []
  with files.locked(folder):
    for seed in request.seeds:
      config.seed = seed
      of_seed = folder / f'seed{seed}'
      by_seed.append(
        _curves(part, request, config, rows, specs, runs, of_seed, before)
      )
  columns = list(settings.columns(part, config))
  column = 'perplexity' if part.unit == 'perplexity' else 'loss'
  lines = []
  for row in rows:
    curves = [found[row.name] for found in by_seed]
    losses = [curve[column] for curve in curves]
    lines.append(
      rows_lib.make(
        settings.with_columns(row, part, columns),
        specs[row.name],
        losses,
        part.of_seeds,
      )
      | {
        'refused': curves[0]['refused'],
        'folder': _folder(part, row, rows, runs),
      }
    )
  full = dataclasses.replace(request, scale='paper', overrides=())
  return {
    'kind': 'curves',
    'name': part.name,
    'unit': part.unit,
    'columns': columns,
    'train_length': config.data.train_length,
    'tokens': by_seed[0][rows[0].name]['tokens'],
    'of_seeds': part.of_seeds,
    'rows': lines,
    'trained': trained,
    'commits': settings.commits(
      curve for curves in by_seed for curve in curves.values()
    ),
    'standin': part.standin.text if settings.standin(part, request) else None,
    'differences': settings.differences(
      make_config(part, full), config, part, request.scale
    ),
    'train_seconds': sum(
      curves[row.name]['train_seconds']
      for curves in by_seed
      for row in rows
      if not row.trained_as
    ),
  }


def _curves(part, request, config, rows, specs, runs, folder, before):
  """The curve of each row with one seed, by name."""
  groups = {}
  for row in rows:
    if row.trained_as is None:
      groups.setdefault(group(part, row), []).append(row)
  curves = {}
  for start, members in groups.items():
    if part.starts_from is not None:
      config.train.init_from = start_of(
        part, members[0], request, config.seed, before
      )
    found = compare.compare(
      config, folder / start, [runs[row.name] for row in members]
    )
    curves |= dict(
      zip((row.name for row in members), found['curves'], strict=True)
    )
  for row in rows:
    if row.trained_as is not None:
      curves[row.name] = _tested(
        folder / _folder(part, row, rows, runs),
        specs[row.name],
        folder / f'tested-{runs_lib.folder(runs[row.name])}',
      )
  return curves


def _folder(part, row, rows, runs):
  """Folder of the model of a row, below that of a seed."""
  model = row.trained_as or row.name
  (trains,) = (one for one in rows if one.name == model)
  return group(part, trains) + runs_lib.folder(runs[model])


def group(part, row):
  """Folder of the runs that start where a row's does."""
  return '' if part.starts_from is None else f'from-{row.start or row.name}/'


def _tested(workdir, spec, folder):
  """The curve of a model tested as another run, which is kept in a folder."""
  path = folder / 'curve.json'
  if path.exists():
    return files.read_json(path)
  trained = restore(workdir, spec)
  windows = data.load(trained.run.data, max(trained.run.eval.lengths))
  curve = evaluate.curve(trained, windows.evaluation(trained.run.eval), spec)
  folder.mkdir(parents=True, exist_ok=True)
  files.write_json(path, curve)
  return curve


def restore(workdir, spec):
  """A model as a run tests it, which may have been trained as another.

  Args:
    workdir: of the model.
    spec: the run, 'encoding | positions | attention_scale'.

  Returns:
    A run.Trained.
  """
  trained = loop.restore(workdir)
  (run_,) = runs_lib.parse(spec, trained.run.config)
  config = runs_lib.configure(trained.run.config, run_)
  return dataclasses.replace(trained, run=run_lib.Run(config))


def start_part(part, before):
  """The part of the results whose models the runs of a part start from."""
  (other,) = (one for one in before if one['name'] == part.starts_from)
  return other


def start_of(part, row, request, seed, before):
  """The workdir of the model that a row starts from, with one seed."""
  other, name = start_part(part, before), row.start or row.name
  (found,) = (one for one in other['rows'] if one['name'] == name)
  folder = files.locate(request.root) / other['trained'] / f'seed{seed}'
  return str(folder / found['folder'])
