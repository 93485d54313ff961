"""Checkpoints through orbax: saved atomically, verified when restored.

On disk, in `checkpoints/{step}`:

  state   params, opt_state and step; layers are always `layer_0`, `layer_1`,
          ..., scanned or not.
  data    position in the data.
  record  checksums of the state, and the config, versions and revision that
          saved it; see `checkpoint_format`.

Fault handling:

  interrupted save    Orbax renames complete checkpoints, so a process that is
                      killed leaves a temporary folder. In an object store,
                      where folders cannot be renamed, it leaves a folder
                      without `commit_success.txt`. The next `save` removes it.
  damaged checkpoint  `checkpoint_format.read` verifies the checksums in the
                      record. It detects a flipped bit, a truncated or missing
                      file, and a renamed step. `restore` falls back to the
                      next older checkpoint. The next `save` moves damaged
                      checkpoints to unreadable_checkpoints.
  full disk           Detected before a save from the free space, and during a
                      save by the exception of orbax. `save`, `check` and
                      `close` raise an error. Older checkpoints are kept.
  failed process      `multihost` reports the failure to all processes, so that
                      all restore the same step and none waits forever.
  other state         `restore` raises an error if shapes differ, or dtypes
                      without `cast`. It warns of other package versions.
"""

from collections.abc import Callable, Iterable, Sequence
import functools
import logging
import sys
from typing import Any, NoReturn

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from lengen_jax import errors
from lengen_jax.data import windows
from lengen_jax.models.config import ModelConfig
from lengen_jax.training import checkpoint_format, files, multihost, runs

# Bytes of record and metadata.
_OVERHEAD = 2**20
_TEMPORARY = '.orbax-checkpoint-tmp*'
_COMPLETE = 'commit_success.txt'


def steps(workdir: files.Path) -> Sequence[int]:
  """Returns the steps of the checkpoints of a run; creates nothing.

  Raises:
    errors.CheckpointError: `checkpoints` is not a folder.
  """
  folder = workdir / 'checkpoints'
  try:
    return ocp.utils.checkpoint_steps(folder)
  except NotADirectoryError:
    raise errors.CheckpointError(
      f'{folder} is a file, not a folder of checkpoints; move it away'
    ) from None


class Checkpointer:
  """Saves and restores the state of one run.

  In a run of several processes, all of them must make the same calls.
  """

  def __init__(
    self,
    workdir: files.Path,
    config: ModelConfig | None,
    *,
    keep: int = 2,
    keep_every: int = 0,
    keep_steps: Sequence[int] = (),
    best: str | None = None,
    run_config: Any = None,
  ) -> None:
    """Opens the checkpoints of a run.

    Args:
      workdir: absolute path of the run.
      config: ModelConfig; None if no layers are scanned.
      keep: number of newest checkpoints to keep.
      keep_every: also keep steps that are multiples of this; 0 for none.
      keep_steps: also keep these steps.
      best: 'max' or 'min' to also keep the checkpoint with the largest or
        smallest value, see `save`; None otherwise.
      run_config: config of the run to record, JSON-able.

    Raises:
      errors.CheckpointError: the folder cannot be created or read.
    """
    self._workdir, self._folder = workdir, workdir / 'checkpoints'
    self._config, self._run_config = config, run_config
    self._better = {'max': max, 'min': min, None: None}[best]
    self._versions = runs.versions()
    self._saving: int | None = None
    self._unreadable: list[int] = []
    # The durable step, in a tuple; None if it has to be listed.
    self._durable: tuple[int | None] | None = None
    self._values: dict[int, float | None] = {}
    self._manager = _manager(
      self._folder, keep, keep_every, keep_steps, self._best
    )

  def save(
    self,
    state: Any,
    batches: windows.Batches | None = None,
    *,
    value: float | None = None,
  ) -> None:
    """Starts to save in the background; `check` and `close` raise its errors.

    First moves checkpoints that `restore` could not read aside. The state may
    be donated afterwards. The position of `batches` is saved before this
    returns. `value` ranks checkpoints; None, NaN or infinity is never best.

    Raises:
      errors.CheckpointError: this save or the previous one failed; older
        checkpoints stay.
    """
    self._finish()
    self.set_aside_unreadable()
    step = int(np.max(state.step))
    existing = multihost.broadcast(sorted(self._steps()))
    if step in existing:
      return
    if existing and step < existing[-1]:
      raise errors.CheckpointError(
        f'step {step} cannot be saved in {self._folder}, which has step '
        f'{existing[-1]}; move newer steps away to resume from an older one'
      )
    self._make_room(step, state)
    # A copy on the devices, for which there may be too little memory.
    state = checkpoint_format.unstacked(state)
    try:
      self._values[step] = files.finite(value)
      record = checkpoint_format.make_record(
        step,
        state,
        value=self._values[step],
        data_folders=0 if batches is None else jax.process_count(),
        config=self._run_config,
        versions=self._versions,
      )
      items = {
        'record': ocp.args.JsonSave(record),
        'state': ocp.args.StandardSave(state),
      }
      if batches is not None:
        # First: it is synchronous and fails before asynchronous items start.
        data = checkpoint_format.SaveData(batches, step)
        items = {'data': data, **items}
      self._manager.save(step, args=ocp.args.Composite(**items), force=True)
      self._saving = step
    except errors.LengenError:
      raise
    except Exception as error:  # Orbax raises many types for a full disk.
      self._abandon(step, error)

  def rate(self, step: int, value: float | None) -> None:
    """Waits for the save of a step and gives it a value; see `save`.

    Raises:
      errors.CheckpointError: the save failed, or the value cannot be written.
    """
    self._finish()
    self._values[step] = files.finite(value)
    problem = None
    if multihost.is_first():
      try:
        checkpoint_format.write_value(
          self._folder / str(step), self._values[step]
        )
      except (OSError, ValueError) as error:
        problem = multihost.first_line(error)
    problem = multihost.any_problem(problem)
    if problem is not None:
      self._refuse(step, problem)

  def check(self) -> None:
    """Raises if a save has failed; cheap enough for every step.

    Raises:
      errors.CheckpointError: it failed; older checkpoints stay.
    """
    if self._saving is not None and not self._manager.is_saving_in_progress():
      self._finish()

  def close(self) -> None:
    """Waits for the current save.

    Raises:
      errors.CheckpointError: it failed; older checkpoints stay.
    """
    try:
      self._finish()
    finally:
      self._manager.close()

  def durable_step(self) -> int | None:
    """Returns the newest step with a complete checkpoint, or None.

    Files are listed while a save is in progress, and once after it: training
    logs this number every few steps, and an object store is slow.
    """
    if self._saving is not None or self._durable is None:
      self._durable = (max(self._steps(), default=None),)
    return self._durable[0]

  def best_step(self) -> int | None:
    """Returns the step on disk with the best value, or None."""
    return self._best(self._steps())

  def record(self, step: int) -> dict[str, Any]:
    """Returns the record of a step: value, config, versions and revision.

    Raises:
      errors.CheckpointError: there is none, or it is damaged.
    """
    try:
      return checkpoint_format.read_record(self._folder / str(step))
    except (OSError, ValueError) as error:
      raise errors.CheckpointError(
        f'step {step} in {self._folder}: {multihost.first_line(error)}'
      ) from error

  def restore(
    self,
    abstract_state: Any,
    warn: Callable[[str], None] = print,
    *,
    batches: windows.Batches | None = None,
    step: int | None = None,
    cast: bool = False,
  ) -> Any:
    """Restores the newest readable checkpoint; returns None if there is none.

    Args:
      abstract_state: shapes, dtypes and shardings of the state; the mesh may
        differ from the one it was saved on. With an opt_state of None, only
        params and step are read.
      warn: called by the first process with a line for each checkpoint that is
        skipped, and for other versions.
      batches: data of the run, whose position is restored too.
      step: restore this step only; None for the newest.
      cast: whether to convert a state of other dtypes.

    Raises:
      errors.CheckpointError: none of the existing checkpoints can be read, the
        newest has another model, or `step` is missing or damaged.
    """
    self._finish()
    self._unreadable, self._durable = [], None
    existing = multihost.broadcast(sorted(self._steps(), reverse=True))
    if step is not None and step not in existing:
      raise errors.CheckpointError(
        f'{self._folder} has no step {step}; there are: '
        + (', '.join(map(str, reversed(existing))) or 'none')
      )
    problems = []
    for candidate in existing if step is None else [step]:
      state, record, problem = checkpoint_format.read(
        self._folder / str(candidate),
        abstract_state,
        config=self._config,
        batches=batches,
        cast=cast,
      )
      if problem is None:
        self._warn_of_versions(record, warn)
        return state
      if step is not None:
        raise errors.CheckpointError(
          f'step {step} in {self._folder} cannot be read: {problem}'
        )
      problems.append(f'step {candidate}: {problem}')
      self._unreadable.append(candidate)
      if candidate != existing[-1] and multihost.is_first():
        warn(f'skipping an unreadable checkpoint, {problems[-1]}')
    if problems:
      raise errors.CheckpointError(
        f'no checkpoint in {self._folder} can be read ('
        + '; '.join(problems)
        + '); nothing was changed; delete that folder to start over'
      )
    return None

  def set_aside_unreadable(self) -> None:
    """Moves checkpoints that `restore` skipped to unreadable_checkpoints.

    Raises:
      errors.CheckpointError: they cannot be moved.
    """
    if not self._unreadable:
      return
    aside = self._workdir / 'unreadable_checkpoints'
    problem = None
    if multihost.is_first():
      try:
        for step in self._unreadable:
          files.move_into(aside, self._folder / str(step))
      except OSError as error:
        problem = (
          f'cannot move step {step} of {self._folder} into {aside}: '
          f'{multihost.first_line(error)}'
        )
    problem = multihost.any_problem(problem)
    if problem is not None:
      raise errors.CheckpointError(problem)
    for step in self._unreadable:
      self._values.pop(step, None)
    self._unreadable = []
    self._manager.reload()

  def _steps(self) -> set[int]:
    return {*steps(self._workdir)} - {*self._unreadable}

  def _best(self, candidates: Iterable[int]) -> int | None:
    """Returns the best of some steps, the newest of equals, or None."""
    if self._better is None:
      return None
    values = {step: self._value(step) for step in candidates}
    values = {step: v for step, v in values.items() if v is not None}
    best = self._better(values.values(), default=None)
    return max((step for step in values if values[step] == best), default=None)

  def _value(self, step: int) -> float | None:
    if step not in self._values:
      try:
        self._values[step] = self.record(step)['value']
      except errors.CheckpointError:  # `restore` reports it.
        self._values[step] = None
    return self._values[step]

  def _warn_of_versions(
    self, record: dict[str, Any], warn: Callable[[str], None]
  ) -> None:
    others = checkpoint_format.version_differences(record, self._versions)
    if others and multihost.is_first():
      warn(
        f'step {record["step"]} was saved with {others}; the last bits of '
        'further steps may differ'
      )

  def _make_room(self, step: int, state: Any) -> None:
    """Removes incomplete checkpoints; raises if there is too little space."""
    if multihost.is_first():
      # `restore` does not do this, because another process may be writing.
      files.remove(self._folder.glob(f'*{_TEMPORARY}'))
      if files.is_remote(self._folder):
        # In an object store, orbax marks complete folders instead.
        files.remove(
          folder
          for folder in self._folder.glob('*')
          if folder.name.isdecimal() and not (folder / _COMPLETE).exists()
        )
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + _OVERHEAD
    free = files.free_bytes(self._folder)
    lacks = free is not None and free < needed
    problem = multihost.any_problem(
      f'it takes {files.readable_size(needed)}' if lacks else None
    )
    if problem is not None:
      self._refuse(step, problem)

  def _finish(self) -> None:
    """Waits for the current save; raises if it failed."""
    if self._saving is None:
      return
    step, self._saving = self._saving, None
    self._durable = None
    try:
      self._manager.wait_until_finished()
    except Exception as error:  # Orbax raises many types for a full disk.
      self._abandon(step, error)

  def _abandon(self, step: int, error: Exception) -> NoReturn:
    """Removes the files of a failed save, and raises."""
    self._values.pop(step, None)
    if multihost.is_first():
      for folder in self._folder.glob(f'{step}{_TEMPORARY}'):
        # Orbax does not wait for its other writers after one has failed.
        files.wait_until_unchanged(folder)
        files.remove([folder])
    self._manager.reload()
    self._refuse(step, multihost.first_line(error), error)

  def _refuse(
    self, step: int, problem: str, error: Exception | None = None
  ) -> NoReturn:
    free = files.free_bytes(self._folder)
    room = '' if free is None else f' with {files.readable_size(free)} free'
    raise errors.SaveError(
      f'step {step} cannot be saved in {self._folder}{room}: {problem}; older '
      'checkpoints are unchanged'
    ) from error


def _manager(
  folder: files.Path,
  keep: int,
  keep_every: int,
  keep_steps: Sequence[int],
  best: Callable[[Iterable[int]], int | None],
) -> ocp.CheckpointManager:
  """Creates the orbax manager of a folder; see `Checkpointer`."""
  _silence_orbax()
  policies = [preservation_policy.LatestN(keep), _KeepBest(best)]
  if keep_every:
    policies.append(preservation_policy.EveryNSteps(keep_every))
  if keep_steps:
    policies.append(preservation_policy.CustomSteps([*keep_steps]))
  policy = preservation_policy.AnyPreservationPolicy(policies)
  options = ocp.CheckpointManagerOptions(preservation_policy=policy)
  try:
    manager = ocp.CheckpointManager(folder, options=options)
  except OSError as error:
    raise errors.CheckpointError(
      f'cannot open {folder}: {multihost.first_line(error)}'
    ) from error
  # Orbax would query the preemption service with the step number.
  # `faults.Preemption` uses the number of the call.
  manager.reached_preemption = lambda step: False
  return manager


class _KeepBest(preservation_policy.PreservationPolicy):
  """Keeps the best checkpoint.

  Orbax's own BestN keeps its values in files without checksums.
  """

  def __init__(self, best: Callable[[Iterable[int]], int | None]) -> None:
    self._best = best

  def should_preserve(
    self,
    checkpoints: Sequence[Any],
    *,
    context: preservation_policy.PreservationContext,
  ) -> Sequence[bool]:
    best = self._best([checkpoint.step for checkpoint in checkpoints])
    return [checkpoint.step == best for checkpoint in checkpoints]


@functools.cache
def _silence_orbax() -> None:
  """Keeps orbax from printing tracebacks of errors that it also raises."""
  logging.getLogger('absl').addFilter(
    lambda entry: not (entry.exc_info and 'orbax' in entry.pathname)
  )
  # Its parallel reads are left unfinished once one of them fails.
  logging.getLogger('asyncio').addFilter(
    lambda entry: 'orbax' not in entry.getMessage()
  )
  default = sys.unraisablehook

  def show(unraisable: Any) -> None:
    code = getattr(unraisable.object, 'cr_code', None)
    unfinished = code is not None and 'orbax' in code.co_filename
    if not unfinished and str(unraisable.exc_value) != 'Event loop is closed':
      default(unraisable)

  sys.unraisablehook = show
