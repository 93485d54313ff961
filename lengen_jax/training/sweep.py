"""Sweeps over generated tasks: runs x learning rates x seeds, and their sum."""

import copy
import hashlib
import itertools
import json
import math
import shutil
import statistics
import time
from typing import Any

import jax
import ml_collections

from lengen_jax import errors
from lengen_jax import progress as progress_lib
from lengen_jax import tasks
from lengen_jax.hints import PathLike
from lengen_jax.training import checkpoint
from lengen_jax.training import files as files_lib
from lengen_jax.training import generated
from lengen_jax.training import revision
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import workdir as workdir_lib


def sweep(
  config: ml_collections.ConfigDict, workdir: PathLike
) -> dict[str, Any]:
  """Trains and tests every run at every learning rate with every seed.

  The workdir gets results.json, anew whenever runs are finished, and a folder
  per run with a file per learning rate and seed; what is there is not done
  again, and what is unfinished goes on from its last checkpoint.

  Args:
    config: a ConfigDict; see configs/chomsky.py.
    workdir: folder of the sweep.

  Returns:
    The results, as in results.json.

  Raises:
    errors.LengenError: a run that cannot work, before any is trained.
  """
  generated.check(config)
  runs = runs_lib.parse(config.sweep.runs, config)
  programs = [
    generated.Program(runs_lib.configure(config, run)) for run in runs
  ]
  for program in programs:
    program.check()
  baselines = _baselines(config)
  path = workdir_lib.claim(workdir, _shared(config), kind=workdir_lib.SWEEP)
  points = list(
    itertools.product(config.sweep.learning_rates, config.sweep.seeds)
  )

  def keep_results():
    results = _results(config, path, runs, points, baselines)
    files_lib.write_json(path / 'results.json', results)
    return results

  results = keep_results()
  for number, (run, program) in enumerate(zip(runs, programs, strict=True)):
    folder = path / runs_lib.folder(run)
    folder.mkdir(exist_ok=True)
    label = f'[{number + 1}/{len(runs)}] {runs_lib.name(run)}'
    missing = [p for p in points if not _file(folder, p).exists()]
    size = program.group_size or len(missing)
    for first in range(0, len(missing), max(size, 1)):
      _do(program, missing[first : first + size], folder, label)
    results = keep_results()
  return results


def _do(program, points, folder, label):
  """Trains and tests a group of runs and writes a file for each."""
  config = program.config
  # Devices have equally many: the last run stands in for those that lack.
  count = -(-len(points) // program.devices) * program.devices
  filled = points + points[-1:] * (count - len(points))
  rates, seeds = zip(*filled, strict=True)
  group = hashlib.sha256(repr(filled).encode()).hexdigest()[:8]
  unfinished = folder / f'unfinished-{group}'
  checkpoints = checkpoint.Checkpointer(unfinished, None, keep=2)
  try:
    runs = checkpoints.restore(program.abstract(count))
    if runs is None:
      runs = program.init(seeds, rates)
    runs, seconds = _train(program, runs, len(points), checkpoints, label)
  finally:
    checkpoints.close()
  began = time.monotonic()
  scores = [program.test(runs, length) for length in _lengths(config)]
  for n, point in enumerate(points):
    files_lib.write_json(
      _file(folder, point),
      {
        'learning_rate': point[0],
        'seed': point[1],
        **{
          name: [_finite(score[name][n]) for score in scores]
          for name in generated.SCORES
        },
        'commit': revision.running(),
        'train_loss': _finite(runs.loss[n]),
        'train_seconds': round(seconds / len(points), 3),
        'test_seconds': round((time.monotonic() - began) / len(points), 3),
      },
    )
  shutil.rmtree(unfinished)


def _train(program, runs, count, checkpoints, label):
  """Trains a group to the last step, from wherever it is.

  Returns:
    The runs and the seconds that this took.
  """
  config = program.config
  steps, log_every = config.train.steps, config.train.log_every
  every = config.train.checkpoint_every
  tokens = config.train.batch_size * config.train.max_length // 2 * count
  done = int(runs.step[0])
  began = time.monotonic()
  with progress_lib.Progress(
    f'{label} x {count}', steps, unit='tokens', per=tokens, first=done
  ) as progress:
    progress.announce(f'compiling {len(program.train_widths)} widths ...')
    runs = jax.block_until_ready(program.train(runs, done, done))
    progress.announce(f'compiled in {time.monotonic() - began:.1f} s')
    progress.start_clock()
    while done < steps:
      # Wherever one goes on, means are over the same steps.
      last = min(steps, (done // log_every + 1) * log_every)
      runs = program.train(runs, done, last)
      checkpoints.check()
      progress.update(last, f'loss {float(runs.loss[:count].mean()):.4f}')
      if last // every > done // every or last == steps:
        checkpoints.save(runs)
      done = last
  return runs, time.monotonic() - began


def _results(config, path, runs, points, baselines):
  """What results.json holds: the runs that are finished, and which are not."""
  lengths = _lengths(config)
  paper = {
    run: value for task, run, value in config.paper if task == config.task
  }
  entries, unfinished = [], []
  for run in runs:
    files = [_file(path / runs_lib.folder(run), point) for point in points]
    if not all(file.exists() for file in files):
      unfinished.append(runs_lib.name(run))
      continue
    found = [files_lib.read_json(file) for file in files]
    entries.append(
      {
        'run': runs_lib.name(run),
        **_summary(config, points, found),
        'paper': paper.pop(runs_lib.name(run), None),
        'points': found,
      }
    )
  return {
    'task': config.task,
    'score': config.eval.score,
    'train_lengths': [config.train.min_length, config.train.max_length],
    'lengths': lengths,
    **baselines,
    'runs': entries,
    'unfinished': unfinished,
    'paper_only': paper,
    'config': json.loads(config.to_json()),
    'versions': runs_lib.versions(),
  }


def _summary(config, points, found):
  """The score of a run beyond the training length, over its points.

  The papers take the best over seeds and learning rates; mean and deviation are
  over seeds, at the rate with the best mean.
  """
  kind = config.eval.score
  worst, better = (math.inf, min) if kind == 'loss' else (0.0, max)
  longer = [
    n for n, at in enumerate(_lengths(config)) if at > config.train.max_length
  ]
  scores = {}
  for point, one in zip(points, found, strict=True):
    values = [one[kind][n] for n in longer]
    scores[point] = worst if None in values else statistics.fmean(values)
  by_rate = {
    rate: [scores[rate, seed] for seed in config.sweep.seeds]
    for rate in config.sweep.learning_rates
  }
  best = better(scores, key=scores.get)
  rate = better(by_rate, key=lambda rate: statistics.fmean(by_rate[rate]))
  several = len(by_rate[rate]) > 1 and math.isfinite(sum(by_rate[rate]))
  return {
    'best': _finite(scores[best]),
    'best_at': {'learning_rate': best[0], 'seed': best[1]},
    'mean': _finite(statistics.fmean(by_rate[rate])),
    'std': statistics.stdev(by_rate[rate]) if several else None,
    'mean_at': {'learning_rate': rate, 'seeds': len(by_rate[rate])},
    'curve': found[points.index(best)][kind],
  }


def _baselines(config):
  """What guessing is worth, at the lengths beyond those trained on."""
  task = tasks.create(config.task)
  lengths = [n for n in _lengths(config) if n > config.train.max_length]
  if not lengths:
    raise errors.ConfigError(
      f'eval.lengths={tuple(config.eval.lengths)} has none beyond '
      f'train.max_length={config.train.max_length}'
    )
  middle = lengths[len(lengths) // 2]
  found = task.baselines(jax.random.key(2), middle)
  return {
    'chance': task.chance,
    'baselines': {'length': middle}
    | {name: float(value) for name, value in found.items()},
  }


def _shared(config):
  """The config without what may grow: more runs, rates and seeds."""
  shared = copy.deepcopy(config)
  with shared.unlocked():
    del shared.sweep, shared.paper
  for section, key in (
    (shared.model, 'encoding'),
    (shared, 'positions'),
    (shared.model, 'attention_scale'),
  ):
    section[key] = ''
  return shared


def _file(folder, point):
  rate, seed = point
  return folder / f'learning_rate={float(rate)!r},seed={seed}.json'


def _lengths(config):
  return sorted(config.eval.lengths)


def _finite(value):
  """A float, or None for what JSON has no number for."""
  return float(value) if math.isfinite(value) else None
