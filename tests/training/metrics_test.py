"""Tests `lengen_jax/training/metrics.py`."""

import datetime
import errno
import json
import math
import types

import jax
import jax.numpy as jnp
import pytest

from lengen_jax import __version__, errors
from lengen_jax.training import metrics

START = 1_000_000_000.0
CHIP = types.SimpleNamespace(
  device_kind='TPU v5e',
  num_cores=1,
  process_index=0,
  memory_stats=lambda: {'bytes_in_use': 3, 'peak_bytes_in_use': 5},
)


class Clock:
  """Seconds since 1970, which pass when a test says so."""

  def __init__(self):
    self.now = START

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return Clock()


def open_log(folder, clock, first=0, **changes):
  settings = dict(devices=[CHIP] * 2, tokens=64, flops=197e12, clock=clock)
  return metrics.Log(folder, first, **(settings | changes))


def steps(*numbers, skipped=()):
  """Metrics of some steps: the loss is the step's number."""
  return [
    (n, {'loss': jnp.float32(n), 'skipped': jnp.int32(n in skipped)})
    for n in numbers
  ]


def entries(path):
  """What the lines of a file say, as a strict reader of JSON takes them."""

  def refuse(name):
    raise AssertionError(f'{name} is no JSON')

  return [
    json.loads(line, parse_constant=refuse)
    for line in path.read_text().splitlines()
  ]


def test_lines(tmp_path, clock):
  log = open_log(tmp_path, clock)
  clock.now += 10
  pending = steps(1, 2)
  pending[1][1]['bias_error'] = 0.5
  written = log.write(pending, 4.0, durable_step=None)
  assert entries(tmp_path / 'metrics.jsonl') == [
    {'step': 1, 'loss': 1.0, 'skipped': 0, 'seconds': 4.0},
    {
      'step': 2,
      'loss': 2.0,
      'skipped': 0,
      'bias_error': 0.5,
      'seconds': 4.0,
      'tokens_per_second': 32.0,
      'mfu': 0.25,
      'memory_bytes': 5,
      'durable_step': None,
      'goodput': 0.4,
    },
  ]
  assert (written.loss, written.skipped) == (2.0, 0)
  assert written.entry == entries(tmp_path / 'metrics.jsonl')[-1]
  # Rates are those since the last time, goodput that since the beginning.
  clock.now += 2
  entry = log.write(steps(3), 5.0, durable_step=2).entry
  assert (entry['tokens_per_second'], entry['mfu']) == (64.0, 0.5)
  assert (entry['durable_step'], entry['goodput']) == (2, 0.41667)
  assert log.seconds == 5.0
  log.close()


def test_peak_memory_is_the_last_that_is_told(tmp_path, clock):
  open_log(tmp_path, clock).write(steps(1, 2), 1.0, None)
  lines, _ = metrics.read(tmp_path / 'metrics.jsonl', 2)
  assert metrics.peak_memory([*lines, '{"step": 3}']) == 5
  assert metrics.peak_memory(lines[:1]) is None


def test_what_a_cpu_does_not_tell(tmp_path, clock):
  log = open_log(tmp_path, clock, devices=jax.devices('cpu'))
  entry = log.write(steps(1), 1.0, None).entry
  assert not {'mfu', 'memory_bytes'} & set(entry)


def test_no_time_at_all(tmp_path, clock):
  """A clock that stands, or is set back, divides nothing by zero."""
  log = open_log(tmp_path, clock)
  log.write(steps(1), 0.0, None)
  clock.now -= 100
  assert log.write(steps(2), 1.0, None).entry['goodput'] == 1


def test_what_is_not_finite_is_null(tmp_path, clock):
  log = open_log(tmp_path, clock)
  pending = [
    (1, {'loss': jnp.bfloat16(jnp.nan), 'grad_norm': jnp.float32(jnp.inf)})
  ]
  assert math.isnan(log.write(pending, 1.0, None).loss)
  (entry,) = entries(tmp_path / 'metrics.jsonl')
  assert (entry['loss'], entry['grad_norm']) == (None, None)
  lines, seconds = metrics.read(tmp_path / 'metrics.jsonl', 1)
  assert (len(lines), seconds) == (1, 1.0)


def test_metrics_are_fetched_once(tmp_path, clock, monkeypatch):
  fetched, original = [], jax.device_get
  monkeypatch.setattr(
    jax, 'device_get', lambda tree: fetched.append(tree) or original(tree)
  )
  open_log(tmp_path, clock).write(steps(1, 2, 3), 1.0, None)
  assert [len(tree) for tree in fetched] == [3]


def test_a_resumed_run_cuts_its_log_back(tmp_path, clock):
  path = tmp_path / 'metrics.jsonl'
  log = open_log(tmp_path, clock)
  log.write(steps(1, 2), 4.0, None)
  kept = path.read_text()
  log.write(steps(3, 4), 9.0, 2)
  with path.open('a') as file:
    file.write('{"st')
  lines, seconds = metrics.read(path, 4)
  assert (len(lines), seconds) == (4, 9.0)
  log = open_log(tmp_path, clock, first=2)
  assert path.read_text() == kept
  assert log.seconds == 4.0
  log.write(steps(3), 1.0, 2)
  assert [e['step'] for e in entries(path)] == [1, 2, 3]
  assert entries(path)[-1]['seconds'] == 5.0


def test_skipped_steps_are_counted_over_restarts(tmp_path, clock):
  log = open_log(tmp_path, clock)
  assert log.write(steps(1, 2, 3, skipped={1, 3}), 1.0, None).skipped == 1
  assert log.write(steps(4, 5, skipped={4, 5}), 2.0, None).skipped == 3
  log = open_log(tmp_path, clock, first=4)
  assert log.write(steps(5, skipped={5}), 1.0, 4).skipped == 3
  log = open_log(tmp_path, clock, first=5)
  assert log.write(steps(6, 7, skipped={7}), 1.0, 5).skipped == 1
  assert log.write(steps(8), 2.0, 5).skipped == 0
  # A log from before steps could be skipped.
  path = tmp_path / 'metrics.jsonl'
  path.write_text(path.read_text().replace('"skipped"', '"other"'))
  log = open_log(tmp_path, clock, first=7)
  assert log.write(steps(8, skipped={8}), 1.0, None).skipped == 1


@pytest.mark.parametrize(
  'damage', [b'no json\n', b'\xff\xfe\n', b'{"loss": 1}\n', b'[1]\n', None]
)
def test_a_damaged_log_is_kept_and_told(tmp_path, clock, capsys, damage):
  log = open_log(tmp_path, clock)
  log.write(steps(1, 2, 3, 4), 1.0, None)
  path = tmp_path / 'metrics.jsonl'
  lines = path.read_bytes().splitlines(keepends=True)
  if damage is None:
    path.unlink()
  else:
    path.write_bytes(b''.join([lines[0], damage, *lines[2:]]))
  before = path.read_bytes() if damage else None
  (tmp_path / 'sessions.jsonl').write_text('{}\n')
  log = open_log(tmp_path, clock, first=4)
  missing = 4 if damage is None else 3
  assert f'lacks {missing} of the steps' in capsys.readouterr().out
  log.write(steps(5), 1.0, None)
  kept = list(tmp_path.glob('metrics-damaged-*.jsonl'))
  assert [file.read_bytes() for file in kept] == [before] * bool(damage)
  # The next session keeps the lines after those that are missing.
  open_log(tmp_path, clock, first=5)
  last = json.loads(path.read_text().splitlines()[-1])
  assert last['step'] == 5 and metrics.read(path, 5)[1] == last['seconds']
  # They are told once.
  assert not capsys.readouterr().out
  assert [*tmp_path.glob('metrics-damaged-*.jsonl')] == kept


def test_a_log_in_a_bucket_is_written_now_and_then(
  tmp_path, clock, monkeypatch
):
  """Whole, as buckets have it: at saves, and once a minute."""
  written = []
  monkeypatch.setattr(
    metrics.files,
    'write_text',
    lambda path, text: written.append(text.count('\n')),
  )
  monkeypatch.setattr(metrics.files, 'write_lines', lambda *_: None)
  monkeypatch.setattr(metrics.files, 'is_remote', lambda path: True)
  tracked = []

  def write(entries, now):
    tracked.append(([entry['step'] for entry in entries], now - START))

  tracker = types.SimpleNamespace(write=write, close=lambda: None)
  log = open_log(tmp_path, clock, trackers=lambda *_: [tracker])
  log.write(steps(1, 2), 1.0, None)
  log.write(steps(3), 2.0, None, saves=True)
  log.write(steps(4), 3.0, None)
  clock.now += 100
  log.write(steps(5), 4.0, None)
  log.add(5, {'loss_at_8': 1.5})
  assert written == [0, 3, 5, 5]
  assert tracked == [([1, 2, 3], 0), ([4, 5], 100), ([5], 100)]
  # Of a run that ends with an error, too.
  log.write(steps(6), 5.0, None)
  log.close()
  assert written[4:] == [6] and tracked[3:] == [([6], 100)]


def test_a_bucket_that_cannot_be_written_for_a_while(
  tmp_path, clock, monkeypatch
):
  written, down = [], False

  def write(path, text):
    if down:
      raise errors.WorkdirError(f'cannot write {path}: 503')
    written.append(text.count('\n'))

  monkeypatch.setattr(metrics.files, 'write_text', write)
  monkeypatch.setattr(metrics.files, 'write_lines', lambda *_: None)
  monkeypatch.setattr(metrics.files, 'is_remote', lambda path: True)
  log = open_log(tmp_path, clock)
  down = True
  for step in (1, 2):
    clock.now += 100
    log.write(steps(step), 1.0, None)
  down = False
  clock.now += 100
  log.write(steps(3), 1.0, None)
  assert written == [0, 3]
  # A checkpoint must not be newer than the log; a launcher tries again.
  down = True
  with pytest.raises(errors.SaveError, match='503') as caught:
    log.write(steps(4), 1.0, None, saves=True)
  assert caught.value.exit_status == 1
  log.close()


def test_goodput_over_restarts(tmp_path, clock):
  log = open_log(tmp_path, clock)
  clock.now += 10
  assert log.write(steps(1, 2), 6.0, None).entry['goodput'] == 0.6
  log.write(steps(3, 4), 10.0, 2)
  # Two steps are lost, and the machine is gone for a while.
  clock.now += 8
  log = open_log(tmp_path, clock, first=2)
  clock.now += 2
  assert log.write(steps(3), 2.0, 2).entry['goodput'] == 0.4
  # One that is killed before it has done a step counts as time, no more.
  open_log(tmp_path, clock, first=2)
  clock.now += 4
  log = open_log(tmp_path, clock, first=2)
  clock.now += 6
  assert log.write(steps(3, 4), 6.0, 2).entry['goodput'] == 0.4


def test_sessions(tmp_path, clock):
  path = tmp_path / 'sessions.jsonl'
  open_log(tmp_path, clock)
  with path.open('a') as file:
    file.write('{"started": "20')
  clock.now += 0.5
  open_log(tmp_path, clock, first=7, devices=[CHIP])
  first, second = entries(path)
  assert first == {
    'started': '2001-09-09T01:46:40+00:00',
    'first_step': 0,
    'devices': 2,
    'device_kind': 'TPU v5e',
    'lengen_jax': __version__,
    'jax': jax.__version__,
  }
  started = datetime.datetime.fromisoformat(second['started'])
  assert started.timestamp() == START + 0.5
  assert (second['first_step'], second['devices']) == (7, 1)
  assert metrics.sessions(tmp_path) == (first, second)
  assert metrics.sessions(tmp_path / 'no run') == ()


def test_only_the_first_process_writes(tmp_path, clock):
  def refuse(*_):
    raise AssertionError('a second process opens a board')

  open_log(tmp_path, clock).write(steps(1, 2, skipped={2}), 1.0, None)
  before = {path: path.read_bytes() for path in tmp_path.iterdir()}
  other = open_log(tmp_path, clock, 2, primary=False, trackers=refuse)
  clock.now += 4
  written = other.write(steps(3, skipped={3}), 1.0, 2)
  other.close()
  assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
  assert written.skipped == 2
  first = open_log(tmp_path, clock, 2)
  assert first.write(steps(3, skipped={3}), 1.0, 2) == written


def test_a_log_that_cannot_be_written(tmp_path, clock):
  log = open_log(tmp_path, clock)
  (tmp_path / 'metrics.jsonl').unlink()
  (tmp_path / 'metrics.jsonl').mkdir()
  with pytest.raises(errors.WorkdirError, match='cannot write .*: Is a dir'):
    log.write(steps(1), 1.0, None)

  def full(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  wanted = 'cannot write .*metrics.jsonl: No space left on .* again'
  with pytest.raises(errors.StorageError, match=wanted):
    open_log(tmp_path / 'new', clock, trackers=full)
  tracker = types.SimpleNamespace(write=full)
  (tmp_path / 'new').mkdir()
  log = open_log(tmp_path / 'new', clock, trackers=lambda *_: [tracker])
  with pytest.raises(errors.StorageError, match=wanted):
    log.write(steps(1), 1.0, None)
  with pytest.raises(errors.WorkdirError, match=wanted):
    log.add(1, {'loss_at_8': 1.5})


def test_profile_steps():
  assert metrics.profile_steps('') is None
  assert metrics.profile_steps('10:15') == (10, 15)
  assert metrics.profile_steps('7:7') == (7, 7)


@pytest.mark.parametrize('spec', ['10', '0:3', '5:4', '-1:3', '1:2:3', 'a:b'])
def test_bad_profile(spec, tmp_path):
  with pytest.raises(errors.ConfigError, match=f"profile='{spec}' must be FIR"):
    metrics.Profile(spec, tmp_path, print)


@pytest.fixture
def calls(monkeypatch):
  """What the profiler is told, in place of tracing."""
  calls = []
  monkeypatch.setattr(
    jax.profiler, 'start_trace', lambda folder: calls.append(f'start {folder}')
  )
  monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: calls.append('stop'))
  return calls


@pytest.mark.parametrize(
  'spec, want',
  [
    ('2:3', [1, 'start', 2, 3, 'stop', 4, 5]),
    ('2:2', [1, 'start', 2, 'stop', 3]),
    # Resumed among them, and behind them.
    ('2:5', ['start', 4, 5, 'stop', 6]),
    ('2:5', [6, 7]),
    # Ended among them, and before them.
    ('2:9', [1, 'start', 2, 3, 'stop']),
    ('8:9', [1, 2, 3]),
    ('', [1, 2, 3]),
  ],
)
def test_steps_that_are_profiled(tmp_path, calls, spec, want):
  said = []
  profile = metrics.Profile(spec, tmp_path, said.append)
  for step in [step for step in want if isinstance(step, int)]:
    profile.before(step, jnp.zeros(1))
    calls.append(step)
    profile.after(step, jnp.zeros(1))
  profile.close()
  profile.close()
  folder = tmp_path / 'profile'
  start = f'start {folder}'
  assert calls == [start if call == 'start' else call for call in want]
  if 'start' not in want:
    assert said == []
  else:
    step = want[want.index('start') + 1]
    (line,) = said
    assert f'step {step};' in line and line.endswith(str(folder))


def test_only_the_first_process_is_profiled(tmp_path, calls):
  profile = metrics.Profile('1:2', tmp_path, print, primary=False)
  profile.before(1, ())
  profile.close()
  assert calls == []


def test_a_trace(tmp_path):
  profile = metrics.Profile('1:1', tmp_path, print)
  state = jnp.ones(3)
  profile.before(1, state)
  state += 1
  profile.after(1, state)
  assert list((tmp_path / 'profile').rglob('*.xplane.pb'))
