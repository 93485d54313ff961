"""Faults of a running process: preemption and hangs."""

from collections.abc import Iterator
import contextlib
import faulthandler
import itertools
import math
import os
import signal
import sys
import threading
import time
from types import FrameType

import jax
from jax.experimental import multihost_utils

from lengen_jax import errors


class Preemption:
  """Context manager that catches SIGTERM, which announces a preemption.

  If any process of a run receives it, all stop after the same call of
  `reached`; they agree on the call through JAX's preemption service.
  """

  # Numbers the calls, also those of earlier trainings in this process.
  _calls = itertools.count(1)
  # Whether SIGTERM arrived in the last step of a training. The next training of
  # this process then stops, such as the next run of a comparison.
  _pending = False

  def __init__(self) -> None:
    self._received = False

  def __enter__(self) -> 'Preemption':
    self._received, Preemption._pending = Preemption._pending, False
    self._single = jax.process_count() == 1
    # Python allows signal handlers in the main thread only.
    main = threading.current_thread() is threading.main_thread()
    self._handles = self._single and main
    if self._handles:
      self._previous = signal.signal(signal.SIGTERM, self._receive)
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    if self._handles:
      signal.signal(signal.SIGTERM, self._previous)
    if kind is None and self._received:
      Preemption._pending = True

  def reached(self) -> bool:
    """Returns whether to stop here.

    Call it after every step and every batch of an evaluation, in all processes.
    Once it is true, it stays true.
    """
    if not self._single and not self._received:
      self._received = multihost_utils.reached_preemption_sync_point(
        next(self._calls)
      )
    return self._received

  def stop(self, saved: str) -> None:
    """Raises `preempted` where `reached` is true."""
    if self.reached():
      raise preempted(saved)

  def _receive(self, signum: int, frame: FrameType | None) -> None:
    self._received = True


def preempted(saved: str) -> errors.PreemptedError:
  """Returns the error of a preemption; `saved` tells what the run keeps."""
  return errors.PreemptedError(
    f'stopped by SIGTERM; {saved}; the same command resumes'
  )


class Watchdog:
  """Context manager that ends a process which makes no progress.

  It prints the stacks of all threads and exits with status 1, so that its
  launcher can restart it as after a crash.
  """

  def __init__(self, timeout: float) -> None:
    """Creates a watchdog that ends the process `timeout` seconds after `reset`.

    It starts when it is entered. A timeout of 0 is no limit.
    """
    self._timeout = timeout
    self._stopped = threading.Event()

  def __enter__(self) -> 'Watchdog':
    self.reset()
    if self._timeout:
      threading.Thread(target=self._watch, daemon=True).start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._stopped.set()

  def reset(self) -> None:
    """Restarts the timeout."""
    self._last = time.monotonic()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Suspends the timeout inside the context, and restarts it after."""
    self._last = math.inf
    try:
      yield
    finally:
      self.reset()

  def _watch(self) -> None:
    while not self._stopped.wait(min(1, self._timeout / 4)):
      elapsed = time.monotonic() - self._last
      if elapsed > self._timeout:
        self._abort(elapsed)

  def _abort(self, elapsed: float) -> None:
    try:
      print(
        f'lengen: no step for {elapsed:.0f} s, more than train.stall_seconds='
        f'{self._timeout}; the process ends here, and the same command resumes '
        'from the last checkpoint. Stacks of its threads:',
        file=sys.__stderr__,
        flush=True,
      )
      faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
    finally:
      # Also if standard error cannot be written.
      os._exit(1)
