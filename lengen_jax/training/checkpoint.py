"""Checkpoints through orbax: the state, layers unstacked, by step.

On disk: `checkpoints/{step}/state` with params, opt_state and step; layers are
always `layer_0`, `layer_1`, ..., scanned or not. `checkpoints/{step}/data` says
where the data stands.
"""

import contextlib
import dataclasses
import gc
import logging
import os

import jax
import numpy as np
import orbax.checkpoint as ocp

from lengen_jax import errors
from lengen_jax.models import stacking


def steps(workdir):
  """The steps that a run has checkpoints of; reads and makes nothing else."""
  return ocp.utils.checkpoint_steps(workdir / 'checkpoints')


class Checkpointer:
  """Saves and restores the state of one run."""

  def __init__(self, workdir, config, *, keep=2):
    """Opens the checkpoints of a run.

    Args:
      workdir: absolute path of the run.
      config: its ModelConfig; None where no layers are scanned.
      keep: how many of the newest checkpoints stay.
    """
    self._folder = workdir / 'checkpoints'
    self._config = config
    self._unreadable = []
    self._manager = ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True),
    )

  def save(self, state, batches=None):
    """Begins to save; `close` waits for it.

    Args:
      state: of the run.
      batches: the `data.windows.Batches` of the run, which are saved before
        this returns; None where data has no state.

    Raises:
      errors.CheckpointError: it cannot be written; older ones stay.
    """
    step = int(np.max(state.step))
    try:
      if step in self._manager.all_steps():
        return
      items = {'state': ocp.args.StandardSave(_unstack(state))}
      if batches is not None:
        items['data'] = _BatchesArgs(batches)
      self._manager.save(step, args=ocp.args.Composite(**items))
    except (OSError, ValueError) as error:
      raise errors.CheckpointError(
        f'cannot save step {step} in {self._folder}: {_first_line(error)}'
      ) from error

  def restore(self, abstract_state, warn=print, *, batches=None):
    """The newest readable state.

    Args:
      abstract_state: shapes, dtypes and shardings of the state.
      batches: the `data.windows.Batches` of the run, which go on from there;
        None where data has no state or none is needed.
      warn: told in one line of each checkpoint that is skipped.

    Returns:
      The state, or None where there is no checkpoint.

    Raises:
      errors.CheckpointError: there are checkpoints and none can be read.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    target = jax.eval_shape(_unstack, abstract_state)
    target = jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=sharding
      ),
      target,
      jax.tree.map(lambda _: _sharding(abstract_state), target),
    )
    problems = []
    for step in steps:
      try:
        with _quiet():
          items = {'state': ocp.args.StandardRestore(target)}
          if batches is not None:
            items['data'] = _BatchesArgs(batches)
          restored = self._manager.restore(
            step, args=ocp.args.Composite(**items)
          )
        return _stack(restored['state'], self._config)
      except errors.LengenError:
        raise
      except Exception as error:  # Whatever a broken file makes orbax raise.
        problems.append(f'step {step}: {_first_line(error)}')
        self._unreadable.append(step)
        if step != steps[-1]:
          warn(f'skipping an unreadable checkpoint, {problems[-1]}')
    if problems:
      raise errors.CheckpointError(
        f'no checkpoint in {self._folder} can be read ('
        + '; '.join(problems)
        + '); nothing was changed; delete that folder to start over'
      )
    return None

  def set_aside_unreadable(self):
    """Moves checkpoints that `restore` had to skip out of the way.

    They stay in the workdir, under unreadable_checkpoints; orbax would never
    write their steps again.
    """
    aside = self._folder.parent / 'unreadable_checkpoints'
    for step in self._unreadable:
      aside.mkdir(exist_ok=True)
      target = aside / f'{step}-{len(list(aside.iterdir()))}'
      os.replace(self._folder / str(step), target)
    if self._unreadable:
      self._unreadable = []
      self._manager.reload()

  def close(self):
    """Waits for saves under way.

    Raises:
      errors.CheckpointError: a save failed.
    """
    try:
      self._manager.wait_until_finished()
    except (OSError, ValueError) as error:
      raise errors.CheckpointError(
        f'a save in {self._folder} failed: {_first_line(error)}'
      ) from error
    finally:
      self._manager.close()


class _BatchesHandler(ocp.CheckpointHandler):
  """Lets the data write into, and read from, a folder of the checkpoint."""

  def save(self, directory, args):
    args.batches.save(directory)

  def restore(self, directory, args):
    args.batches.restore(directory)

  def finalize(self, directory):
    pass


@ocp.args.register_with_handler(
  _BatchesHandler, for_save=True, for_restore=True
)
@dataclasses.dataclass
class _BatchesArgs(ocp.args.CheckpointArgs):
  """What the handler is given."""

  batches: object


@contextlib.contextmanager
def _quiet():
  """Keeps tasks that failed beside the first from printing tracebacks."""
  logger = logging.getLogger('asyncio')
  level = logger.level
  logger.setLevel(logging.CRITICAL + 1)
  try:
    yield
  finally:
    gc.collect()
    logger.setLevel(level)


def _is_params(node):
  return isinstance(node, dict) and 'embed' in node


def _unstack(state):
  """Unstacks the layers of the parameters and of every tree like them."""
  return jax.tree.map(
    lambda node: stacking.unstack(node) if _is_params(node) else node,
    state,
    is_leaf=_is_params,
  )


def _stack(state, config):
  if config is None or not config.scan_layers:
    return state
  return jax.tree.map(
    lambda node: stacking.stack(node, config) if _is_params(node) else node,
    state,
    is_leaf=_is_params,
  )


def _sharding(abstract_state):
  return jax.tree.leaves(abstract_state)[0].sharding


def _first_line(error):
  text = str(error).strip() or type(error).__name__
  return text.splitlines()[0][:200]
