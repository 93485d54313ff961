"""The metrics of training: a line per step, and what the steps come to.

A workdir has metrics.jsonl, a line per step, and sessions.jsonl, a line per
session: each time that a run was started or gone on with.
"""

import datetime
import json
import math
import re
import time
from typing import NamedTuple

import jax
import numpy as np

from lengen_jax import __version__
from lengen_jax import errors
from lengen_jax.training import files
from lengen_jax.training import throughput

STEPS, SESSIONS = 'metrics.jsonl', 'sessions.jsonl'
# The name that earlier versions wrote.
_OLD_SESSIONS = 'sittings.jsonl'
# Between two writings of a log that lies in a bucket.
_BUCKET_SECONDS = 60


def read(path, last):
  """Lines of metrics.jsonl up to step `last`, and the seconds they took."""
  lines, seconds = [], 0.0
  for line, entry in _whole_lines(path):
    if not {'step', 'seconds'} <= entry.keys() or entry['step'] > last:
      break
    lines.append(line)
    seconds = entry['seconds']
  return lines, seconds


def peak_memory(lines):
  """The last memory_bytes of some lines, or None; see `Log`."""
  for line in reversed(lines):
    if 'memory_bytes' in (entry := json.loads(line)):
      return entry['memory_bytes']
  return None


def sessions(folder):
  """The sessions of the run in a workdir so far.

  Returns:
    Tuple of dicts: 'started', a date; 'first_step', after which it went on;
    'devices' and 'device_kind'; versions of 'lengen_jax' and 'jax'.
  """
  path = folder / SESSIONS
  if not path.exists():
    path = folder / _OLD_SESSIONS
  return tuple(entry for _, entry in _whole_lines(path) if 'started' in entry)


class Written(NamedTuple):
  """What `Log.write` gives; loss and skipped are the same on every process.

  Attributes:
    loss: of the last step, NaN and all.
    skipped: how many steps in a row changed nothing, of those that are written
      and what came right before them: the most.
    entry: the last line of the log, a dict.
  """

  loss: float
  skipped: int
  entry: dict


class Log:
  """metrics.jsonl, cut back to where a run resumes, and trackers.

  A line has step, loss and whatever else a step measures, and the seconds spent
  in steps up to there. What is not finite is null. The last of the lines that
  are written at once has besides:

    tokens_per_second: in the steps of these lines.
    mfu: model FLOP utilisation in them, if the devices' peak is known.
    memory_bytes: the most that one device has held so far, if it tells.
    durable_step: the last step that is saved for good; null if none.
    goodput: seconds in steps that count, as a part of those since the run
      began; being stopped, starting, and steps that had to be done again do not
      count.

  Attributes:
    seconds: spent in steps, over all sessions of the run.
  """

  def __init__(
    self,
    folder,
    first_step,
    *,
    devices,
    tokens,
    flops,
    primary=True,
    trackers=None,
    clock=time.time,
  ):
    """Opens the log and notes that a session begins.

    Args:
      folder: the workdir; all processes see the same.
      first_step: the run goes on from there; later lines are forgotten.
      devices: that train, jax devices.
      tokens: per step.
      flops: per step; see `throughput.model_flops`.
      primary: whether this process is the one that writes.
      trackers: function of folder, first_step, the date when the run began and
        the current time; returns objects that log the same, see `trackers`.
      clock: seconds since 1970.

    Raises:
      errors.ConfigError: a tracker is not available.
      errors.WorkdirError: the folder cannot be written.
    """
    lines, self.seconds = read(folder / STEPS, first_step)
    if len(lines) < first_step and primary:
      _set_aside(folder / STEPS, first_step - len(lines))
    self._skipped = _skipped_at_end(lines)
    self._before, self._session = self.seconds, 0.0
    self._devices, self._tokens, self._flops = list(devices), tokens, flops
    self._clock = clock
    now = _session(first_step, self._devices, clock())
    begun = (*sessions(folder), now)
    began = datetime.datetime.fromisoformat(begun[0]['started'])
    self._began = began.timestamp()
    self._path, self._trackers = None, []
    if not primary:
      return
    if trackers is not None:
      started = begun[0]['started']
      self._trackers = trackers(folder, first_step, started, clock())
    self._path = folder / STEPS
    # What lies in a bucket is written anew each time, and so less often.
    self._lines = lines if '://' in str(folder) else None
    self._written = clock()
    files.write_text(self._path, ''.join(line + '\n' for line in lines))
    files.write_lines(folder / SESSIONS, begun)

  def write(self, pending, seconds, durable_step, saves=False):
    """Writes the metrics of some steps; waits until these are done.

    Args:
      pending: (step, {name: number on a device or not}) of each; 'loss' is one
        of the names. 'skipped' is 1 if the step's update was not applied.
      seconds: spent in steps by this session.
      durable_step: see above.
      saves: whether the last of the steps is about to be saved.

    Returns:
      A Written.

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

  def close(self):
    for tracker in self._trackers:
      tracker.close()

  def _totals(self, steps, spent, durable_step):
    """What the last line says of some steps."""
    spent = max(spent, 1e-9)
    mfu = throughput.utilisation(self._flops * steps, spent, self._devices)
    memory = throughput.memory(self._devices)
    # Or clocks that are set back would make more of it than there is.
    since = max(self._clock() - self._began, self.seconds, 1e-9)
    totals = {'tokens_per_second': _short(self._tokens * steps / spent)}
    if mfu is not None:
      totals['mfu'] = _short(mfu)
    if memory is not None:
      totals['memory_bytes'] = memory['peak_bytes']
    totals['durable_step'] = durable_step
    totals['goodput'] = _short(self.seconds / since)
    return totals

  def _append(self, entries, saves):
    lines = [json.dumps(entry, allow_nan=False) for entry in entries]
    if self._lines is not None:
      self._lines += lines
      if saves or self._clock() - self._written > _BUCKET_SECONDS:
        self._written = self._clock()
        text = ''.join(line + '\n' for line in self._lines)
        files.write_text(self._path, text)
      return
    text = ''.join(line + '\n' for line in lines)
    try:
      # Opened each time: what is written is then out of our hands, and an
      # error shows here and not when the file is closed.
      with self._path.open('a') as file:
        file.write(text)
      for tracker in self._trackers:
        tracker.write(entries, self._clock())
    except OSError as error:
      raise errors.WorkdirError(
        f'cannot write the metrics in {self._path.parent}: {error.strerror}'
      ) from None


def profile_steps(spec):
  """The steps to profile, (first, last), counted from 1.

  Args:
    spec: 'FIRST:LAST', for example '10:15'; '' for none.

  Returns:
    Two ints, or None.

  Raises:
    errors.ConfigError: the spec means no steps.
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
  """A trace of some steps by jax's profiler, in the folder profile/.

  Those of the steps that this session does, if there are any. Call `before` and
  `after` at each step, and `close` at the end.
  """

  def __init__(self, spec, folder, announce, *, primary=True):
    """Traces nothing yet.

    Args:
      spec: see `profile_steps`.
      folder: the workdir.
      announce: called with a line that says where the trace lies.
      primary: whether this process is the one that traces.

    Raises:
      errors.ConfigError: see `profile_steps`.
    """
    self._steps = profile_steps(spec)
    self._folder, self._announce = folder / 'profile', announce
    if not primary:
      self._steps = None
    self._started = None

  def before(self, step, state):
    """Starts to trace if it is time, once `state`, what is there, is done."""
    if self._steps is None or self._started is not None:
      return
    first, last = self._steps
    if first <= step <= last:
      jax.block_until_ready(state)
      jax.profiler.start_trace(str(self._folder))
      self._started = step

  def after(self, step, state):
    """Stops if it is time, once `state`, what the step gives, is done."""
    if self._started is not None and step == self._steps[1]:
      jax.block_until_ready(state)
      self.close()

  def close(self):
    """Stops, if it has not been time yet."""
    if self._started is None:
      return
    jax.profiler.stop_trace()
    self._announce(
      f'profiled from step {self._started} on; the trace is in {self._folder}'
    )
    self._started = None


def _whole_lines(path):
  """Each line of a file of JSON, with what it says, up to half a line."""
  for line in path.read_bytes().splitlines() if path.exists() else ():
    try:
      entry = json.loads(line)
    except ValueError:
      return  # From a killed run.
    if not isinstance(entry, dict):
      return
    yield line.decode(), entry


def _set_aside(path, missing):
  """Keeps a log that lacks some steps, and says so."""
  print(f'{path} lacks {missing} of the steps that the run goes on from')
  if path.exists():
    number = len(list(path.parent.glob(f'{path.stem}-damaged-*')))
    path.replace(path.with_name(f'{path.stem}-damaged-{number}.jsonl'))


def _skipped_at_end(lines):
  """How many last lines in a row are of steps that changed nothing."""
  count = 0
  for line in reversed(lines):
    if not json.loads(line).get('skipped'):
      break
    count += 1
  return count


def _session(first_step, devices, now):
  started = datetime.datetime.fromtimestamp(now, datetime.UTC)
  return {
    'started': started.isoformat(),
    'first_step': first_step,
    'devices': len(devices),
    'device_kind': devices[0].device_kind,
    'lengen_jax': __version__,
    'jax': jax.__version__,
  }


def _number(value):
  """A number as JSON has it: None if it is not finite."""
  number = np.asarray(value).item()
  return number if math.isfinite(number) else None


def _short(number):
  """Five digits of a number."""
  return float(f'{number:.5g}')
