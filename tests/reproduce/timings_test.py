"""Timing forward passes: who takes turns, what is kept, what is refused."""

import dataclasses
import json
import types

import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.data import windows
from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce import parts, timings

PART = timings.ForwardTiming(
  name='forward',
  config='fire_c4.py:base',
  rows=(
    experiment_lib.Row('nope', 'nope'),
    experiment_lib.Row('bounded', lambda n: f'learned(max_position={2 * n})'),
    experiment_lib.Row('large', 'alibi', scales=('paper',)),
  ),
  ratios=(1, 2),
  passes=3,
)
# Seconds of each row and length.
PASSES = [('nope', 32), ('nope', 64), ('bounded', 32), ('bounded', 64)]


class Clock:
  """Time that passes only while a forward pass runs, a different one each."""

  def __init__(self):
    self.now, self.passes = 0.0, []

  def perf_counter(self):
    return self.now

  def run(self, name, seed, length):
    self.passes.append((name, seed, length))
    row = ['nope', 'bounded'].index(name)
    number = self.passes.count((name, seed, length))
    # The second to count is interrupted: the first of all only compiles.
    self.now += 100.0 if number == 3 else 1 + row + length / 64 + seed


@pytest.fixture
def clock(monkeypatch):
  """Takes the place of time and of the passes themselves."""
  clock = Clock()
  monkeypatch.setattr(timings, 'time', clock)

  def prepare(self, seed):
    name = self.name.partition('(')[0].replace('learned', 'bounded')
    return [
      lambda length=length: clock.run(name, seed, length)
      for length in self.lengths
    ]

  monkeypatch.setattr(timings.TimedModel, 'prepare', prepare)
  return clock


def request_for(root, **changes):
  request = parts.Request('tiny', (0, 1), (), str(root), 'paper/figure')
  return dataclasses.replace(request, **changes)


def test_rows_take_turns(clock, tmp_path):
  PART.run(request_for(tmp_path), [])
  # One to warm up, and three that count.
  assert clock.passes == [
    (name, seed, length)
    for seed in (0, 1)
    for _ in range(4)
    for name, length in PASSES
  ]


def test_figures_of_each_seed(clock, tmp_path):
  found = PART.run(request_for(tmp_path), [])
  nope, bounded = found['rows']
  # The median: what was interrupted does not count.
  assert nope['values'] == [[1500.0, 2000.0], [2500.0, 3000.0]]
  assert bounded['values'] == [[2500.0, 3000.0], [3500.0, 4000.0]]
  assert nope['value'] == [2000.0, 2500.0]
  assert bounded['run'] == 'learned(max_position=64)'
  assert found['kind'] == 'timing' and found['columns'] == [1, 2]
  assert found['tokens'] == 4 * 32
  assert found['device']['platform'] == 'cpu'
  assert 'data.train_length: 32, at full size 2048' in found['differences']
  lines = ' '.join(found['differences'])
  assert 'the median of 3 passes' in lines and 'does not say' in lines
  # What a forward pass does not depend on.
  assert 'train.steps' not in lines and 'optimizer' not in lines
  (path,) = tmp_path.rglob(timings.RESULTS)
  kept = json.loads(path.read_text())['seconds']
  assert kept['1'][0][0] == [2.5, 100.0, 2.5]
  assert json.loads(json.dumps(found)) == found


def test_what_is_timed_is_not_timed_again(clock, tmp_path):
  found = PART.run(request_for(tmp_path), [])
  clock.passes.clear()
  assert PART.run(request_for(tmp_path), []) == found
  assert not clock.passes
  # One seed is there, one is not.
  PART.run(request_for(tmp_path, seeds=(1, 2)), [])
  assert {seed for _, seed, _ in clock.passes} == {2}
  clock.passes.clear()
  PART.run(request_for(tmp_path, seeds=(0, 1, 2)), [])
  assert not clock.passes


def test_another_setting_is_timed_again(clock, tmp_path, monkeypatch, capsys):
  def timed(part, request):
    clock.passes.clear()
    part.run(request, [])
    return {seed for _, seed, _ in clock.passes}

  request = request_for(tmp_path)
  one = dataclasses.replace(PART, rows=PART.rows[:1])
  assert timed(one, request) == {0, 1}
  # What a user sets goes to a folder of its own.
  wider = request_for(tmp_path, overrides=('--config.model.width=64',))
  assert timed(one, wider) == {0, 1}
  assert timed(one, request) == set()
  assert timed(dataclasses.replace(one, passes=4), request) == {0, 1}
  longer = dataclasses.replace(one, ratios=(1, 1.5), passes=4)
  assert timed(longer, request) == {0, 1}
  other = dataclasses.replace(one, rows=PART.rows[1:2], passes=4)
  assert timed(other, request) == {0, 1}
  monkeypatch.setattr(timings.runs_lib, 'versions', lambda: {'jax': 'another'})
  assert timed(other, request) == {0, 1}
  assert 'timed again, as versions changed' in capsys.readouterr().out
  assert timed(other, request) == set()

  init = timings.TimedModel.__init__

  def elsewhere(self, name, config):
    init(self, name, config)
    self.device = self.device | {'kind': 'TPU v2'}

  monkeypatch.setattr(timings.TimedModel, '__init__', elsewhere)
  assert timed(other, request) == {0, 1}
  assert 'timed again, as device changed' in capsys.readouterr().out


def test_what_can_run_is_accepted(tmp_path):
  PART.check(request_for(tmp_path))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'rows': (experiment_lib.Row('x', 'fier'),)}, "did you mean 'fire'"),
    ({'rows': (experiment_lib.Row('x', 'nope|randomised'),)}, 'randomized'),
    # Only the longest length shows it.
    ({'ratios': (1, 4)}, 'max_position'),
    ({'config': 'fire_c5.py:base'}, 'fire_c5.py'),
  ],
)
def test_what_cannot_run_says_so_at_once(changes, message, tmp_path):
  with pytest.raises(errors.LengenError, match=message):
    dataclasses.replace(PART, **changes).check(request_for(tmp_path))


def test_what_a_user_sets_comes_last(tmp_path):
  request = request_for(tmp_path, overrides=('--config.data.batch_size=2',))
  assert PART.make_config(request).data.batch_size == 2
  assert PART.make_config(request_for(tmp_path)).data.batch_size == 4
  paper = PART.make_config(request_for(tmp_path, scale='paper'))
  assert paper.data.batch_size == 4
  assert paper.eval.lengths == (2048, 4096)


@pytest.mark.slow
def test_a_pass_gives_all_logits(tmp_path, monkeypatch):
  """It uses the parameters and tokens of the seed, and waits for them."""
  config = PART.make_config(request_for(tmp_path))
  forward, _ = PART.models(config, 'tiny')
  waited, drawn = [], []
  monkeypatch.setattr(
    timings.jax, 'block_until_ready', lambda x: waited.append(x) or x
  )
  lm_batch = windows.lm_batch
  monkeypatch.setattr(
    timings,
    'windows',
    types.SimpleNamespace(lm_batch=lambda x: drawn.append(x) or lm_batch(x)),
  )
  short, long = (one() for one in forward.prepare(0))
  assert short.shape == (4, 32, 259) and long.shape == (4, 64, 259)
  assert [one.shape for one in waited] == [short.shape, long.shape]
  assert np.isfinite(long).all()
  again, _ = (one() for one in forward.prepare(0))
  other, _ = (one() for one in forward.prepare(1))
  assert np.array_equal(again, short) and not np.array_equal(other, short)
  assert not np.array_equal(drawn[0], drawn[-2])
  # With the same tokens, other parameters show.
  batch = timings.TimedModel.draw_tokens
  monkeypatch.setattr(
    timings.TimedModel,
    'draw_tokens',
    lambda self, seed, length: batch(self, 0, length),
  )
  other, _ = (one() for one in forward.prepare(1))
  assert not np.array_equal(other, short)
