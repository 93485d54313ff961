"""Orbax's manager of checkpoints: which of them stay, and that it is quiet."""

import functools
import logging
import sys

import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from lengen_jax import errors
from lengen_jax.training import multihost


def create(folder, keep, keep_every, best):
  """Makes the manager of the checkpoints in a folder.

  Args:
    folder: path; made if missing.
    keep: how many of the newest checkpoints stay.
    keep_every: those of steps that this divides stay too; 0 for none.
    best: gives the one of some steps that stays too, or None.

  Returns:
    An `ocp.CheckpointManager`.

  Raises:
    errors.CheckpointError: the folder cannot be made or read.
  """
  _hush_orbax()
  policies = [preservation_policy.LatestN(keep), _Best(best)]
  if keep_every:
    policies.append(preservation_policy.EveryNSteps(keep_every))
  any_policy = preservation_policy.AnyPreservationPolicy(policies)
  try:
    return ocp.CheckpointManager(
      folder,
      options=ocp.CheckpointManagerOptions(preservation_policy=any_policy),
    )
  except OSError as error:
    raise errors.CheckpointError(
      f'cannot open {folder}: {multihost.first_line(error)}'
    ) from error


class _Best(preservation_policy.PreservationPolicy):
  """Keeps the best checkpoint.

  Orbax has such a policy; it keeps its values in files without checksums.
  """

  def __init__(self, best):
    self._best = best

  def should_preserve(self, checkpoints, *, context):
    best = self._best([checkpoint.step for checkpoint in checkpoints])
    return [checkpoint.step == best for checkpoint in checkpoints]


@functools.cache
def _hush_orbax():
  """Keeps orbax from printing tracebacks of errors that it also raises."""
  logging.getLogger('absl').addFilter(
    lambda entry: not (entry.exc_info and 'orbax' in entry.pathname)
  )
  # It reads in parallel, and leaves the rest to itself once one read fails.
  logging.getLogger('asyncio').addFilter(
    lambda entry: 'orbax' not in entry.getMessage()
  )
  shown = sys.unraisablehook

  def show(unraisable):
    code = getattr(unraisable.object, 'cr_code', None)
    left_over = code is not None and 'orbax' in code.co_filename
    if not left_over and str(unraisable.exc_value) != 'Event loop is closed':
      shown(unraisable)

  sys.unraisablehook = show
