"""Kills `lengen train` at any moment, alone and one process of two.

LENGEN_KILLS sets how many times a run is killed; `make soak` sets more.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from lengen_jax.training import checkpoint
from tests import helpers

ROOT = pathlib.Path(__file__).parents[2]
KILLS = int(os.environ.get('LENGEN_KILLS', '1'))
pytestmark = pytest.mark.slow


def command(workdir, *changes):
  return [
    sys.executable,
    '-m',
    'lengen_jax.cli',
    'train',
    f'--config={ROOT}/configs/stdlib.py:tiny',
    f'--workdir={workdir}',
    '--config.train.checkpoint_every=5',
    '--config.train.log_every=5',
    # Most of the time goes into starting and compiling.
    '--config.model.num_layers=1',
    '--config.model.encoding=kerple_log',
    *changes,
  ]


@pytest.fixture(scope='module')
def environment(tmp_path_factory):
  """One device per process, and a compilation cache for all of them."""
  return {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'JAX_NUM_CPU_DEVICES': '1',
    'JAX_COMPILATION_CACHE_DIR': str(tmp_path_factory.mktemp('cache')),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'PYTHONPATH': str(ROOT),
    'PYTHONUNBUFFERED': '1',
  }


def start(arguments, environment):
  return subprocess.Popen(
    arguments,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def finish(process, status=0, timeout=300):
  output, _ = process.communicate(timeout=timeout)
  assert process.returncode == status, output[-3000:]
  return output


def log(workdir):
  """(step, loss, gradient) of each whole line."""
  entries = []
  path = workdir / 'metrics.jsonl'
  for line in path.read_text().splitlines() if path.exists() else ():
    try:
      entries.append(json.loads(line))
    except ValueError:
      break
  return [(e['step'], e['loss'], e['grad_norm']) for e in entries]


def state(workdir):
  """The last step that was saved, and the checksums of its arrays."""
  checkpoints = checkpoint.Checkpointer(workdir, None)
  try:
    step = checkpoints.durable_step()
    return step, checkpoints.record(step)['state']
  finally:
    checkpoints.close()


def wait_for(workdir, step, process, timeout=200):
  """Waits until a run has logged a step."""
  end = time.monotonic() + timeout
  while process.poll() is None and time.monotonic() < end:
    lines = log(workdir)
    if lines and lines[-1][0] >= step:
      return
    time.sleep(0.02)
  assert process.poll() is None, process.communicate()[0][-3000:]
  raise AssertionError(f'step {step} is not reached')


def test_a_run_killed_at_random_repeats_one_that_is_not(tmp_path, environment):
  """Kills come before, in and after saves; of many, some at a restart.

  The first session ends by SIGTERM, with a status of its own.
  """
  steps = 100 * KILLS + 120
  changes = [f'--config.train.steps={steps}']
  finish(start(command(tmp_path / 'whole', *changes), environment))
  draw = random.Random(0)
  cut, unfinished = tmp_path / 'cut', 0
  process = start(command(cut, *changes), environment)
  wait_for(cut, 20, process)
  process.send_signal(signal.SIGTERM)
  output = finish(process, status=75)
  reached = [state(cut)[0]]
  assert f'saved step {reached[0]} of {steps}' in output
  for kill in range(KILLS):
    process = start(command(cut, *changes), environment)
    if kill % 5 < 4:
      # Some steps further, wherever that is in a step or a save.
      wait_for(cut, reached[-1] + draw.randrange(1, 60), process)
    time.sleep(draw.uniform(0, 0.1 if kill % 5 < 4 else 3))
    assert process.poll() is None, process.communicate()[0][-3000:]
    process.kill()
    process.communicate()
    unfinished += any(cut.glob('checkpoints/*tmp*'))
    reached.append(max([s for s, *_ in log(cut)], default=0))
  print(f'killed at steps {reached}; {unfinished} saves were under way')
  finish(start(command(cut, *changes), environment))
  assert log(cut) == log(tmp_path / 'whole')
  assert [step for step, *_ in log(cut)] == list(range(1, steps + 1))
  assert state(cut) == state(tmp_path / 'whole')
  # The control: it is not the same whatever happens.
  assert max(reached) > reached[0] + 5


def pair(workdir, environment, *changes, differing=((), ())):
  """Starts two processes of one run, with a device each."""
  return [
    start(command(workdir, '--config.mesh.fsdp=2', *changes, *own), variables)
    for own, variables in zip(
      differing, helpers.pair_environments(environment), strict=True
    )
  ]


@pytest.fixture(scope='module')
def whole_pair(tmp_path_factory, environment):
  """A run of two processes and 60 steps without faults."""
  workdir = tmp_path_factory.mktemp('pair')
  for process in pair(workdir, environment, '--config.train.steps=60'):
    finish(process)
  return workdir


def test_processes_of_two_are_stopped_and_killed(
  tmp_path, environment, whole_pair
):
  """One run: SIGTERM to a process, then a kill of each, then to the end."""

  def pair_at(step):
    processes = pair(tmp_path, environment, '--config.train.steps=60')
    wait_for(tmp_path, step, processes[0])
    return processes

  processes = pair_at(10)
  processes[1].send_signal(signal.SIGTERM)
  outputs = [finish(process, status=75) for process in processes]
  saved = state(tmp_path)[0]
  assert 10 <= saved < 60
  # Both save the same step.
  for output in outputs:
    assert f'saved step {saved} of 60' in output
  for victim, step in ((0, saved + 5), (1, saved + 15)):
    processes = pair_at(step)
    processes[victim].kill()
    survivor = processes[1 - victim]
    survivor.communicate(timeout=60)
    assert survivor.returncode not in (0, 75)
    processes[victim].communicate()
    assert 0 < log(tmp_path)[-1][0] < 60
  for process in pair(tmp_path, environment, '--config.train.steps=60'):
    finish(process)
  assert log(tmp_path) == log(whole_pair)
  assert state(tmp_path) == state(whole_pair)


def test_sigterm_to_one_of_two_in_a_long_validation(tmp_path, environment):
  """It ends the run within seconds, and the validation is repeated.

  The processes need a second or more to agree on the batch after which they
  end. For a single process see faults_test.py. Layers are scanned: parameters
  that are split over processes are saved and validated.
  """
  changes = [
    '--config.model.scan_layers=True',
    '--config.model.encoding=fire',
    '--config.model.implementation=blockwise',
    '--config.model.bias_form=anchored',
    '--config.train.steps=10',
    '--config.train.checkpoint_every=10',
    '--config.train.evaluate_every=10',
    # Hundreds of batches.
    '--config.eval.windows=20',
    '--config.eval.batch_tokens=32',
  ]

  def validations(name):
    lines = (tmp_path / name / 'metrics.jsonl').read_text().splitlines()
    return [json.loads(line).get('validation_loss') for line in lines]

  for process in pair(tmp_path / 'whole', environment, *changes):
    finish(process)
  running = pair(tmp_path / 'cut', environment, *changes)
  wait_for(tmp_path / 'cut', 10, running[0])
  running[1].send_signal(signal.SIGTERM)
  for process in running:
    output = finish(process, status=75)
    assert 'saved step 10 of 10' in output
    assert 'step 10: length' not in output
  assert validations('cut')[-1] is None
  for process in pair(tmp_path / 'cut', environment, *changes):
    finish(process)
  assert validations('cut') == validations('whole')
  assert validations('whole')[-1] is not None
  assert log(tmp_path / 'cut') == log(tmp_path / 'whole')
  assert state(tmp_path / 'cut') == state(tmp_path / 'whole')


def test_two_processes_train_as_one(tmp_path, environment, whole_pair):
  """On the same mesh of two devices."""
  alone = {**environment, 'JAX_NUM_CPU_DEVICES': '2'}
  changes = ['--config.mesh.fsdp=2', '--config.train.steps=60']
  finish(start(command(tmp_path, *changes), alone))
  for mine, theirs in zip(log(tmp_path), log(whole_pair), strict=True):
    assert mine[0] == theirs[0]
    assert mine[1] == pytest.approx(theirs[1], rel=1e-4)


def test_two_processes_start_from_another_run(
  tmp_path, environment, whole_pair
):
  changes = [
    '--config.train.steps=5',
    f'--config.train.init_from={whole_pair}',
    '--config.model.encoding=alibi',
  ]
  for process in pair(tmp_path, environment, *changes):
    finish(process)
  assert log(tmp_path)[0][1] < log(whole_pair)[0][1] - 0.5


def test_a_mistake_of_one_process_ends_both(tmp_path, environment):
  """With the exit status of a user error."""
  processes = pair(
    tmp_path,
    environment,
    '--config.train.steps=60',
    differing=([], ['--config.seed=1']),
  )
  outputs = [process.communicate(timeout=120)[0] for process in processes]
  assert processes[1].returncode == 2, outputs[1][-2000:]
  assert processes[0].returncode != 0
  assert 'seed: 0 there, 1 here' in outputs[1]
