"""Runs `experiment.Sweep`."""

import dataclasses
import math
import statistics

from lengen_jax.reproduce import rows as rows_lib
from lengen_jax.reproduce import settings
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import sweep
from lengen_jax.training import workdir as workdir_lib

# The columns of a sweep: lengths beyond those trained on, and up to them.
BEYOND, SEEN = 'beyond', 'seen'


def make_config(part, request):
  """The config that all rows share."""
  config = settings.load(part.config, request.scale, request.overrides)
  with config.unlocked():
    config.sweep.runs = '; '.join(settings.runs(part, config, request.scale))
    config.paper = ()
  return config


def check(part, request):
  """Raises unless its config and its runs can be read."""
  config = make_config(part, request)
  runs_lib.parse(config.sweep.runs, config)


def run(part, request, before):
  """Trains and tests every row with every seed; a part of the results."""
  del before
  config = make_config(part, request)
  config.sweep.seeds = tuple(request.seeds)
  trained = request.trained(part, config)
  results = sweep.sweep(config, workdir_lib.locate(request.root) / trained)
  scale_by = {'loss': 1}.get(results['score'], 100)
  rows = []
  for row, entry in zip(
    settings.rows(part, request.scale), results['runs'], strict=True
  ):
    by_seed = [
      [scale_by * value for value in values]
      for values in _values(entry, results, request.seeds)
    ]
    if row.paper is not None:
      row = dataclasses.replace(row, paper=(*row.paper, None))
    rows.append(rows_lib.make(row, entry['run'], by_seed, part.of_seeds))
  full = dataclasses.replace(request, scale='paper', overrides=())
  return {
    'kind': 'sweep',
    'name': part.name,
    'unit': part.unit,
    'columns': [BEYOND, SEEN],
    'train_length': results['train_lengths'][1],
    'of_seeds': part.of_seeds,
    'rows': rows,
    'chance': 100 * results['chance'],
    'standin': None,
    'differences': settings.differences(
      make_config(part, full), config, part, request.scale
    ),
    'train_seconds': sum(
      point['train_seconds']
      for entry in results['runs']
      for point in entry['points']
    ),
  }


def _values(entry, results, seeds):
  """Scores beyond the training length and up to it, of each seed.

  They are those at the learning rate that is best beyond it.
  """
  longest = results['train_lengths'][1]
  longer = [at > longest for at in results['lengths']]
  kind = results['score']
  better, worst = (min, math.inf) if kind == 'loss' else (max, 0.0)

  def mean(point, beyond):
    curve = [
      score
      for score, is_longer in zip(point[kind], longer, strict=True)
      if is_longer == beyond
    ]
    return worst if None in curve else statistics.fmean(curve)

  values = []
  for seed in seeds:
    points = [point for point in entry['points'] if point['seed'] == seed]
    best = better(points, key=lambda point: mean(point, True))
    values.append([mean(best, True), mean(best, False)])
  return values
