"""Checkpoints through orbax: written whole, checked when read.

On disk, in `checkpoints/{step}`:

  state   params, opt_state and step; layers are always `layer_0`, `layer_1`,
          ..., scanned or not.
  data    where the data stands; see `saved_data`.
  record  checksums of the state, and what wrote it: config, versions, revision;
          see `saved_state`.
"""

from collections.abc import Callable
from collections.abc import Sequence
import math
import pathlib
from typing import Any

from etils import epath
import jax
import numpy as np
import orbax.checkpoint as ocp

from lengen_jax import errors
from lengen_jax.data import windows
from lengen_jax.models.config import ModelConfig
from lengen_jax.training import files
from lengen_jax.training import manager
from lengen_jax.training import multihost
from lengen_jax.training import runs
from lengen_jax.training import saved_data
from lengen_jax.training import saved_state
from lengen_jax.training import unstacked

# Bytes beside the arrays: record and metadata.
_OVERHEAD = 2**20
_UNFINISHED = '.orbax-checkpoint-tmp*'


def steps(workdir: pathlib.Path | epath.Path) -> Sequence[int]:
  """The steps that a run has checkpoints of; reads and makes nothing else.

  Raises:
    errors.CheckpointError: what should hold them is no folder.
  """
  folder = workdir / 'checkpoints'
  try:
    return ocp.utils.checkpoint_steps(folder)
  except NotADirectoryError:
    raise errors.CheckpointError(
      f'{folder} is a file and no folder of checkpoints; move it away'
    ) from None


class Checkpointer:
  """Saves and restores the state of one run.

  In a run of several processes all of them make the same calls.
  """

  def __init__(
    self,
    workdir: pathlib.Path | epath.Path,
    config: ModelConfig | None,
    *,
    keep: int = 2,
    keep_every: int = 0,
    best: str | None = None,
    run_config: Any = None,
  ) -> None:
    """Opens the checkpoints of a run.

    Args:
      workdir: absolute path of the run.
      config: its ModelConfig; None where no layers are scanned.
      keep: how many of the newest checkpoints stay.
      keep_every: those of steps that this divides stay too; 0 for none.
      best: 'max' or 'min' if that with the largest or smallest value is to
        stay too, see `save`; None if not.
      run_config: what to record as the config of the run, JSON-able.

    Raises:
      errors.CheckpointError: the folder cannot be made or read.
    """
    self._workdir, self._folder = workdir, workdir / 'checkpoints'
    self._run_config = run_config
    self._better = {'max': max, 'min': min, None: None}[best]
    self._versions = runs.versions()
    self._saving: int | None = None
    self._unreadable: list[int] = []
    self._values: dict[int, float | None] = {}
    self._manager = manager.create(self._folder, keep, keep_every, self._best)
    self._reader = saved_state.Reader(config, self._versions)

  def save(
    self,
    state: Any,
    batches: windows.Batches | None = None,
    *,
    value: float | None = None,
  ) -> None:
    """Begins to save; `check` and `close` say whether it went well.

    Checkpoints that `restore` had to skip are set aside first.

    Args:
      state: of the run; may be donated afterwards.
      batches: the `data.windows.Batches` of the run, which are saved before
        this returns; None where data has no state.
      value: tells the best checkpoint; one without is never the best, nor is
        one that is not finite.

    Raises:
      errors.CheckpointError: this or the one before cannot be saved; older
        ones stay.
    """
    self._finish()
    self.set_aside_unreadable()
    step = int(np.max(state.step))
    there = multihost.broadcast(sorted(self._steps()))
    if step in there:
      return
    if there and step < there[-1]:
      raise errors.CheckpointError(
        f'step {step} cannot be saved in {self._folder}, which has step '
        f'{there[-1]}; move the newer ones away to go on from an older'
      )
    self._make_room(step, state)
    try:
      state = unstacked.take_apart(state)
      self._values[step] = _finite(value)
      record = saved_state.make_record(
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
        # First, as it alone is done at once, and so fails before others begin.
        items = {'data': saved_data.SaveArgs(batches, step), **items}
      self._manager.save(step, args=ocp.args.Composite(**items), force=True)
      self._saving = step
    except errors.LengenError:
      raise
    except Exception as error:  # Whatever a full disk makes orbax raise.
      self._give_up(step, error)

  def check(self) -> None:
    """Raises if a save has failed meanwhile; cheap, for every step.

    Raises:
      errors.CheckpointError: it has; older checkpoints stay.
    """
    if self._saving is not None and not self._manager.is_saving_in_progress():
      self._finish()

  def close(self) -> None:
    """Waits for the save under way.

    Raises:
      errors.CheckpointError: it failed; older checkpoints stay.
    """
    try:
      self._finish()
    finally:
      self._manager.close()
      self._reader.close()

  def durable_step(self) -> int | None:
    """The newest step that is all on disk; None where there is none."""
    return max(self._steps(), default=None)

  def best_step(self) -> int | None:
    """The step on disk with the best value; None where none has one."""
    return self._best(self._steps())

  def record(self, step: int) -> dict[str, Any]:
    """What was recorded of a step: value, config, versions and revision.

    Raises:
      errors.CheckpointError: there is none, or it is damaged.
    """
    try:
      return saved_state.read_record(self._folder / str(step))
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
    """The newest good state.

    Args:
      abstract_state: shapes, dtypes and shardings of the state; their mesh may
        be another than that it was saved on.
      warn: told in one line, in the first process, of each checkpoint that is
        skipped, and of other versions.
      batches: the `data.windows.Batches` of the run, which go on from there;
        None where data has no state or none is needed.
      step: the only one that will do; None for the newest.
      cast: whether a state of other dtypes is converted.

    Returns:
      The state, or None where there is no checkpoint.

    Raises:
      errors.CheckpointError: there are checkpoints and none can be read, or
        the newest is of another model; or `step` is not there or not good.
    """
    self._finish()
    self._unreadable = []
    there = multihost.broadcast(sorted(self._steps(), reverse=True))
    if step is not None and step not in there:
      raise errors.CheckpointError(
        f'{self._folder} has no step {step}; there are: '
        + (', '.join(map(str, reversed(there))) or 'none')
      )
    problems = []
    for one in there if step is None else [step]:
      state, problem = self._reader.read(
        self._folder / str(one),
        abstract_state,
        batches=batches,
        cast=cast,
        warn=warn,
      )
      if problem is None:
        return state
      if step is not None:
        raise errors.CheckpointError(
          f'step {step} in {self._folder} cannot be read: {problem}'
        )
      problems.append(f'step {one}: {problem}')
      self._unreadable.append(one)
      if one != there[-1] and multihost.is_first():
        warn(f'skipping an unreadable checkpoint, {problems[-1]}')
    if problems:
      raise errors.CheckpointError(
        f'no checkpoint in {self._folder} can be read ('
        + '; '.join(problems)
        + '); nothing was changed; delete that folder to start over'
      )
    return None

  def set_aside_unreadable(self) -> None:
    """Moves checkpoints that `restore` had to skip out of the way.

    They stay in the workdir, under unreadable_checkpoints; their steps are
    written again.

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

  def _steps(self):
    return {*steps(self._workdir)} - {*self._unreadable}

  def _best(self, candidates):
    """The best of some steps, the newest of equals; None without values."""
    if self._better is None:
      return None
    values = {step: self._value(step) for step in candidates}
    values = {step: v for step, v in values.items() if v is not None}
    best = self._better(values.values(), default=None)
    return max((step for step in values if values[step] == best), default=None)

  def _value(self, step):
    if step not in self._values:
      try:
        record = saved_state.read_record(self._folder / str(step))
        self._values[step] = record['value']
      except (OSError, ValueError):  # `restore` would say so.
        self._values[step] = None
    return self._values[step]

  def _make_room(self, step, state):
    """Removes what was begun and not finished; raises unless there is room."""
    if multihost.is_first():
      # Not before: who only reads leaves alone what another is writing.
      files.remove(self._folder.glob(f'*{_UNFINISHED}'))
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + _OVERHEAD
    free = files.free_bytes(self._folder)
    lacks = free is not None and free < needed
    problem = multihost.any_problem(
      f'it takes {files.readable_size(needed)}' if lacks else None
    )
    if problem is not None:
      self._refuse(step, problem)

  def _finish(self):
    """Waits for the save under way, and raises if it failed."""
    if self._saving is None:
      return
    step, self._saving = self._saving, None
    try:
      self._manager.wait_until_finished()
    except Exception as error:  # Whatever a full disk makes orbax raise.
      self._give_up(step, error)

  def _give_up(self, step, error):
    """Removes what was written of a step, and raises."""
    self._values.pop(step, None)
    if multihost.is_first():
      for begun in self._folder.glob(f'{step}{_UNFINISHED}'):
        # Orbax does not wait for the rest of its writers once one fails.
        files.wait_until_unchanged(begun)
        files.remove([begun])
    self._manager.reload()
    self._refuse(step, multihost.first_line(error), error)

  def _refuse(self, step, problem, error=None):
    free = files.free_bytes(self._folder)
    room = '' if free is None else f' with {files.readable_size(free)} free'
    raise errors.SaveError(
      f'step {step} cannot be saved in {self._folder}{room}: {problem}; older '
      'checkpoints are as they were'
    ) from error


def _finite(value):
  """A float; None for what cannot be compared."""
  return float(value) if value is not None and math.isfinite(value) else None
