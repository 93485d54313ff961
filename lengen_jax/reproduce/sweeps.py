"""Runs `experiment.Sweep`."""

import math
import statistics

from lengen_jax.reproduce import rows as rows_lib
from lengen_jax.reproduce import settings
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import sweep

# The one column of a sweep: lengths beyond those trained on.
BEYOND = 'beyond'


def make_config(part, scale, overrides=(), *, of=None):
  """The config that all rows share; `of` is the scale whose rows they are."""
  config = settings.load(part.config, scale, overrides)
  with config.unlocked():
    config.sweep.runs = '; '.join(settings.runs(part, config, of or scale))
    config.paper = ()
  return config


def check(part, scale, overrides):
  """Raises unless its config and its runs can be read."""
  config = make_config(part, scale, overrides)
  runs_lib.parse(config.sweep.runs, config)


def run(part, scale, folder, seeds, overrides, before):
  """Trains and tests every row with every seed; a part of the results."""
  del before
  config = make_config(part, scale, overrides)
  config.sweep.seeds = tuple(seeds)
  results = sweep.sweep(config, folder)
  scale_by = {'loss': 1}.get(results['score'], 100)
  rows = []
  for row, entry in zip(
    settings.rows(part, scale), results['runs'], strict=True
  ):
    by_seed = [
      [scale_by * value] for value in _sweep_values(entry, results, seeds)
    ]
    rows.append(rows_lib.make(row, entry['run'], by_seed, part.of_seeds))
  return {
    'kind': 'sweep',
    'name': part.name,
    'unit': part.unit,
    'columns': [BEYOND],
    'train_length': results['train_lengths'][1],
    'of_seeds': part.of_seeds,
    'rows': rows,
    'chance': 100 * results['chance'],
    'standin': None,
    'differences': settings.differences(
      make_config(part, 'paper', of=scale), config, part, scale
    ),
    'train_seconds': sum(
      point['train_seconds']
      for entry in results['runs']
      for point in entry['points']
    ),
  }


def _sweep_values(entry, results, seeds):
  """Score beyond the training length, of each seed at its best rate."""
  longest = results['train_lengths'][1]
  longer = [n for n, at in enumerate(results['lengths']) if at > longest]
  kind = results['score']
  better, worst = (min, math.inf) if kind == 'loss' else (max, 0.0)
  values = []
  for seed in seeds:
    scores = []
    for point in entry['points']:
      if point['seed'] == seed:
        curve = [point[kind][n] for n in longer]
        scores.append(worst if None in curve else statistics.fmean(curve))
    values.append(better(scores))
  return values
