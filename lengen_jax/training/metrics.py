"""Training metrics: a line per step, their totals, and profiles.

A workdir has metrics.jsonl with a line per step, and sessions.jsonl with a line
for each time that the run was started or resumed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import datetime
import json
import math
import re
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from lengen_jax import __version__, errors
from lengen_jax.training import files, throughput
from lengen_jax.training import trackers as trackers_lib

STEPS, SESSIONS = 'metrics.jsonl', 'sessions.jsonl'
# Minimum time between two writes of a log in an object store.
_REMOTE_SECONDS = 60


def read(path: files.Path, last: int) -> tuple[list[str], float]:
  """Returns the lines of metrics.jsonl up to step `last`, and their seconds.

  Lines after one that is damaged are left out.
  """
  lines: list[str] = []
  before, seconds = 0, 0.0
  for line, entry in _complete_lines(path):
    step, spent = entry.get('step'), entry.get('seconds')
    # Steps are missing where a damaged log was set aside.
    follows = isinstance(step, int) and before < step <= last
    if not follows or not isinstance(spent, int | float):
      break
    lines.append(line)
    before, seconds = step, spent
  return lines, seconds


def last_step(lines: Sequence[str]) -> int:
  """Returns the step of the last of some lines; 0 if there are none."""
  return json.loads(lines[-1])['step'] if lines else 0


def peak_memory(lines: Sequence[str]) -> int | None:
  """Returns the last memory_bytes in some lines; None if there is none."""
  for line in reversed(lines):
    if 'memory_bytes' in (entry := json.loads(line)):
      return entry['memory_bytes']
  return None


def sessions(folder: files.Path) -> tuple[dict[str, Any], ...]:
  """Returns the sessions of the run in a workdir: its start and its resumes.

  Each is a dict of 'started' (a date), 'first_step' (steps done before),
  'devices' (their number), 'device_kind', and the versions of 'lengen_jax' and
  'jax'.
  """
  lines = _complete_lines(folder / SESSIONS)
  return tuple(entry for _, entry in lines if 'started' in entry)


class Written(NamedTuple):
  """Result of `Log.write`; loss and skipped are equal on all processes.

  Attributes:
    loss: loss of the last step, possibly NaN or infinite.
    skipped: length of the longest run of consecutive skipped updates that ends
      in these steps.
    entry: last line of the log, as a dict.
  """

  loss: float
  skipped: int
  entry: dict[str, Any]


class Log:
  """The file metrics.jsonl and the trackers that show the same metrics.

  A line has the step, its loss and other metrics, and the seconds spent in
  steps so far. Values that are not finite are null. The last line of each
  `write` also has:

    tokens_per_second: over the steps of this write.
    mfu: model FLOP utilization over these steps, if the peak of the devices is
      known.
    memory_bytes: peak memory of one device so far, if the backend reports it.
    durable_step: newest step with a complete checkpoint; null if none.
    goodput: seconds in steps divided by the seconds since the run was first
      started. Interruptions, startup and repeated steps lower it.

  Attributes:
    seconds: time spent in steps, in all sessions of the run.
  """

  def __init__(
    self,
    folder: files.Path,
    first_step: int,
    *,
    devices: Iterable[jax.Device],
    tokens: int,
    flops: float,
    primary: bool = True,
    trackers: Callable[..., Sequence[trackers_lib.Tracker]] | None = None,
    clock: Callable[[], float] = time.time,
  ) -> None:
    """Opens the log and adds a session.

    Args:
      folder: workdir, shared by all processes.
      first_step: steps already done; lines of later steps are removed.
      devices: devices used for training.
      tokens: tokens per step.
      flops: FLOPs per step; see `throughput.model_flops`.
      primary: whether this process writes.
      trackers: `trackers.create` without its first argument.
      clock: returns seconds since 1970.

    Raises:
      errors.ConfigError: a tracker is not available.
      errors.WorkdirError: the folder cannot be written.
    """
    lines, self.seconds = read(folder / STEPS, first_step)
    if last_step(lines) < first_step and primary:
      _set_aside(folder / STEPS, first_step - last_step(lines))
    self._skipped = _skipped_at_end(lines)
    self._before, self._session = self.seconds, 0.0
    self._devices, self._tokens, self._flops = list(devices), tokens, flops
    self._clock = clock
    begun = (
      *sessions(folder),
      _new_session(first_step, self._devices, clock()),
    )
    self._began = datetime.datetime.fromisoformat(
      begun[0]['started']
    ).timestamp()
    self._path: files.Path | None = None
    self._lines: list[str] | None = None
    self._unwritten: list[Mapping[str, Any]] = []
    self._trackers: Sequence[trackers_lib.Tracker] = []
    if not primary:
      return
    if trackers is not None:
      started = begun[0]['started']
      with _writing(folder):
        self._trackers = trackers(folder, first_step, started, clock())
    self._path = folder / STEPS
    lines = [line + '\n' for line in lines]
    # Object stores cannot append: the whole file is written, and less often.
    self._lines = lines if files.is_remote(folder) else None
    self._written = clock()
    files.write_text(self._path, ''.join(lines))
    files.write_lines(folder / SESSIONS, begun)

  def write(
    self,
    pending: Sequence[tuple[int, Mapping[str, Any]]],
    seconds: float,
    durable_step: int | None,
    saves: bool = False,
  ) -> Written:
    """Waits until the `pending` steps finish and writes their metrics.

    Args:
      pending: (step, metrics) of each step. Metrics are numbers, possibly on a
        device, and include 'loss'; 'skipped' is 1 if the update was not
        applied.
      seconds: time spent in steps in this session.
      durable_step: newest step with a complete checkpoint.
      saves: whether the last step is about to be saved.

    Raises:
      errors.WorkdirError: the log cannot be written.
    """
    fetched = jax.device_get([metrics for _, metrics in pending])
    spent, self._session = seconds - self._session, seconds
    self.seconds = self._before + seconds
    entries, most = [], 0
    for (step, _), metrics in zip(pending, fetched, strict=True):
      numbers = {name: _number(value) for name, value in metrics.items()}
      self._skipped = self._skipped + 1 if numbers.get('skipped') else 0
      most = max(most, self._skipped)
      entries.append(
        {
          'step': step,
          'loss': numbers['loss'],
          **numbers,
          'seconds': round(self.seconds, 3),
        }
      )
    entries[-1] |= self._totals(len(pending), spent, durable_step)
    if self._path is not None:
      self._append(entries, saves)
    return Written(float(fetched[-1]['loss']), most, entries[-1])

  def add(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Adds metrics to the last line, which is that of `step`.

    Raises:
      errors.WorkdirError: the log cannot be written.
    """
    if self._path is None:
      return
    numbers = {name: _number(value) for name, value in metrics.items()}
    lines = self._lines
    if lines is None:
      lines = self._path.read_text().splitlines(keepends=True)
    last = json.loads(lines[-1]) | numbers
    lines[-1] = json.dumps(last, allow_nan=False) + '\n'
    files.write_text(self._path, ''.join(lines))
    with _writing(self._path.parent):
      for tracker in self._trackers:
        tracker.write([{'step': step, **numbers}], self._clock())

  def close(self) -> None:
    if self._unwritten and self._lines is not None:
      # Steps before an error. A store that cannot be reached must not hide it.
      with contextlib.suppress(errors.LengenError):
        self._append([], saves=True)
    for tracker in self._trackers:
      tracker.close()

  def _totals(
    self, steps: int, spent: float, durable_step: int | None
  ) -> dict[str, Any]:
    """Returns the fields that only the last of some lines has."""
    spent = max(spent, 1e-9)
    mfu = throughput.utilization(self._flops * steps, spent, self._devices)
    memory = throughput.peak_memory(self._devices)
    # The clock may have been set back; goodput stays at most 1.
    since = max(self._clock() - self._began, self.seconds, 1e-9)
    totals = {'tokens_per_second': _rounded(self._tokens * steps / spent)}
    if mfu is not None:
      totals['mfu'] = _rounded(mfu)
    if memory is not None:
      totals['memory_bytes'] = memory
    totals['durable_step'] = durable_step
    totals['goodput'] = _rounded(self.seconds / since)
    return totals

  def _append(self, entries: Sequence[Mapping[str, Any]], saves: bool) -> None:
    self._unwritten += entries
    lines = [json.dumps(entry, allow_nan=False) + '\n' for entry in entries]
    if self._lines is not None:
      self._lines += lines
      if not saves and self._clock() - self._written <= _REMOTE_SECONDS:
        return
      self._written = self._clock()
      try:
        files.write_text(self._path, ''.join(self._lines))
      except errors.WorkdirError as error:
        if not saves:
          return  # The next write contains these lines, too.
        raise errors.SaveError(str(error)) from None
    with _writing(self._path.parent):
      if self._lines is None:
        # Reopening flushes each write and raises its errors here.
        with self._path.open('a') as file:
          file.write(''.join(lines))
      for tracker in self._trackers:
        tracker.write(self._unwritten, self._clock())
    self._unwritten = []


@contextlib.contextmanager
def _writing(folder: files.Path) -> Iterator[None]:
  """Raises a clear error in place of that of a folder or disk."""
  try:
    yield
  except OSError as error:
    raise files.unwritable(folder / STEPS, error) from None


def profile_steps(spec: str) -> tuple[int, int] | None:
  """Parses 'FIRST:LAST', the steps to profile, counted from 1; '' for none.

  Raises:
    errors.ConfigError: the spec is not a range of steps.
  """
  if not spec:
    return None
  match = re.fullmatch(r'([0-9]+):([0-9]+)', spec)
  first, last = map(int, match.groups()) if match else (0, 0)
  if not 1 <= first <= last:
    raise errors.ConfigError(
      f'profile={spec!r} must be FIRST:LAST, the first and the last step to '
      "profile, counted from 1, for example '10:15'"
    )
  return first, last


class Profile:
  """Traces a range of steps with JAX's profiler into the folder profile/.

  Call `before` and `after` at each step, and `close` at the end. Steps of
  earlier sessions are not traced.
  """

  def __init__(
    self,
    spec: str,
    folder: files.Path,
    announce: Callable[[str], None],
    *,
    primary: bool = True,
  ) -> None:
    """Creates an idle profile of the process that is `primary`.

    `announce` is called with a line that names the trace. For `spec` see
    `profile_steps`.
    """
    self._steps = profile_steps(spec)
    self._folder, self._announce = folder / 'profile', announce
    if not primary:
      self._steps = None
    self._started: int | None = None

  def before(self, step: int, state: Any) -> None:
    """Starts the trace at its first step, once `state` is computed."""
    if self._steps is None or self._started is not None:
      return
    first, last = self._steps
    if first <= step <= last:
      jax.block_until_ready(state)
      jax.profiler.start_trace(str(self._folder))
      self._started = step

  def after(self, step: int, state: Any) -> None:
    """Stops the trace after its last step, once `state` is computed."""
    if self._started is not None and step == self._steps[1]:
      jax.block_until_ready(state)
      self.close()

  def close(self) -> None:
    """Stops a trace that is still running."""
    if self._started is None:
      return
    jax.profiler.stop_trace()
    self._announce(
      f'profiled from step {self._started}; the trace is in {self._folder}'
    )
    self._started = None


def _complete_lines(path: files.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the lines of a JSON lines file with their values.

  Stops at the first incomplete line, which a killed run may leave.
  """
  for line in path.read_bytes().splitlines() if path.exists() else ():
    try:
      entry = json.loads(line)
    except ValueError:
      return
    if not isinstance(entry, dict):
      return
    yield line.decode(), entry


def _set_aside(path: files.Path, missing: int) -> None:
  """Prints that a log lacks some steps, and renames it."""
  print(f'{path} lacks {missing} of the steps before the resumed step')
  if path.exists():
    number = len(list(path.parent.glob(f'{path.stem}-damaged-*')))
    path.replace(path.with_name(f'{path.stem}-damaged-{number}.jsonl'))


def _skipped_at_end(lines: Sequence[str]) -> int:
  """Counts the skipped updates at the end of a log."""
  count = 0
  for line in reversed(lines):
    if not json.loads(line).get('skipped'):
      break
    count += 1
  return count


def _new_session(
  first_step: int, devices: Sequence[jax.Device], now: float
) -> dict[str, Any]:
  started = datetime.datetime.fromtimestamp(now, datetime.UTC)
  return {
    'started': started.isoformat(),
    'first_step': first_step,
    'devices': len(devices),
    'device_kind': devices[0].device_kind,
    'lengen_jax': __version__,
    'jax': jax.__version__,
  }


def _number(value: Any) -> float | None:
  """Converts a scalar for JSON; None if it is not finite."""
  number = np.asarray(value).item()
  return number if math.isfinite(number) else None


def _rounded(number: float) -> float:
  """Rounds to five significant digits."""
  return float(f'{number:.5g}')
