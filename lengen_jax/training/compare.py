"""Comparisons: trains each run and evaluates all on the same tokens."""

import bisect
from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import ml_collections

from lengen_jax import data, errors
from lengen_jax.training import (
  evaluate,
  faults,
  files,
  loop,
  multihost,
  pretrained,
)
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import workdir as workdir_lib
from lengen_jax.types import PathLike


def compare(
  config: ml_collections.ConfigDict,
  workdir: PathLike,
  runs: Sequence[runs_lib.Run],
) -> dict[str, Any]:
  """Trains and evaluates each run; finished runs are not repeated.

  The workdir gets results.json, whose contents are returned, and a folder per
  trained run. All runs share `config`. Runs that differ only in `tested_as` are
  trained once. If another process is comparing in the workdir, this call waits.

  Raises:
    errors.PreemptedError: stopped by SIGTERM, in training or in evaluation.
    errors.DivergedError: a run diverged; raised after the others are finished.
    errors.LengenError: a run is invalid; raised before any run is trained.
  """
  configs = [runs_lib.configure(config, run) for run in runs]
  checked = [run_lib.Run(each) for each in configs]
  for run, each in zip(runs, checked, strict=True):
    each.check_step()
    if run.tested_as:
      each.tested_as(run.tested_as)
  first = checked[0]
  corpus = data.load(first.data, max(first.eval.lengths))
  if corpus.scored_by != 'loss':
    raise errors.ConfigError(
      f'{config.data.task} is scored by answers, which have no curve; train '
      'each run by lengen train and score it by lengen eval'
    )
  for each in checked:
    loop.check_corpus(each, corpus)
  windows = corpus.evaluation(first.eval)
  with files.locked(workdir):
    return _compare(config, workdir, runs, configs, corpus, windows)


def finished(
  workdir: PathLike, runs: Sequence[runs_lib.Run]
) -> list[dict[str, Any] | None]:
  """Returns the curve of each run in a workdir; None if it is not finished."""
  path = files.locate(workdir)
  files_of = [path / runs_lib.folder(run) / _curve_file(run) for run in runs]
  # Processes might see files of the shared folder at different times.
  done = multihost.broadcast([file.exists() for file in files_of])
  return [
    files.read_json(file, ('encoding', 'loss')) if is_done else None
    for file, is_done in zip(files_of, done, strict=True)
  ]


def _compare(
  config: ml_collections.ConfigDict,
  workdir: PathLike,
  runs: Sequence[runs_lib.Run],
  configs: Sequence[ml_collections.ConfigDict],
  corpus: Any,
  windows: Any,
) -> dict[str, Any]:
  """Trains and evaluates what is missing in a locked workdir; see `compare`.

  `configs` are those of the runs.
  """
  shared = runs_lib.configure(config, runs_lib.Run('', '', ''))
  path = workdir_lib.claim(workdir, shared, corpus.info, workdir_lib.COMPARISON)
  curves = finished(path, runs)
  diverged: dict[str, errors.DivergedError] = {}
  try:
    for number, (run, each) in enumerate(zip(runs, configs, strict=True)):
      folder = runs_lib.folder(run)
      if folder in diverged:
        continue
      if curves[number] is None:
        label = f'[{number + 1}/{len(runs)}] {runs_lib.name(run)}'
        file = path / folder / _curve_file(run)
        try:
          curve = _train_and_test(each, run, file, corpus, windows, label)
        except errors.DivergedError as error:
          # The other runs do not depend on it.
          diverged[folder] = errors.DivergedError(
            f'{runs_lib.name(run)}: {error}'
          )
          print(f'{label}: {error}', flush=True)
          continue
        curves[number] = curve
        files.write_json(file, curve)
      known = [curve for curve in curves if curve is not None]
      found = evaluate.results(shared, corpus, curves=known)
      found['unfinished'] = [
        runs_lib.name(one)
        for one, curve in zip(runs, curves, strict=True)
        if curve is None
      ]
      files.write_json(path / 'results.json', found)
  except errors.LengenError:
    # If no run was started, the corrected command can claim the workdir.
    if not any(path.glob(f'*/{workdir_lib.RUN}')) and multihost.is_first():
      (path / workdir_lib.COMPARISON).unlink(missing_ok=True)
    raise
  for error in diverged.values():
    raise error
  return found


def _train_and_test(
  config: ml_collections.ConfigDict,
  run: runs_lib.Run,
  saved: files.Path,
  corpus: Any,
  windows: Any,
  label: str,
) -> dict[str, Any]:
  """Returns the losses of a run by length, also at earlier steps.

  `saved` is the file for them in the run's folder. The model is in memory for
  no longer than the call.
  """
  folder = saved.parent
  trained = loop.train(config, folder, corpus=corpus, label=label)
  # Earlier steps are restored beside these weights.
  trained = dataclasses.replace(trained, state=trained.state.weights())
  tested = trained.tested_as(run.tested_as)
  with faults.Preemption() as preemption:
    stop = functools.partial(
      preemption.stop, f'{folder} is trained, but not evaluated'
    )
    before = saved.with_name('trajectory-' + saved.name)
    trajectory = _trajectory(trained, run, folder, before, windows, label, stop)
    curve = evaluate.curve(tested, windows, label, stop)
  for key, earlier in trajectory.items():
    trajectory[key] = [*earlier, curve[key]]
  curve['trajectory'] = trajectory
  if run.tested_as:
    curve |= dict(zip(run._fields[:3], run[:3], strict=True))
    curve['tested_as'] = str(run.tested_as)
  return curve


def _curve_file(run: runs_lib.Run) -> str:
  """Returns the name of the file of a run's losses in the run's folder."""
  if run.tested_as:
    return f'tested-{runs_lib.folder(run.tested_as)}.json'
  return 'curve.json'


def _trajectory(
  trained: run_lib.Trained,
  run: runs_lib.Run,
  folder: files.Path,
  saved: files.Path,
  windows: Any,
  label: str,
  after_batch: Callable[[], None],
) -> dict[str, list[Any]]:
  """Returns earlier steps of a run and their losses by length.

  `saved` is a file of the result so far, which an interrupted call continues.
  A step whose checkpoint cannot be read is left out.
  """
  found: dict[str, list[Any]] = {'steps': [], 'loss': [], 'window_loss': []}
  known = files.read_json(saved) if saved.exists() else found
  # A file of an earlier version lacks values: they are computed anew.
  if known.keys() == found.keys():
    found = known
  for step in trained.run.eval.steps:
    if step in found['steps'] or step >= int(trained.state.step):
      continue
    try:
      losses = evaluate.losses(
        pretrained.earlier(trained, folder, step).tested_as(run.tested_as),
        windows,
        f'{label}: step {step}',
        after_batch,
      )
    except errors.CheckpointError as error:
      print(f'{label}: step {step} is not tested: {error}', flush=True)
      continue
    tested = {
      'steps': step,
      'loss': [one.loss for one in losses],
      'window_loss': [[*one.window_loss] for one in losses],
    }
    # An earlier attempt may have left out a step before the last one.
    n = bisect.bisect(found['steps'], step)
    found = {
      key: [*values[:n], tested[key], *values[n:]]
      for key, values in found.items()
    }
    files.write_json(saved, found)
  return found
