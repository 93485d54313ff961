"""Tests what befalls a run: SIGTERM, no finite loss, standing still.

`kill_test.py` has processes that are killed.
"""

import json
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.training import checkpoint
from lengen_jax.training import loop
from lengen_jax.training import run as run_lib


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


def test_a_step_that_is_not_finite_changes_nothing(
  tmp_path, tiny_config, corpus, monkeypatch
):
  tiny_config.train.steps = 3
  tiny_config.train.checkpoint_every = 1
  tiny_config.train.keep_every = 1
  at_steps(monkeypatch, {2}, spoil)
  loop.train(tiny_config, tmp_path, corpus=corpus)
  one, two, three = (loop.restore(tmp_path, step=n).state for n in (1, 2, 3))
  assert int(two.step) == 2
  for name in ('params', 'opt_state'):
    before, after = getattr(one, name), getattr(two, name)
    jax.tree.map(np.testing.assert_array_equal, before, after)
  table = three.params['embed']['table'] - two.params['embed']['table']
  assert np.abs(table).max() > 0 and np.isfinite(table).all()
  entries = log(tmp_path)
  assert [e['skipped'] for e in entries] == [0, 1, 0]
  assert entries[1]['loss'] is None and entries[2]['loss'] > 0


def test_a_gradient_that_is_not_finite_is_skipped_too(tiny_config):
  run = run_lib.Run(tiny_config)
  state = run.init_state()
  rows = jax.tree.map(
    lambda leaf: np.ones(leaf.shape, leaf.dtype), run.abstract_batch()
  )
  # The square of the gradient is over the largest number, the loss is not.
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
  good = loop.restore(tmp_path).state
  assert np.isfinite(good.params['embed']['table']).all()


@pytest.mark.slow
def test_steps_in_a_row_are_counted_wherever_the_log_is_cut(
  tmp_path, tiny_config, corpus, monkeypatch
):
  tiny_config.train.max_skipped = 4
  tiny_config.train.log_every = 4
  tiny_config.train.steps = 12
  tiny_config.train.checkpoint_every = 12
  at_steps(monkeypatch, {3, 4, 5, 6}, spoil)
  with pytest.raises(errors.DivergedError, match='in 4 steps in a row'):
    loop.train(tiny_config, tmp_path, corpus=corpus)


def test_a_refused_run_leaves_the_config_alone(tmp_path, tiny_config, corpus):
  tiny_config.train.steps = 3
  loop.train(tiny_config, tmp_path, corpus=corpus)
  before = (tmp_path / 'config.json').read_text()
  tiny_config.seed = 7
  tiny_config.train.log_every = 3
  with pytest.raises(errors.WorkdirError, match='seed: 0 there, 7 here'):
    loop.train(tiny_config, tmp_path, corpus=corpus)
  assert (tmp_path / 'config.json').read_text() == before


def test_what_does_not_fit_is_no_crash(
  tmp_path, tiny_config, corpus, monkeypatch
):
  def full(*arguments):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: needs 9.1G\nat 3')

  monkeypatch.setattr(loop, '_steps', full)
  with pytest.raises(errors.FitError, match='EXHAUSTED: needs 9.1G; ') as found:
    loop.train(tiny_config, tmp_path, corpus=corpus)
  assert found.value.exit_status == 3


def test_two_steps_of_three_are_no_divergence(
  tmp_path, tiny_config, corpus, monkeypatch
):
  tiny_config.train.max_skipped = 3
  at_steps(monkeypatch, {2, 3, 5, 6}, spoil)
  loop.train(tiny_config, tmp_path, corpus=corpus)
  assert sum(e['skipped'] for e in log(tmp_path)) == 4


def test_sigterm_saves_and_the_next_goes_on(
  tmp_path, tiny_config, corpus, monkeypatch
):
  loop.train(tiny_config, tmp_path / 'whole', corpus=corpus)

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
  assert numbers(tmp_path / 'cut') == numbers(tmp_path / 'whole')
  assert int(cut.state.step) == tiny_config.train.steps


def watch(body):
  code = f"""
import time
from lengen_jax.training import faults
def where_it_stands():
  {body}
with faults.Watchdog(1) as watchdog:
  where_it_stands()
print('went on')
"""
  return subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, timeout=60
  )


def test_a_run_that_stands_still_ends_and_shows_where():
  done = watch('time.sleep(50)')
  assert done.returncode == 1
  assert 'no step for' in done.stderr and 'train.stall_seconds=1' in done.stderr
  assert 'where_it_stands' in done.stderr
  assert 'went on' not in done.stdout


def test_a_run_that_goes_on_is_left_alone():
  done = watch(
    'for _ in range(6): time.sleep(.3); watchdog.reset()\n'
    '  with watchdog.paused(): time.sleep(2)'
  )
  assert done.returncode == 0, done.stderr
  assert 'went on' in done.stdout


def test_the_best_checkpoint_stays(tmp_path, tiny_config, corpus, monkeypatch):
  tiny_config.train.steps = 8
  tiny_config.train.checkpoint_every = 1
  tiny_config.train.evaluate_every = 2
  losses = iter([3.0, 1.0, 2.0, 2.5])

  def validate(trained, corpus, label):
    del trained, corpus, label
    loss = next(losses)
    return {'validation_loss': loss}, loss

  monkeypatch.setattr(loop.evaluate, 'validate', validate)
  loop.train(tiny_config, tmp_path, corpus=corpus)
  assert sorted(checkpoint.steps(tmp_path)) == [4, 7, 8]
  assert int(loop.restore(tmp_path, step='best').state.step) == 4
  assert [e.get('validation_loss') for e in log(tmp_path)][1::2] == [
    3.0,
    1.0,
    2.0,
    2.5,
  ]


def test_validation_is_the_loss_of_the_curve(tmp_path, tiny_config, corpus):
  tiny_config.train.steps = 4
  tiny_config.train.checkpoint_every = 2
  tiny_config.train.evaluate_every = 4
  tiny_config.eval.lengths = (32, 64)
  trained = loop.train(tiny_config, tmp_path, corpus=corpus)
  (loss,) = (e['validation_loss'] for e in log(tmp_path) if e['step'] == 4)
  nearest = min(
    tiny_config.eval.lengths,
    key=lambda n: abs(n - tiny_config.data.train_length),
  )
  found, _ = loop.evaluate.evaluate(trained, corpus)
  curve = found['curves'][0]['loss'][found['lengths'].index(nearest)]
  assert loss == pytest.approx(curve, rel=1e-6)
  assert int(loop.restore(tmp_path, step='best').state.step) == 4


def test_no_best_checkpoint(tmp_path, tiny_config, corpus):
  tiny_config.train.steps = tiny_config.train.checkpoint_every = 1
  tiny_config.optimizer.warmup_steps = 0
  loop.train(tiny_config, tmp_path, corpus=corpus)
  with pytest.raises(errors.CheckpointError, match='evaluate_every=0'):
    loop.restore(tmp_path, step='best')


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
  assert [n for n in range(1, steps + 1) if run.validates(n)] == validated


def test_what_no_step_depends_on_may_change(tmp_path, tiny_config, corpus):
  tiny_config.train.steps = 4
  loop.train(tiny_config, tmp_path, corpus=corpus)
  tiny_config.train.log_every = 1
  tiny_config.train.stall_seconds = 77
  tiny_config.mesh.data = 1
  loop.train(tiny_config, tmp_path, corpus=corpus)
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config['train']['stall_seconds'] == 77 and config['mesh']['data'] == 1
