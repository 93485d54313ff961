"""What can befall a run: being told to stop, and standing still."""

import contextlib
import faulthandler
import math
import os
import signal
import sys
import threading
import time

import jax
from jax.experimental import multihost_utils


class Preemption:
  """Notices SIGTERM, by which machines that are taken away announce it.

  A context manager. Of a run of several processes, all stop at the same step
  whichever was told; they agree on it through jax's preemption service.
  """

  def __init__(self):
    self._told = False

  def __enter__(self):
    self._alone = jax.process_count() == 1
    self._handles = threading.current_thread() is threading.main_thread()
    if self._alone and self._handles:
      self._before = signal.signal(signal.SIGTERM, self._tell)
    return self

  def __exit__(self, *exception):
    if self._alone and self._handles:
      signal.signal(signal.SIGTERM, self._before)

  def reached(self, step):
    """Whether to stop after this step; ask at every step.

    Args:
      step: steps done.
    """
    if self._alone:
      return self._told
    return multihost_utils.reached_preemption_sync_point(step)

  def _tell(self, *_):
    self._told = True


class Watchdog:
  """Ends a process that stands still, and shows where it stood.

  A context manager. Whoever launched the process may then start it again, as
  after a crash: its status is 1.
  """

  def __init__(self, seconds):
    """Watches from when it is entered.

    Args:
      seconds: without a sign of life after which the process ends; 0 for ever.
    """
    self._seconds = seconds
    self._done = threading.Event()

  def __enter__(self):
    self.alive()
    if self._seconds:
      threading.Thread(target=self._watch, daemon=True).start()
    return self

  def __exit__(self, *exception):
    self._done.set()

  def alive(self):
    """Counts from now on again."""
    self._last = time.monotonic()

  @contextlib.contextmanager
  def asleep(self):
    """Does not watch inside."""
    self._last = math.inf
    try:
      yield
    finally:
      self.alive()

  def _watch(self):
    while not self._done.wait(min(1, self._seconds / 4)):
      still = time.monotonic() - self._last
      if still > self._seconds:
        self._bite(still)

  def _bite(self, still):
    print(
      f'lengen: no step for {still:.0f} s, more than train.stall_seconds='
      f'{self._seconds}; the process ends here, and the same command goes on '
      'from the last checkpoint. What its threads were doing:',
      file=sys.__stderr__,
      flush=True,
    )
    with contextlib.suppress(OSError, ValueError):
      faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
    os._exit(1)
