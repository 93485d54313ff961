"""Tests faults of a run: SIGTERM, losses that are not finite, hangs.

`kill_test.py` kills processes.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time

import jax
import numpy as np
import pytest

from configs import stdlib as stdlib_config
from lengen_jax import errors
from lengen_jax.evaluation import length_curve
from lengen_jax.training import checkpoint, faults, loop, pretrained
from lengen_jax.training import run as run_lib


def smallest_config():
  """All tests compile the same step: they never change the number of steps."""
  config = stdlib_config.get_config('tiny')
  config.model.encoding = 'nope'
  config.model.num_layers = 1
  return config


@pytest.fixture
def tiny_config():
  return smallest_config()


@pytest.fixture(scope='module')
def finished(tmp_path_factory, corpus):
  """Workdir of a run without faults."""
  folder = tmp_path_factory.mktemp('finished') / 'run'
  loop.train(smallest_config(), folder, corpus=corpus)
  return folder


@pytest.fixture
def finished_copy(finished, tmp_path):
  return shutil.copytree(finished, tmp_path / 'finished')


def log(folder):
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def numbers(folder):
  return [(e['step'], e['loss'], e['grad_norm']) for e in log(folder)]


def at_steps(monkeypatch, steps, do):
  """Does something to the batches of some steps, counted from 1."""
  original = loop.data.TrainingWindows.batch

  def batch(self, index):
    rows = original(self, index)
    return do(rows) if index + 1 in steps else rows

  monkeypatch.setattr(loop.data.TrainingWindows, 'batch', batch)


def spoil(rows):
  """A batch whose loss is not a number."""
  return {**rows, 'weights': rows['weights'] * np.float32(np.nan)}


def test_steps_that_are_not_finite_change_nothing(
  tmp_path, tiny_config, corpus, monkeypatch
):
  """And two in a row are no divergence, if three are allowed."""
  tiny_config.train.checkpoint_every = tiny_config.train.keep_every = 1
  tiny_config.train.max_skipped = 3
  at_steps(monkeypatch, {2, 3, 5, 6}, spoil)
  run = loop.train(tiny_config, tmp_path, corpus=corpus).run
  checkpoints = pretrained.open_checkpoints(tmp_path, run)
  one, three, four = (
    checkpoints.restore(run.abstract_state, step=n) for n in (1, 3, 4)
  )
  checkpoints.close()
  assert int(three.step) == 3
  for name in ('params', 'opt_state'):
    before, after = getattr(one, name), getattr(three, name)
    jax.tree.map(np.testing.assert_array_equal, before, after)
  table = four.params['embed']['table'] - three.params['embed']['table']
  assert np.abs(table).max() > 0 and np.isfinite(table).all()
  entries = log(tmp_path)
  assert [e['skipped'] for e in entries] == [0, 1, 1, 0, 1, 1, 0, 0]
  assert entries[1]['loss'] is None and entries[3]['loss'] > 0


def test_a_gradient_that_is_not_finite_is_skipped_too(tiny_config):
  run = run_lib.Run(tiny_config)
  state = run.init_state()
  rows = jax.tree.map(
    lambda leaf: np.ones(leaf.shape, leaf.dtype), run.abstract_batch()
  )
  rows['targets'] *= 2
  # The square of the gradient overflows, the loss does not.
  scale = jax.tree.map(lambda leaf: leaf, state.params)
  scale['final_norm']['scale'] = state.params['final_norm']['scale'] * 1e36
  state = state.replace(params=scale)
  before = jax.device_get(state)
  with run.layout.scope():
    after, metrics = run.jitted_step(packed=False)(
      state, run.layout.place(rows)
    )
  assert np.isfinite(metrics['loss']) and not np.isfinite(metrics['grad_norm'])
  assert int(metrics['skipped']) == 1
  jax.tree.map(np.testing.assert_array_equal, after.params, before.params)


def test_a_run_that_diverges_ends(tmp_path, tiny_config, corpus, monkeypatch):
  tiny_config.train.max_skipped = 3
  tiny_config.train.checkpoint_every = 4
  tiny_config.train.log_every = 1
  at_steps(monkeypatch, {5, 6, 7}, spoil)
  with pytest.raises(
    errors.DivergedError,
    match='in 3 steps in a row before step 8 .*max_skipped=3',
  ) as found:
    loop.train(tiny_config, tmp_path, corpus=corpus)
  assert found.value.exit_status == 4
  assert sorted(checkpoint.steps(tmp_path)) == [4]
  good = pretrained.restore(tmp_path).state
  assert np.isfinite(good.params['embed']['table']).all()


@pytest.mark.slow
def test_steps_in_a_row_are_counted_wherever_the_log_is_cut(
  tmp_path, tiny_config, corpus, monkeypatch
):
  tiny_config.train.max_skipped = 4
  tiny_config.train.log_every = 4
  tiny_config.train.checkpoint_every = 8
  at_steps(monkeypatch, {3, 4, 5, 6}, spoil)
  with pytest.raises(errors.DivergedError, match='in 4 steps in a row'):
    loop.train(tiny_config, tmp_path, corpus=corpus)


def test_a_refused_run_leaves_the_config_alone(
  finished_copy, tiny_config, corpus
):
  before = (finished_copy / 'config.json').read_text()
  tiny_config.seed = 7
  tiny_config.train.log_every = 3
  with pytest.raises(errors.WorkdirError, match='seed: 0 there, 7 here'):
    loop.train(tiny_config, finished_copy, corpus=corpus)
  assert (finished_copy / 'config.json').read_text() == before


def test_what_does_not_fit_is_no_crash(
  tmp_path, tiny_config, corpus, monkeypatch
):
  def full(*arguments):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: needs 9.1G\nat 3')

  monkeypatch.setattr(loop.Loop, 'train', full)
  with pytest.raises(errors.FitError, match='EXHAUSTED: needs 9.1G; ') as found:
    loop.train(tiny_config, tmp_path, corpus=corpus)
  assert found.value.exit_status == 3


def test_sigterm_saves_and_the_run_resumes(
  tmp_path, tiny_config, corpus, monkeypatch, finished
):

  def terminate(rows):
    os.kill(os.getpid(), signal.SIGTERM)
    return rows

  before = signal.getsignal(signal.SIGTERM)
  with monkeypatch.context() as patch:
    # The batch of step 3 is made while step 2 is computed.
    at_steps(patch, {3}, terminate)
    with pytest.raises(errors.PreemptedError, match='saved step 3') as found:
      loop.train(tiny_config, tmp_path / 'cut', corpus=corpus)
  assert found.value.exit_status == 75
  assert signal.getsignal(signal.SIGTERM) is before
  assert checkpoint.steps(tmp_path / 'cut') == [3]
  cut = loop.train(tiny_config, tmp_path / 'cut', corpus=corpus)
  assert numbers(tmp_path / 'cut') == numbers(finished)
  assert int(cut.state.step) == tiny_config.train.steps


def test_sigterm_in_the_last_step_of_a_training_stops_the_next():
  """Such as the next run of a comparison."""
  with faults.Preemption() as first:
    os.kill(os.getpid(), signal.SIGTERM)
    assert first.reached() and first.reached()
  with (
    pytest.raises(errors.PreemptedError, match='saved it'),
    faults.Preemption() as second,
  ):
    second.stop('saved it')
  with faults.Preemption() as third:
    assert not third.reached()


def test_the_time_of_each_step_counts_alone(
  tmp_path, tiny_config, corpus, monkeypatch
):
  """Also of steps whose metrics are written together."""
  resets, reset = [], faults.Watchdog.reset

  def count(watchdog):
    resets.append(0)
    reset(watchdog)

  monkeypatch.setattr(faults.Watchdog, 'reset', count)
  tiny_config.train.log_every = tiny_config.train.checkpoint_every = 8
  loop.train(tiny_config, tmp_path, corpus=corpus)
  # When it starts, after compiling, when each step is dispatched, and when each
  # is computed.
  assert len(resets) == 2 + 2 * tiny_config.train.steps


@pytest.fixture
def exits(monkeypatch):
  """Statuses that the process would have ended with."""
  statuses = []

  def leave(status):
    statuses.append(status)
    threading.Event().wait()  # As nothing runs after the real one.

  monkeypatch.setattr(faults.os, '_exit', leave)
  return statuses


def test_a_process_that_hangs_ends_and_shows_where(exits, capfd):
  def where_it_hangs():
    end = time.monotonic() + 60
    while not exits and time.monotonic() < end:
      time.sleep(0.01)

  with faults.Watchdog(0.2):
    where_it_hangs()
  assert exits[0] == 1
  printed = capfd.readouterr().err
  assert 'no step for' in printed and 'train.stall_seconds=0.2' in printed
  assert 'where_it_hangs' in printed


def test_a_process_that_hangs_ends_without_standard_error(exits, monkeypatch):
  with open('/dev/full', 'w') as full:
    monkeypatch.setattr(sys, '__stderr__', full)
    with faults.Watchdog(0.2):
      end = time.monotonic() + 60
      while not exits and time.monotonic() < end:
        time.sleep(0.01)
    monkeypatch.undo()
    with contextlib.suppress(OSError):
      full.close()
  assert exits[0] == 1


@pytest.mark.slow
def test_a_process_that_makes_progress_does_not_end(exits):
  with faults.Watchdog(2) as watchdog:
    for _ in range(6):
      time.sleep(0.5)
      watchdog.reset()
    with watchdog.paused():
      time.sleep(3)
  assert not exits


def outcome(folder):
  """Validations, values and checksums of states, the best step, losses."""
  checkpoints = checkpoint.Checkpointer(folder, None, best='min')
  try:
    found = [checkpoints.record(n) for n in sorted(checkpoint.steps(folder))]
    best = checkpoints.best_step()
  finally:
    checkpoints.close()
  validated = [e.get('validation_loss') for e in log(folder)]
  states = [(one['step'], one['value'], one['state']) for one in found]
  return validated, states, best, numbers(folder)


@pytest.mark.one_jax
def test_sigterm_in_a_validation_saves_and_the_run_resumes(
  tmp_path, tiny_config, corpus, monkeypatch
):
  """At once, first in the middle and then at the last step."""
  tiny_config.train.checkpoint_every = 4
  tiny_config.train.evaluate_every = 4
  tiny_config.eval.batch_tokens = 512
  original, calls = length_curve.weighted_losses, []

  def losses(*arguments, **named):
    calls.append(0)
    if len(calls) == stop:
      os.kill(os.getpid(), signal.SIGTERM)
    return original(*arguments, **named)

  monkeypatch.setattr(length_curve, 'weighted_losses', losses)
  stop = 0
  loop.train(tiny_config, tmp_path / 'whole', corpus=corpus)
  batches = len(calls) // 2
  assert batches > 1
  for step, stop in ((4, 1), (8, batches + 1)):
    calls.clear()
    with pytest.raises(errors.PreemptedError, match=f'saved step {step} of 8'):
      loop.train(tiny_config, tmp_path / 'cut', corpus=corpus)
    # No batch follows.
    assert len(calls) == stop
    assert max(checkpoint.steps(tmp_path / 'cut')) == step
    assert log(tmp_path / 'cut')[-1]['step'] == step
  calls.clear()
  loop.train(tiny_config, tmp_path / 'cut', corpus=corpus)
  assert len(calls) == batches
  validated, states, best, _ = outcome(tmp_path / 'cut')
  assert [value for _, value, _ in states] == validated[3::4]
  assert best == 8
  assert outcome(tmp_path / 'cut') == outcome(tmp_path / 'whole')
  # Nothing is left to do.
  loop.train(tiny_config, tmp_path / 'cut', corpus=corpus)
  assert len(calls) == batches


@pytest.mark.one_jax
def test_the_best_checkpoint_stays(tmp_path, tiny_config, corpus, monkeypatch):
  tiny_config.train.checkpoint_every = 1
  tiny_config.train.evaluate_every = 2
  losses = iter([3.0, 1.0, 2.0, 2.5])

  def validate(trained, corpus, label, after_batch):
    del trained, corpus, label, after_batch
    loss = next(losses)
    return {'validation_loss': loss}, loss

  monkeypatch.setattr(loop.evaluate, 'validate', validate)
  loop.train(tiny_config, tmp_path, corpus=corpus)
  assert sorted(checkpoint.steps(tmp_path)) == [4, 7, 8]
  assert int(pretrained.restore(tmp_path, step='best').state.step) == 4
  assert [e.get('validation_loss') for e in log(tmp_path)][1::2] == [
    3.0,
    1.0,
    2.0,
    2.5,
  ]


def test_validation_is_the_loss_of_the_curve(tmp_path, tiny_config, corpus):
  tiny_config.train.evaluate_every = 8
  tiny_config.eval.lengths = (32, 64)
  trained = loop.train(tiny_config, tmp_path, corpus=corpus)
  (loss,) = (e['validation_loss'] for e in log(tmp_path) if e['step'] == 8)
  nearest = min(
    tiny_config.eval.lengths,
    key=lambda n: abs(n - tiny_config.data.train_length),
  )
  found, _ = loop.evaluate.evaluate(trained, corpus)
  curve = found['curves'][0]['loss'][found['lengths'].index(nearest)]
  assert loss == pytest.approx(curve, rel=1e-6)
  assert int(pretrained.restore(tmp_path, step='best').state.step) == 8


def test_no_best_checkpoint(finished):
  with pytest.raises(errors.CheckpointError, match='evaluate_every=0'):
    pretrained.restore(finished, step='best')


@pytest.mark.parametrize(
  'saved, every, steps, validated',
  [
    (2, 4, 8, [4, 8]),
    (4, 6, 20, [8, 12, 20]),
    (60, 2, 60, [60]),
    (4, 4, 10, [4, 8, 10]),
    (4, 5, 10, [8, 10]),
    (4, 0, 8, []),
  ],
)
def test_which_steps_are_validated(tiny_config, saved, every, steps, validated):
  """Only such as are saved, by the plan and not because of a SIGTERM."""
  tiny_config.train.checkpoint_every = saved
  tiny_config.train.evaluate_every = every
  tiny_config.train.steps = steps
  run = run_lib.Run(tiny_config)
  assert [n for n in range(1, steps + 1) if run.train.validates(n)] == validated


def test_what_no_step_depends_on_may_change(finished_copy, tiny_config, corpus):
  tiny_config.train.log_every = 1
  tiny_config.train.stall_seconds = 77
  tiny_config.mesh.data = 1
  loop.train(tiny_config, finished_copy, corpus=corpus)
  config = json.loads((finished_copy / 'config.json').read_text())
  assert config['train']['stall_seconds'] == 77 and config['mesh']['data'] == 1
