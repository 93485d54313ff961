"""Tests `lengen_jax/training/sweep.py`."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import types

import numpy as np
import pytest

from configs import arithmetic, chomsky
from lengen_jax import cli, errors
from lengen_jax.analysis import sweep_report
from lengen_jax.training import checkpoint, sweep, task_trainer
from lengen_jax.training import files as files_lib
from lengen_jax.training.config import SCORES
from tests import helpers


def tiny(task='bucket_sort', **sweep_fields):
  config = chomsky.get_config(f'{task},tiny')
  config.model.num_layers = 1
  config.train.steps = 3
  config.train.buckets = config.eval.buckets = 1
  config.sweep.runs = 'sinusoidal; rnn'
  for key, value in sweep_fields.items():
    config.sweep[key] = value
  return config


@pytest.fixture
def untrained(monkeypatch):
  """Gives each run some scores in place of what training would."""

  def do(program, points, folder, label):
    del program, label
    for rate, seed in points:
      drawn = random.Random(f'{folder.name} {rate} {seed}').random
      one = {'learning_rate': rate, 'seed': seed, 'commit': None}
      one |= {'train_seconds': 1.0, 'test_seconds': 1.0}
      one |= {name: [drawn() for _ in range(4)] for name in SCORES}
      files_lib.write_json(sweep.point_file(folder, (rate, seed)), one)

  monkeypatch.setattr(sweep, 'run_group', do)


@pytest.mark.slow
def test_two_processes(tmp_path):
  """Three points, so that at the end one process has none of its own."""
  config = arithmetic.get_config('plain,tiny')
  config.sweep.runs, config.sweep.seeds = 'nope', (0, 1, 2)
  config.eval.operand_examples, config.train.steps = 40, 3
  arguments = [
    f'--config={helpers.ROOT}/configs/arithmetic.py:plain,tiny',
    *('--config.sweep.runs=nope', '--config.sweep.seeds=(0, 1, 2)'),
    *('--config.eval.operand_examples=40', '--config.train.steps=3'),
    f'--workdir={tmp_path / "pair"}',
  ]
  processes = [
    subprocess.Popen(
      [sys.executable, '-m', 'lengen_jax.cli', 'sweep', *arguments],
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for environment in helpers.pair_environments(
      os.environ | {'JAX_NUM_CPU_DEVICES': '1'}
    )
  ]
  for process in processes:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output[-3000:]
  found = json.loads((tmp_path / 'pair/results.json').read_text())['runs']
  want = sweep.sweep(config, tmp_path / 'one')['runs']
  for run, other in zip(found, want, strict=True):
    assert len(run['points']) == 3
    count, share = (run['operands'][name] for name in ('count', 'share'))
    assert sum(map(sum, count)) == 40
    for row, shares in zip(count, share, strict=True):
      for examples, one in zip(row, shares, strict=True):
        assert (one is None) == (examples == 0)
    for one, two in zip(run['points'], other['points'], strict=True):
      assert one['seed'] == two['seed']
      assert one['operands'] == two['operands']
      for score in SCORES:
        assert one[score] == pytest.approx(two[score], rel=1e-5)
  assert not list((tmp_path / 'pair').glob('*/unfinished-*'))


@pytest.mark.slow
def test_sigterm_saves_and_the_sweep_resumes(tmp_path, monkeypatch):
  config = _killed_config()
  whole = sweep.sweep(config, tmp_path / 'whole')['runs'][0]['points']
  train, seen = task_trainer.TaskTrainer.train, []

  def terminate(self, points, first, last):
    seen.append(first)
    if len(seen) == 2:
      signal.raise_signal(signal.SIGTERM)
    return train(self, points, first, last)

  monkeypatch.setattr(task_trainer.TaskTrainer, 'train', terminate)
  with pytest.raises(errors.PreemptedError, match='saved step 2 of 7'):
    sweep.sweep(config, tmp_path / 'cut')
  found = sweep.sweep(config, tmp_path / 'cut')['runs'][0]['points']
  # The first call of a session compiles.
  assert seen[2:4] == [2, 2]
  for one, two in zip(found, whole, strict=True):
    for name in (*SCORES, 'trajectory'):
      assert one[name] == two[name]


@pytest.mark.usefixtures('untrained')
def test_finished_runs_are_not_done_again(tmp_path, monkeypatch):
  first = sweep.sweep(tiny(runs='sinusoidal'), tmp_path)
  trained, run_group = set(), sweep.run_group

  def counted(program, points, folder, label):
    trained.update((folder.name.split('-')[0], seed) for _, seed in points)
    run_group(program, points, folder, label)

  monkeypatch.setattr(sweep, 'run_group', counted)
  assert sweep.sweep(tiny(runs='sinusoidal'), tmp_path) == first
  assert not trained
  more = sweep.sweep(tiny(seeds=(0, 1, 2)), tmp_path)
  assert trained == {('sinusoidal', 2), ('rnn', 0), ('rnn', 1), ('rnn', 2)}
  assert [len(run['points']) for run in more['runs']] == [3, 3]
  assert more['runs'][0]['points'][:2] == first['runs'][0]['points']
  assert json.loads((tmp_path / 'results.json').read_text()) == more


@pytest.mark.usefixtures('untrained')
def test_scores_are_means_beyond_the_training_length(tmp_path):
  results = sweep.sweep(tiny(learning_rates=(1e-3, 1e-2)), tmp_path)
  assert results['lengths'] == [3, 6, 8, 12] and results['train_lengths'] == [
    1,
    6,
  ]
  for run in results['runs']:
    scores = [sum(point['accuracy'][2:]) / 2 for point in run['points']]
    assert run['best'] == pytest.approx(max(scores))
    rates = [sum(scores[:2]) / 2, sum(scores[2:]) / 2]
    assert run['mean'] == pytest.approx(max(rates))
    of_rate = scores[:2] if rates[0] == max(rates) else scores[2:]
    assert run['std'] == pytest.approx(abs(of_rate[0] - of_rate[1]) / 2**0.5)
  assert results['chance'] == pytest.approx(0.2)
  assert 0.6 < results['baselines']['positionwise'] < 1
  assert 0.1 < results['baselines']['constant'] < 0.4


@pytest.mark.usefixtures('untrained')
def test_a_sweep_locks_its_workdir(tmp_path, monkeypatch):
  run_group, refused = sweep.run_group, []

  def do(*arguments):
    with pytest.raises(errors.WorkdirError, match='another process is at work'):
      with files_lib.locked(tmp_path, wait=False):
        pass
    refused.append(True)
    run_group(*arguments)

  monkeypatch.setattr(sweep, 'run_group', do)
  sweep.sweep(tiny(), tmp_path)
  assert refused


@pytest.mark.usefixtures('untrained')
def test_scores_that_are_missing(tmp_path):
  sweep.sweep(tiny(), tmp_path)
  (tmp_path / 'sweep.json').rename(tmp_path / 'moved')
  with pytest.raises(errors.WorkdirError, match=r'scores but no sweep\.json'):
    sweep.sweep(tiny(), tmp_path)
  (tmp_path / 'moved').rename(tmp_path / 'sweep.json')
  point = next(tmp_path.glob('sinusoidal*/*.json'))
  point.write_text('{}')
  with pytest.raises(errors.WorkdirError, match=f'{point.name} lacks accuracy'):
    sweep.sweep(tiny(), tmp_path)


@pytest.mark.parametrize('score', ['exact', 'accuracy'])
def test_points_have_the_answers_to_single_examples(score):
  def test(state, length):
    right = np.zeros((2, 10), bool)
    right[1, :length] = True
    found = {name: [length / 10, np.nan] for name in SCORES}
    return found | {'right': right}

  config = tiny()
  config.eval.update(lengths=(3, 2), score=score)
  trainer = types.SimpleNamespace(config=config, test=test)
  first, second = sweep._test(trainer, None, 2)
  assert first['exact'] == [0.2, 0.3] and second['exact'] == [None, None]
  if score == 'accuracy':
    assert 'right' not in first
    return
  assert first['right'] == ['0000', '0000']
  assert second['right'] == ['c000', 'e000']


@pytest.mark.usefixtures('untrained')
def test_of_losses_the_least_is_best(tmp_path):
  config = tiny(learning_rates=(1e-3, 1e-2), runs='sinusoidal')
  config.eval.score = 'loss'
  (run,) = sweep.sweep(config, tmp_path)['runs']
  means = [sum(point['loss'][2:]) / 2 for point in run['points']]
  assert run['best'] == pytest.approx(min(means))


@pytest.mark.usefixtures('untrained')
def test_what_the_paper_has_stands_beside_its_task_only(tmp_path):
  config = tiny(runs='kerple_log', seeds=(0,))
  results = sweep.sweep(config, tmp_path / 'sort')
  assert results['runs'][0]['paper'] == 94.9
  assert results['paper_only']['the best of Ruoss et al. (2023)'] == 100
  config.task = 'chomsky/cycle_navigation'
  results = sweep.sweep(config, tmp_path / 'cycle')
  assert results['runs'][0]['paper'] == 60.1


@pytest.mark.usefixtures('untrained')
def test_an_interrupted_sweep_says_what_is_unfinished(tmp_path, monkeypatch):
  sweep.sweep(tiny(runs='rnn', seeds=(0,)), tmp_path)

  def killed(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(sweep, 'run_group', killed)
    with pytest.raises(KeyboardInterrupt):
      sweep.sweep(tiny(runs='nope; rnn', seeds=(0,)), tmp_path)
  results = json.loads((tmp_path / 'results.json').read_text())
  assert [run['run'] for run in results['runs']] == ['rnn']
  assert results['unfinished'] == ['nope']
  done = sweep.sweep(tiny(runs='nope; rnn', seeds=(0,)), tmp_path)
  assert [run['run'] for run in done['runs']] == ['nope', 'rnn']
  assert not done['unfinished']


@pytest.mark.one_jax
@pytest.mark.usefixtures('untrained')
def test_maps_by_the_digits_of_both_operands(tmp_path):
  """They are means over seeds; points of an older sweep have none."""

  def run(examples):
    config = arithmetic.get_config('plain,tiny')
    config.sweep.runs, config.sweep.seeds = 'nope; fire', (0, 1, 2)
    config.eval.lengths = (1, 2, 3, 5)
    config.eval.operand_examples = examples
    return sweep.sweep(config, tmp_path)

  old = run(0)
  assert [one['operands'] for one in old['runs']] == [None, None]
  assert 'operands.png' not in str(sweep_report.write(old, tmp_path))
  count = [[4, 0], [1, 2]]
  for seed, share in (0, [[0.5, None], [0, 1]]), (2, [[0.25, None], [1, 1]]):
    (path,) = tmp_path.glob(f'*nope*/*seed={seed}.json')
    point = json.loads(path.read_text())
    point['operands'] = {'share': share, 'count': count}
    files_lib.write_json(path, point)
  new = run(9)
  want = {'share': [[0.375, None], [0.5, 1]], 'count': count}
  assert [one['operands'] for one in new['runs']] == [want, None]
  assert [bool(one.get('operands')) for one in new['runs'][0]['points']] == [
    True,
    False,
    True,
  ]
  path = tmp_path / 'operands.png'
  assert path in sweep_report.write(new, tmp_path) and path.exists()
  page = (tmp_path / 'report.html').read_text()
  assert 'Digits of both operands' in page and 'data:image/png' in page


def _killed_config():
  config = tiny(runs='kerple_log')
  config.train.steps, config.train.log_every = 7, 2
  config.train.checkpoint_every = 3
  config.eval.steps = (3, 5, 7)
  return config


def _kill(call, config, workdir, monkeypatch):
  """Interrupts a sweep at a call of `train`; returns the first steps."""
  train, seen = task_trainer.TaskTrainer.train, []

  def killed(self, points, first, last):
    seen.append(first)
    if len(seen) == call:
      raise KeyboardInterrupt
    return train(self, points, first, last)

  monkeypatch.setattr(task_trainer.TaskTrainer, 'train', killed)
  with pytest.raises(KeyboardInterrupt):
    sweep.sweep(config, workdir)
  return seen


@pytest.mark.slow
def test_a_killed_group_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
  def scores(results):
    points = results['runs'][0]['points']
    return [{**p, 'train_seconds': 0, 'test_seconds': 0} for p in points]

  whole = scores(sweep.sweep(_killed_config(), tmp_path / 'whole'))
  for point in whole:
    assert point['trajectory']['steps'] == [3, 5, 7]
    for score in SCORES:
      earlier = point['trajectory'][score]
      assert earlier[-1] == point[score] and len(earlier) == 3
    losses = point['trajectory']['loss']
    assert losses[0] != losses[1] != losses[2]
  folder = tmp_path / 'cut'
  with monkeypatch.context() as patch:
    seen = _kill(6, _killed_config(), folder, patch)
    assert seen == [0, 0, 2, 3, 4, 5]
    (timed,) = folder.glob('*/unfinished-*/seconds.json')
    assert [*json.loads(timed.read_text())] == ['3']
    timed.write_text('{"3": 1000.0}')
    assert scores(sweep.sweep(_killed_config(), folder)) == whole
    # The checkpoint and the scores of step 3 are kept; step 5 is tested again.
    assert seen[6:] == [3, 3, 4, 5, 6]
  results = json.loads((folder / 'results.json').read_text())
  for point in results['runs'][0]['points']:
    # Both points are trained together.
    assert 500 < point['train_seconds'] < 600
  names = [path.name for path in folder.glob('kerple*/*')]
  assert sorted(names) == [
    f'learning_rate=0.001,seed={seed}.json' for seed in (0, 1)
  ]


def test_groups_that_were_interrupted(tmp_path, monkeypatch):
  trainer = types.SimpleNamespace(devices=1)
  points = [(0.1, 0), (0.1, 1), (0.1, 2), (0.1, 3)]
  begun = points[1:]

  def groups(missing):
    return sweep._interrupted(trainer, missing, tmp_path)

  folder = sweep._unfinished(trainer, begun, tmp_path)
  folder.mkdir()
  files_lib.write_json(folder / 'points.json', {'points': begun})
  # It may have been too large for the memory: without a checkpoint, groups may
  # change.
  assert groups(points) == []
  monkeypatch.setattr(checkpoint, 'steps', lambda path: [3])
  assert groups(points) == groups([points[2]]) == [begun]
  assert groups([points[0]]) == []
  # Two points are not in the sweep any more, and others come in another order.
  assert groups(points[:2]) == groups(points[::-1]) == [begun]
  # With another number of devices, its checkpoint does not fit.
  trainer.devices = 2
  assert groups(points) == []


@pytest.mark.slow
def test_a_group_killed_between_its_scores_is_the_same(tmp_path, monkeypatch):
  config = tiny(runs='kerple_log')
  config.train.steps = 2
  config.sweep.batching, config.sweep.seeds = 'vmap', (0, 1, 2)
  config.eval.lengths = (8,)
  write = files_lib.write_json

  def killed(path, value):
    if path.name.endswith('seed=1.json'):
      raise KeyboardInterrupt
    write(path, value)

  def losses(results):
    return [p['train_loss'] for p in results['runs'][0]['points']]

  whole = losses(sweep.sweep(config, tmp_path / 'whole'))
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(files_lib, 'write_json', killed)
    sweep.sweep(config, tmp_path / 'cut')
  trained = []
  train = task_trainer.TaskTrainer.train
  monkeypatch.setattr(
    task_trainer.TaskTrainer,
    'train',
    lambda *args: trained.append(args[2:]) or train(*args),
  )
  assert losses(sweep.sweep(config, tmp_path / 'cut')) == whole
  # It is compiled, and does no step.
  assert trained == [(2, 2)]
  assert not list(tmp_path.glob('cut/*/unfinished-*'))


@pytest.mark.slow
@pytest.mark.parametrize(
  'steps, tested, has_answers',
  [((1, 5, 6), [5, 6, 7], True), ((3, 5), [3, 5, 7], False)],
)
def test_a_killed_group_goes_on_with_other_steps(
  tmp_path, monkeypatch, steps, tested, has_answers
):
  """Scores of steps that are no longer asked for are left out.

  So are answers to single examples if an earlier version did not keep them.
  """
  config = _killed_config()
  config.eval.score = 'exact'
  with monkeypatch.context() as patch:
    _kill(6, config, tmp_path, patch)
  for saved in tmp_path.glob('*/unfinished-*/trajectory.json'):
    earlier = json.loads(saved.read_text())
    for one in (one for of_points in earlier.values() for one in of_points):
      del one['right']
    saved.write_text(json.dumps(earlier))
  config.eval.steps = steps
  for point in sweep.sweep(config, tmp_path)['runs'][0]['points']:
    assert point['trajectory']['steps'] == tested
    assert 'right' in point
    assert ('right' in point['trajectory']) == has_answers


@pytest.mark.parametrize('given, trained', [(1, 1), (2, 2), (3, 4)])
def test_devices_have_equally_many_points(
  tmp_path, monkeypatch, given, trained
):
  class AbstractError(Exception):
    pass

  def abstract(self, count):
    raise AbstractError(self.devices, count)

  monkeypatch.setattr(task_trainer.TaskTrainer, 'abstract', abstract)
  trainer = task_trainer.TaskTrainer(tiny())
  points = [(1e-3, seed) for seed in range(given)]
  with pytest.raises(AbstractError) as caught:
    sweep.run_group(trainer, points, tmp_path, 'label')
  assert caught.value.args == (2, trained)


@pytest.mark.usefixtures('untrained')
def test_close_learning_rates_are_kept_apart(tmp_path):
  rates = (1e-3, 0.0010000001)
  results = sweep.sweep(
    tiny(runs='nope', seeds=(0,), learning_rates=rates), tmp_path
  )
  points = results['runs'][0]['points']
  assert tuple(point['learning_rate'] for point in points) == rates


@pytest.mark.usefixtures('untrained')
def test_a_workdir_of_another_task_is_refused(tmp_path):
  sweep.sweep(tiny(runs='sinusoidal', seeds=(0,)), tmp_path)
  with pytest.raises(errors.WorkdirError, match='belongs to a run of another'):
    sweep.sweep(tiny('even_pairs', runs='sinusoidal'), tmp_path)


@pytest.mark.usefixtures('untrained')
def test_other_steps_may_be_tested_when_a_sweep_is_continued(tmp_path):
  config = tiny(runs='sinusoidal', seeds=(0,))
  sweep.sweep(config, tmp_path)
  # Sweeps of older versions have no such field.
  path = tmp_path / 'sweep.json'
  fields = json.loads(path.read_text())
  del fields['eval']['steps']
  path.write_text(json.dumps(fields))
  config.eval.steps = (1, 2)
  sweep.sweep(config, tmp_path)
  assert json.loads(path.read_text())['eval']['steps'] == [1, 2]


@pytest.mark.parametrize(
  ('steps', 'match'),
  [
    ((2, 1), 'must be ascending'),
    ((1.5,), 'must be ascending whole numbers'),
    ((1, 4), 'beyond the last one'),
  ],
)
def test_tested_steps_are_checked(tmp_path, steps, match):
  config = tiny()
  config.eval.steps = steps
  with pytest.raises(errors.ConfigError, match=match):
    sweep.sweep(config, tmp_path)


def test_a_bad_run_is_refused_before_any_is_trained(tmp_path):
  with pytest.raises(
    errors.LengenError, match="unknown encoding or recurrent model 'rop'"
  ):
    sweep.sweep(tiny(runs='sinusoidal; rop'), tmp_path)
  assert not list(tmp_path.iterdir())


def test_models_are_not_tested_otherwise(tmp_path):
  with pytest.raises(errors.ConfigError, match='=> rope: a sweep tests'):
    sweep.sweep(tiny(runs='sinusoidal => rope'), tmp_path)


def test_lengths_beyond_are_needed(tmp_path):
  config = tiny()
  config.eval.lengths = (3, 6)
  with pytest.raises(errors.ConfigError, match='none beyond'):
    sweep.sweep(config, tmp_path)


def test_the_command(tmp_path, capsys):
  config = 'configs/chomsky.py:even_pairs,tiny'
  arguments = [
    '--config.train.steps=2',
    '--config.train.buckets=1',
    '--config.eval.buckets=1',
    '--config.model.num_layers=1',
    '--config.sweep.seeds=(0,)',
    '--config.sweep.runs=rnn',
  ]
  assert not cli.main(
    ['sweep', f'--config={config}', f'--workdir={tmp_path}', *arguments]
  )
  out = capsys.readouterr().out
  assert 'rnn' in out and 'chance' in out
  files = ['curves.csv', 'accuracy.png', 'report.html']
  before = {name: (tmp_path / name).read_bytes() for name in files}
  for name in files:
    (tmp_path / name).unlink()
  assert not cli.main(['report', f'--workdir={tmp_path}'])
  assert before == {name: (tmp_path / name).read_bytes() for name in files}
  rows = before['curves.csv'].decode().splitlines()
  assert rows[0] == 'run,learning_rate,seed,length,accuracy,exact,loss'
  # One run, seed and rate, four lengths.
  assert len(rows) == 1 + 4
  assert cli.main(['eval', f'--workdir={tmp_path}']) == 2
  assert 'holds a sweep' in capsys.readouterr().err


def summary(score, values):
  """The summary of two rates and two seeds, whose last scores are `values`."""
  rates, seeds = (0.1, 0.2), (0, 1)
  config = types.SimpleNamespace(
    eval=types.SimpleNamespace(score=score, lengths=(4, 8)),
    train=types.SimpleNamespace(max_length=4),
    sweep=types.SimpleNamespace(seeds=seeds, learning_rates=rates),
  )
  found = [
    {score: [1.0, x], 'operands': {'share': [[n]], 'count': [[3]]}}
    for n, x in enumerate(values)
  ]
  return sweep._summary(config, [*itertools.product(rates, seeds)], found)


def test_a_point_that_diverged_is_not_the_best():
  found = summary('loss', [None, 3.0, 5.0, 7.0])
  assert found['best'] == 3 and found['mean'] == 6
  assert found['best_at'] == {'learning_rate': 0.1, 'seed': 1}
  assert found['mean_at'] == {'learning_rate': 0.2, 'seeds': 2}
  found = summary('loss', [None, 3.0, None, 7.0])
  assert (found['mean'], found['std']) == (None, None)


def test_the_curve_is_that_of_the_best_point():
  assert summary('exact', [0.1, 0.2, 0.3, 0.9])['curve'] == [1.0, 0.9]


def test_the_map_is_that_of_the_best_learning_rate():
  found = summary('exact', [0.9, 0.0, 0.7, 0.6])
  assert found['best_at'] == {'learning_rate': 0.1, 'seed': 0}
  assert found['mean_at']['learning_rate'] == 0.2
  assert found['operands']['share'] == [[2.5]]


def test_maps_count_a_point_that_diverged_as_wrong():
  maps = [
    {'share': [[share, None]], 'count': [[3, 0]]} for share in (None, 0.5)
  ]
  config = types.SimpleNamespace(
    eval=types.SimpleNamespace(score='exact', lengths=(4, 8)),
    train=types.SimpleNamespace(max_length=4),
    sweep=types.SimpleNamespace(seeds=(0, 1), learning_rates=(0.1,)),
  )
  found = [
    {'exact': [1.0, score], 'operands': one}
    for score, one in zip((None, 0.8), maps, strict=True)
  ]
  one = sweep._summary(config, [(0.1, 0), (0.1, 1)], found)
  assert (one['mean'], one['operands']['share']) == (0.4, [[0.25, None]])
  # Seeds were added with other numbers of examples; all answers are right.
  for counts in ([9, 0], [1, 2]), ([1, 2], [9, 0]):
    for point, count in zip(found, counts, strict=True):
      share = [1.0 if n else None for n in count]
      point['operands'] = {'share': [share], 'count': [count]}
    one = sweep._summary(config, [(0.1, 0), (0.1, 1)], found)
    assert one['operands'] == {'share': [[1.0, 1.0]], 'count': [[9, 2]]}
