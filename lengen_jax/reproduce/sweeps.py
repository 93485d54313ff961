"""Runs `experiment.Sweep`."""

import dataclasses
import statistics

from lengen_jax.reproduce import rows as rows_lib
from lengen_jax.reproduce import settings
from lengen_jax.training import files
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import sweep

# The columns of a sweep: lengths beyond those trained on, and up to them.
BEYOND, SEEN = 'beyond', 'seen'


def make_config(part, request):
  """The config that all rows share."""
  config = settings.load(part.config, request.scale, request.overrides)
  with config.unlocked():
    runs = settings.runs(part, config, request.scale)
    config.sweep.runs = '; '.join(runs.values())
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
  folder = files.locate(request.root) / trained
  with files.locked(folder):
    results = sweep.sweep(config, folder)
  kind = results['score']
  rows, curves = [], []
  for row, entry in zip(
    settings.rows(part, request.scale), results['runs'], strict=True
  ):
    points = _best(entry, results, request.seeds)
    by_seed = [
      [_percent(point[kind], results, beyond) for beyond in (True, False)]
      for point in points
    ]
    if row.paper is not None:
      row = dataclasses.replace(row, paper=(*row.paper, None))
    rows.append(rows_lib.make(row, entry['run'], by_seed, part.of_seeds))
    by_length = zip(*(point[kind] for point in points), strict=True)
    curves.append({'run': row.name, 'curve': [_or_none(c) for c in by_length]})
  full = dataclasses.replace(request, scale='paper', overrides=())
  return {
    'kind': 'sweep',
    'name': part.name,
    'unit': part.unit,
    'columns': [BEYOND, SEEN],
    'train_length': results['train_lengths'][1],
    'of_seeds': part.of_seeds,
    'rows': rows,
    'trained': trained,
    # Of whole sequences it is next to nothing.
    'chance': 100 * results['chance'] if kind == 'accuracy' else None,
    # As in results.json of a sweep, means over seeds.
    'by_length': {
      'runs': curves,
      **{
        key: results[key]
        for key in ('score', 'lengths', 'train_lengths', 'baselines')
      },
    },
    'commits': settings.commits(
      point for entry in results['runs'] for point in entry['points']
    ),
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


def _best(entry, results, seeds):
  """The point of each seed at the rate that is best beyond training."""

  def score(point):
    percent = _percent(point[results['score']], results, True)
    return -1.0 if percent is None else percent

  return [
    max((one for one in entry['points'] if one['seed'] == seed), key=score)
    for seed in seeds
  ]


def _percent(curve, results, beyond):
  """The mean of a curve beyond the training length, or up to it.

  None where a length has no score.
  """
  longest = results['train_lengths'][1]
  scores = [
    score
    for score, length in zip(curve, results['lengths'], strict=True)
    if (length > longest) == beyond
  ]
  return None if None in scores else 100 * statistics.fmean(scores)


def _or_none(values):
  return None if None in values else statistics.fmean(values)
