"""Sweeps over generated tasks: runs x learning rates x seeds, and a summary."""

from collections.abc import Callable, Sequence
import hashlib
import itertools
import json
import math
import pathlib
import statistics
import time
from typing import Any

import jax
import ml_collections
import numpy as np

from lengen_jax import errors, tasks
from lengen_jax import progress as progress_lib
from lengen_jax.tasks import batches
from lengen_jax.training import (
  checkpoint,
  faults,
  multihost,
  revision,
  task_trainer,
)
from lengen_jax.training import config as config_lib
from lengen_jax.training import files as files_lib
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import workdir as workdir_lib
from lengen_jax.types import PathLike

# A learning rate and a seed.
Point = tuple[float, int]
# File of a group of points beside its checkpoints.
_POINTS = 'points.json'


def sweep(
  config: ml_collections.ConfigDict, workdir: PathLike
) -> dict[str, Any]:
  """Trains and evaluates every run at every learning rate with every seed.

  The workdir gets a folder per run with one file per learning rate and seed,
  and results.json, which is rewritten whenever a run is finished. Finished
  points are not repeated; unfinished ones resume from their last checkpoint.
  If another process is sweeping in the workdir, this call waits for its end.

  Returns the contents of results.json. For `config` see configs/chomsky.py.

  Raises:
    errors.PreemptedError: stopped by SIGTERM in training.
    errors.LengenError: a run is invalid; raised before any run is trained.
  """
  sections = config_lib.check_task(config)
  runs = runs_lib.parse(config.sweep.runs, config)
  for run in runs:
    if run.tested_as:
      raise errors.ConfigError(
        f'{runs_lib.name(run)}: a sweep tests models as they were trained; '
        'remove => and what follows, or use lengen compare'
      )
  trainers = [
    task_trainer.TaskTrainer(runs_lib.configure(config, run)) for run in runs
  ]
  for trainer in trainers:
    trainer.check()
  baselines = _baselines(config)
  with files_lib.locked(workdir):
    return _sweep(config, sections.sweep, workdir, runs, trainers, baselines)


def _sweep(
  config: ml_collections.ConfigDict,
  section: config_lib.SweepConfig,
  workdir: PathLike,
  runs: Sequence[runs_lib.Run],
  trainers: Sequence[task_trainer.TaskTrainer],
  baselines: dict[str, Any],
) -> dict[str, Any]:
  """Trains and evaluates what is missing in a locked workdir; see `sweep`."""
  # Runs, learning rates and seeds may be added to a sweep.
  shared = runs_lib.configure(config, runs_lib.Run('', '', ''))
  with shared.unlocked():
    del shared.sweep, shared.paper
  path = workdir_lib.claim(workdir, shared, kind=workdir_lib.SWEEP)
  points = list(itertools.product(section.learning_rates, section.seeds))
  batching = section.batching
  if batching == 'auto':
    batching = 'map' if jax.default_backend() == 'cpu' else 'vmap'
  results = _write_results(config, path, runs, points, baselines)
  for number, (run, trainer) in enumerate(zip(runs, trainers, strict=True)):
    folder = path / runs_lib.folder(run)
    folder.mkdir(exist_ok=True)
    label = f'[{number + 1}/{len(runs)}] {runs_lib.name(run)}'
    # Processes might see files of the shared folder at different times.
    done = multihost.broadcast([point_file(folder, p).exists() for p in points])
    missing = [
      p for p, is_done in zip(points, done, strict=True) if not is_done
    ]
    for group in _interrupted(trainer, missing, folder):
      run_group(trainer, group, folder, label)
      missing = [p for p in missing if p not in group]
    size = trainer.devices if batching == 'map' else len(missing) or 1
    for first in range(0, len(missing), size):
      run_group(trainer, missing[first : first + size], folder, label)
    results = _write_results(config, path, runs, points, baselines)
  return results


def _interrupted(
  trainer: task_trainer.TaskTrainer,
  missing: Sequence[Point],
  folder: pathlib.Path,
) -> list[list[Point]]:
  """Returns the groups that have a checkpoint and some of the missing points.

  Such a group is completed as it began, also if it was interrupted between
  writing the scores of two points, or if some of its points are not in the
  sweep any more.
  """
  groups: list[list[Point]] = []
  if multihost.is_first():
    for file in sorted(folder.glob(f'*/{_POINTS}')):
      recorded = files_lib.read_json(file, ('points',))['points']
      begun = [(rate, seed) for rate, seed in recorded]
      if (
        {*begun} & {*missing}
        and not {*begun} & {*itertools.chain(*groups)}
        and checkpoint.steps(file.parent)
        and file.parent == _unfinished(trainer, begun, folder)
      ):
        groups.append(begun)
  text = bytes(multihost.broadcast([*json.dumps(groups).encode()]))
  return [[(rate, seed) for rate, seed in one] for one in json.loads(text)]


def run_group(
  trainer: task_trainer.TaskTrainer,
  points: Sequence[Point],
  folder: pathlib.Path,
  label: str,
) -> None:
  """Trains and evaluates some points together and writes a file for each.

  `folder` is that of the run; progress lines start with `label`.
  """
  filled = _filled(trainer, points)
  rates, seeds = zip(*filled, strict=True)
  count = len(filled)
  unfinished = _unfinished(trainer, points, folder)
  checkpoints = checkpoint.Checkpointer(unfinished, None)
  if multihost.is_first():
    files_lib.make_folder(unfinished)
    files_lib.write_json(unfinished / _POINTS, {'points': points})
  timed, saved = unfinished / 'seconds.json', unfinished / 'trajectory.json'
  # Seconds of training, and scores of the points, by step.
  seconds = files_lib.read_json(timed) if timed.exists() else {}
  earlier = files_lib.read_json(saved) if saved.exists() else {}

  def test(state: task_trainer.Points, step: int) -> None:
    earlier[str(step)] = _test(trainer, state, len(points))
    files_lib.write_json(saved, earlier)

  def save(state: task_trainer.Points, step: int, trained: float) -> None:
    seconds[str(step)] = trained
    files_lib.write_json(timed, seconds)
    checkpoints.save(state)

  # Until the last checkpoint is written.
  with faults.Preemption() as preemption:
    try:
      state = checkpoints.restore(trainer.abstract(count))
      if state is None:
        state = trainer.init(seeds, rates)
      before = seconds.get(str(int(state.step[0])), 0.0)
      state = _train(
        trainer,
        state,
        len(points),
        before,
        label,
        preemption,
        test=test,
        save=save,
        check=checkpoints.check,
      )
    finally:
      checkpoints.close()
  began = time.monotonic()
  scores = _test(trainer, state, len(points))
  last = trainer.config.train.steps
  # A group that was resumed with other steps lacks those it had passed.
  steps = [n for n in trainer.config.eval.steps if str(n) in earlier]
  tested = {n: earlier[str(n)] for n in steps} | (
    {last: scores} if steps else {}
  )
  # Steps that an earlier version tested have no answers to single examples.
  names = [
    k for k in scores[0] if all(k in each[0] for each in tested.values())
  ]
  operands = None
  if trainer.config.eval.operand_examples:
    operands = trainer.test_operands(state)
  for n, (rate, seed) in enumerate(points):
    file = point_file(folder, (rate, seed))
    if file.exists():
      continue  # Written before an interruption.
    files_lib.write_json(
      file,
      {
        'learning_rate': rate,
        'seed': seed,
        **scores[n],
        'trajectory': {
          'steps': [*tested],
          **{k: [each[n][k] for each in tested.values()] for k in names},
        },
        'operands': operands
        and _operand_map(operands['share'][n], operands['count']),
        'commit': revision.running(),
        'train_loss': files_lib.finite(state.loss[n]),
        'train_seconds': round(seconds.get(str(last), 0.0) / len(points), 3),
        'test_seconds': round((time.monotonic() - began) / len(points), 3),
      },
    )
  multihost.barrier('scores')
  if multihost.is_first():
    files_lib.remove([unfinished])


def _filled(
  trainer: task_trainer.TaskTrainer, points: Sequence[Point]
) -> list[Point]:
  """Returns the points, padded to an equal number per device.

  The last point is repeated. Each process needs a point to read the results.
  """
  devices = trainer.devices
  if jax.process_count() == 1:
    devices = min(len(points), devices)
  count = -(-len(points) // devices) * devices
  return [*points, *[points[-1]] * (count - len(points))]


def _unfinished(
  trainer: task_trainer.TaskTrainer,
  points: Sequence[Point],
  folder: pathlib.Path,
) -> pathlib.Path:
  """Returns the folder of the checkpoints of a group."""
  filled = _filled(trainer, points)
  group = hashlib.sha256(repr(filled).encode()).hexdigest()[:8]
  return folder / f'unfinished-{group}'


def _test(
  trainer: task_trainer.TaskTrainer, state: task_trainer.Points, count: int
) -> list[dict[str, list[Any]]]:
  """Returns the scores of each of the first `count` points by length.

  If runs are ranked by 'exact', 'right' has a bit for each example of a length,
  from the first on, in hexadecimal digits: 1 if its answer is right.
  """
  lengths = sorted(trainer.config.eval.lengths)
  scores = [trainer.test(state, length) for length in lengths]
  found: list[dict[str, list[Any]]] = [
    {k: [files_lib.finite(s[k][n]) for s in scores] for k in config_lib.SCORES}
    for n in range(count)
  ]
  if trainer.config.eval.score == 'exact':
    for n, one in enumerate(found):
      one['right'] = [
        np.packbits(s['right'][n]).tobytes().hex() for s in scores
      ]
  return found


def point_file(folder: pathlib.Path, point: Point) -> pathlib.Path:
  """Returns the path of the scores of a point of the run in `folder`."""
  rate, seed = point
  return folder / f'learning_rate={float(rate)!r},seed={seed}.json'


def _train(
  trainer: task_trainer.TaskTrainer,
  state: task_trainer.Points,
  count: int,
  seconds: float,
  label: str,
  preemption: faults.Preemption,
  *,
  test: Callable[[task_trainer.Points, int], None],
  save: Callable[[task_trainer.Points, int, float], None],
  check: Callable[[], None],
) -> task_trainer.Points:
  """Trains a group to the last step, and returns the state.

  Args:
    trainer: trainer of the run.
    state: state to start from.
    count: number of points of the group; further ones repeat the last.
    seconds: time of training in earlier sessions.
    label: start of progress lines.
    preemption: ends the training after a save.
    test: called with the state and the step at each of `eval.steps` before the
      last one.
    save: called with the state, the step, and the seconds of training until
      then, without compilation and tests.
    check: raises the error of a save that failed.
  """
  config = trainer.config.train
  steps, every = config.steps, config.checkpoint_every
  tested = [n for n in trainer.config.eval.steps if n < steps]
  mean_length = (config.min_length + config.max_length) // 2
  tokens = batches.count_tokens(trainer.task, mean_length)
  tokens *= config.batch_size * count
  done = int(state.step[0])
  began = time.monotonic()
  with progress_lib.Progress(
    f'{label} x {count}', steps, unit='tokens', per=tokens, first=done
  ) as progress:
    progress.announce(f'compiling {len(trainer.train_widths)} widths ...')
    state = jax.block_until_ready(trainer.train(state, done, done))
    progress.announce(f'compiled in {time.monotonic() - began:.1f} s')
    progress.start_clock()
    began = time.monotonic() - seconds
    while done < steps:
      # The mean loss covers the same steps after a resume.
      logged = (done // config.log_every + 1) * config.log_every
      last = min(steps, logged, *(n for n in tested if n > done))
      state = trainer.train(state, done, last)
      check()
      progress.update(last, f'loss {float(state.loss[:count].mean()):.4f}')
      if last in tested:
        paused = time.monotonic()
        test(state, last)
        began += time.monotonic() - paused
      preempted = preemption.reached()
      if last // every > done // every or last == steps or preempted:
        save(state, last, time.monotonic() - began)
      if preempted and last < steps:
        raise faults.preempted(f'{label}: saved step {last} of {steps}')
      done = last
  return state


def _write_results(
  config: ml_collections.ConfigDict,
  path: pathlib.Path,
  runs: Sequence[runs_lib.Run],
  points: Sequence[Point],
  baselines: dict[str, Any],
) -> dict[str, Any]:
  """Writes and returns results.json, with the runs finished so far."""
  paper = {
    run: score for task, run, score in config.paper if task == config.task
  }
  entries, unfinished = [], []
  for run in runs:
    name, folder = runs_lib.name(run), path / runs_lib.folder(run)
    files = [point_file(folder, point) for point in points]
    if not all(file.exists() for file in files):
      unfinished.append(name)
      continue
    found = [files_lib.read_json(file, (config.eval.score,)) for file in files]
    entry = {'run': name, **_summary(config, points, found)}
    entries.append(entry | {'paper': paper.pop(name, None), 'points': found})
  results = {
    'task': config.task,
    'score': config.eval.score,
    'train_lengths': [config.train.min_length, config.train.max_length],
    'lengths': sorted(config.eval.lengths),
    **baselines,
    'runs': entries,
    'unfinished': unfinished,
    'paper_only': paper,
    'config': json.loads(config.to_json()),
    'versions': runs_lib.versions(),
  }
  files_lib.write_json(path / 'results.json', results)
  return results


def _summary(
  config: ml_collections.ConfigDict,
  points: Sequence[Point],
  found: Sequence[dict[str, Any]],
) -> dict[str, Any]:
  """Returns the scores of a run beyond the training length.

  Mean and deviation are over seeds, at the learning rate with the best mean, as
  is the map by the digits of both operands.
  """
  kind = config.eval.score
  worst, better = (math.inf, min) if kind == 'loss' else (0.0, max)
  lengths, trained = sorted(config.eval.lengths), config.train.max_length
  longer = [n for n, length in enumerate(lengths) if length > trained]
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
  # Points of an older sweep have no map.
  maps = [
    one['operands']
    for point, one in zip(points, found, strict=True)
    if point[0] == rate and one.get('operands')
  ]
  operands = None
  if maps:
    # Points that diverged have no share, and count as wrong. Points may have
    # been tested on different numbers of examples.
    shares = np.nan_to_num(np.array([one['share'] for one in maps], float))
    counts = np.array([one['count'] for one in maps])
    with np.errstate(invalid='ignore'):
      share = (shares * counts).sum(0) / counts.sum(0)
    operands = _operand_map(share, counts.max(0))
  several = len(by_rate[rate]) > 1 and math.isfinite(sum(by_rate[rate]))
  return {
    'best': files_lib.finite(scores[best]),
    'best_at': {'learning_rate': best[0], 'seed': best[1]},
    'mean': files_lib.finite(statistics.fmean(by_rate[rate])),
    'std': statistics.stdev(by_rate[rate]) if several else None,
    'mean_at': {'learning_rate': rate, 'seeds': len(by_rate[rate])},
    'curve': found[points.index(best)][kind],
    'operands': operands,
  }


def _baselines(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the accuracy of guessing at a length beyond the training length."""
  task = tasks.create(config.task)
  trained = config.train.max_length
  lengths = sorted(n for n in config.eval.lengths if n > trained)
  if not lengths:
    raise errors.ConfigError(
      f'eval.lengths={tuple(config.eval.lengths)} has none beyond '
      f'train.max_length={config.train.max_length}'
    )
  middle = lengths[len(lengths) // 2]
  found = task.baselines(jax.random.key(2), middle)
  accuracies = {name: float(value) for name, value in found.items()}
  return {'chance': task.chance, 'baselines': {'length': middle} | accuracies}


def _operand_map(share: np.ndarray, count: np.ndarray) -> dict[str, Any]:
  """Returns the lists of a map of `TaskTrainer.test_operands`, for JSON."""
  rows = [
    [files_lib.finite(one) for one in row] for row in share.round(4).tolist()
  ]
  return {'share': rows, 'count': count.tolist()}
