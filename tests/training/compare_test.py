"""Tests `lengen_jax/training/compare.py`."""

import json
import shutil
import signal
import threading

import numpy as np
import pytest

from lengen_jax import data, errors, locks
from lengen_jax.analysis import report
from lengen_jax.evaluation import length_curve
from lengen_jax.training import compare, evaluate, files, loop, pretrained
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib


def test_parse_runs(tiny_config):
  runs = runs_lib.parse(
    "rope(scale=4.) | randomized(max_position=9, test='even') | none; alibi;"
    ' rope, nope; fire | | none; rope => rope | | log_n(train_length=8);'
    'nope => nope; 2*rope, nope | | none, ssmax',
    tiny_config,
  )
  scaled = runs_lib.Run('rope', 'standard', 'log_n(train_length=8)')
  assert runs == [
    ('rope(scale=4.)', "randomized(max_position=9, test='even')", 'none', None),
    ('alibi', 'standard', 'none', None),
    ('rope, nope', 'standard', 'none', None),
    ('fire', 'standard', 'none', None),
    ('rope', 'standard', 'none', scaled),
    ('nope', 'standard', 'none', None),
    ('2*rope, nope', 'standard', 'none, ssmax', None),
  ]
  assert runs_lib.name(runs[4]) == 'rope => rope | log_n(train_length=8)'
  assert runs_lib.folder(runs[4]) == runs_lib.folder(
    runs_lib.Run('rope', 'standard', 'none')
  )


@pytest.mark.parametrize(
  'text, message',
  [
    ('a|b|c|d', 'has 4 parts'),
    ('alibi; alibi | standard', 'twice'),
    (' ; ', 'no runs'),
    ('rope(scale=4.; alibi', 'not closed'),
    ('rope => alibi => nope', 'more than one =>'),
    ('rope =>', 'missing before or after =>'),
    ('rope => alibi; rope => alibi | standard', 'twice'),
  ],
)
def test_bad_runs(tiny_config, text, message):
  with pytest.raises(errors.SpecError, match=message):
    runs_lib.parse(text, tiny_config)


def test_log_n_has_the_training_length_of_the_data(tiny_config):
  tiny_config.data.train_length = 48
  text = 'fire; rope(scale=4.) | randomized(max_position=2048) | none, log_n'
  first, second = runs_lib.parse(text, tiny_config)
  assert first.attention_scale == 'none'
  assert second.attention_scale == 'none, log_n(train_length=48)'
  for given, want in (
    ('log_n(train_length=9)', 'log_n(train_length=9)'),
    ('2*log_n,none', '2*log_n(train_length=48),none'),
    ('mine:log_n', 'mine:log_n'),
    ('none,ssmax', 'none,ssmax'),
  ):
    (own,) = runs_lib.parse(f'fire||{given}', tiny_config)
    assert own.attention_scale == want


def test_contextual_positions_of_runs(tiny_config):
  text = 'linear | forget(bias_init=5); rope; rope | repo, none | ssmax'
  runs = runs_lib.parse(text, tiny_config)
  assert runs == [
    ('linear', 'forget(bias_init=5)', 'none', None),
    ('rope', 'standard', 'none', None),
    ('rope', 'repo, none', 'ssmax', None),
  ]
  assert runs_lib.name(runs[0]) == 'linear | forget(bias_init=5)'
  found = []
  for run in runs:
    config = runs_lib.configure(tiny_config, run)
    found.append((config.positions, config.model.contextual_positions))
    # The run that a config describes is its own default.
    assert runs_lib.positions(config) == run.positions
    (again,) = runs_lib.parse(run.encoding, config)
    assert again == run
  assert found == [
    ('standard', 'forget(bias_init=5)'),
    ('standard', 'none'),
    ('standard', 'repo, none'),
  ]
  # A run with a scheme replaces the contextual one of the config, and back.
  config = runs_lib.configure(tiny_config, runs[0])
  for spec in ('standard', 'randomized(max_position=64)'):
    (run,) = runs_lib.parse(f'rope | {spec}', config)
    each = runs_lib.configure(config, run)
    assert each.positions == spec
    assert each.model.contextual_positions == 'none'
  tiny_config.positions = 'randomized(max_position=64)'
  each = runs_lib.configure(tiny_config, runs[0])
  assert each.positions == 'standard'


@pytest.mark.slow
def test_results_of_contextual_positions(tmp_path, tiny_config):
  tiny_config.eval.lengths = (32, 64)
  tiny_config.train.steps = 4
  runs = runs_lib.parse('linear|forget', tiny_config)
  results = compare.compare(tiny_config, tmp_path, runs)
  assert json.loads((tmp_path / 'results.json').read_text()) == results
  (curve,) = results['curves']
  assert (curve['encoding'], curve['positions']) == ('linear', 'forget')
  assert None not in curve['loss'] and not curve['refused']
  (layer,) = curve['contextual_positions'].values()
  # A token of the longest window, and a head.
  assert layer['token'][-1] == 63 and layer['position'][0][-1] > 1
  assert report.names(results) == ['linear | forget']
  # The run is finished.
  assert compare.compare(tiny_config, tmp_path, runs)['curves'] == [curve]


@pytest.mark.parametrize(
  'trained, tested, parameter',
  [
    ('rope', 'rope | repo', 'positions/content/kernel has shape [32, 4]'),
    ('linear | forget', 'linear', 'positions/bias has shape none'),
  ],
)
def test_positions_that_take_other_parameters(
  tmp_path, tiny_config, trained, tested, parameter
):
  runs = runs_lib.parse(f'{trained} => {tested}', tiny_config)
  with pytest.raises(errors.CombinationError) as caught:
    compare.compare(tiny_config, tmp_path, runs)
  message = str(caught.value)
  assert f'{tested} cannot be tested with the parameters of {trained}:' in (
    message
  )
  assert parameter in message


def test_name():
  assert runs_lib.name(runs_lib.Run('rope', 'standard', 'none')) == 'rope'
  assert runs_lib.name(runs_lib.Run('rope', 'y', 'x')) == 'rope | y | x'


@pytest.mark.one_jax
def test_results_and_going_on(tmp_path, tiny_config, monkeypatch, capsys):
  tiny_config.eval.lengths = (32, 64)
  tiny_config.train.steps = 4
  text = 'learned(max_position=40); alibi|randomized(max_position=64)'
  runs = runs_lib.parse(text, tiny_config)
  trained = []
  original = loop.train

  def train(config, *args, **kwargs):
    trained.append(config.model.encoding)
    if len(trained) == 3:
      raise KeyboardInterrupt
    return original(config, *args, **kwargs)

  def terminate(*args, **kwargs):
    signal.raise_signal(signal.SIGTERM)
    return losses(*args, **kwargs)

  monkeypatch.setattr(loop, 'train', train)
  losses = length_curve.weighted_losses
  with monkeypatch.context() as patch:
    patch.setattr(length_curve, 'weighted_losses', terminate)
    with pytest.raises(errors.PreemptedError, match='trained, but not eval'):
      compare.compare(tiny_config, tmp_path, runs)
  assert not (tmp_path / 'results.json').exists()
  with pytest.raises(KeyboardInterrupt):
    compare.compare(tiny_config, tmp_path, runs)
  found = json.loads((tmp_path / 'results.json').read_text())
  assert [c['encoding'] for c in found['curves']] == [runs[0][0]]
  assert found['unfinished'] == [runs_lib.name(runs[1])]

  results = compare.compare(tiny_config, tmp_path, runs)
  assert trained == [run.encoding for run in (*runs[:1] * 2, *runs[1:] * 2)]
  assert json.loads((tmp_path / 'results.json').read_text()) == results
  assert results['unfinished'] == []
  assert results['train_length'] == 32
  assert results['lengths'] == [32, 64]
  assert results['curves'][:1] == found['curves']
  learned, alibi = results['curves']
  assert learned['tokens'] == alibi['tokens'] == 2 * 64
  assert None not in alibi['loss']
  assert learned['loss'][0] is not None and learned['loss'][1] is None
  assert 'max_position=64 or more' in learned['refused']['64']
  assert list(learned['loss_by_position']) == ['32']
  assert alibi['positions'] == 'randomized(max_position=64)'
  vocab_size = run_lib.Run(tiny_config).model.vocab_size
  layer = 4 * 32 * 32 + 2 * 32 * 64 + 4 * 32
  assert alibi['parameters'] == vocab_size * 32 + layer + 2 * 32
  assert alibi['train_seconds'] > 0
  assert alibi['steps'] == tiny_config.train.steps
  (session,) = alibi['sessions']
  assert session['device_kind'] == 'cpu' and session['first_step'] == 0
  assert learned['biases'] is None
  assert learned['contextual_positions'] is None
  assert list(alibi['biases']['queries']) == ['31', '63']
  assert results['corpus']['sha256'] and results['versions']['jax']
  assert 'max_position=64 or more' in capsys.readouterr().out
  # Runs after one that is interrupted may be finished.
  (nope,) = runs_lib.parse('nope', tiny_config)
  trained[:] = ['', '']
  with pytest.raises(KeyboardInterrupt):
    compare.compare(tiny_config, tmp_path, [runs[1], nope, runs[0]])
  found = json.loads((tmp_path / 'results.json').read_text())
  assert [c['encoding'] for c in found['curves']] == [runs[1][0], runs[0][0]]
  assert found['unfinished'] == ['nope']
  (tmp_path / 'comparison.json').rename(tmp_path / 'moved')
  with pytest.raises(errors.WorkdirError, match='trained runs but no comp'):
    compare.compare(tiny_config, tmp_path, runs)
  (tmp_path / 'moved').rename(tmp_path / 'comparison.json')
  (tmp_path / runs_lib.folder(runs[1]) / 'curve.json').write_text('{}')
  with pytest.raises(errors.WorkdirError, match='lacks encoding, loss; '):
    compare.compare(tiny_config, tmp_path, runs)


def test_one_training_is_tested_as_several_runs(
  tmp_path, tiny_config, monkeypatch
):
  tiny_config.eval.lengths = (32, 64)
  tiny_config.train.steps = 4
  text = 'rope => rope(train_length=32, dynamic=True); rope; rope => nope'
  runs = runs_lib.parse(text, tiny_config)
  steps = []
  train = loop.Loop.train
  monkeypatch.setattr(
    loop.Loop, 'train', lambda *args: steps.append(0) or train(*args)
  )
  results = compare.compare(tiny_config, tmp_path, runs)
  assert len(steps) == 1
  dynamic, plain, nope = results['curves']
  assert dynamic['tested_as'] == (
    'rope(train_length=32, dynamic=True)|standard|none'
  )
  assert 'tested_as' not in plain
  assert dynamic['encoding'] == plain['encoding'] == nope['encoding'] == 'rope'
  assert dynamic['loss'][0] == plain['loss'][0]
  assert dynamic['loss'][1] != plain['loss'][1] != nope['loss'][1]
  assert report.names(results)[1:] == ['rope', 'rope => nope']
  # A run as which the model is tested may join a finished comparison.
  assert compare.compare(tiny_config, tmp_path, runs[:2])['curves'] == [
    dynamic,
    plain,
  ]
  assert len(steps) == 1


@pytest.mark.one_jax
def test_losses_along_training(tmp_path, tiny_config, monkeypatch, capsys):
  """They are those of the checkpoints, also after an interruption."""
  tiny_config.eval.lengths, tiny_config.eval.steps = (32, 64), (1, 3)
  tiny_config.train.steps = 4
  text = 'rope; rope => rope(train_length=32, dynamic=True)'
  runs = runs_lib.parse(text, tiny_config)
  results = compare.compare(tiny_config, tmp_path / 'whole', runs)
  plain, dynamic = results['curves']
  for curve in (plain, dynamic):
    assert curve['trajectory']['steps'] == [1, 3, 4]
    assert curve['trajectory']['loss'][-1] == curve['loss']
    means = np.mean(curve['trajectory']['window_loss'], -1)
    np.testing.assert_allclose(means, curve['trajectory']['loss'], rtol=1e-9)
  folder = tmp_path / 'whole' / runs_lib.folder(runs[0])
  windows = data.load(run_lib.Run(tiny_config).data, 64).evaluation(
    run_lib.Run(tiny_config).eval
  )
  for n, step in enumerate((1, 3)):
    trained = pretrained.restore(folder, step=step)
    assert int(trained.state.step) == step
    want = evaluate.curve(trained, windows)['loss']
    assert plain['trajectory']['loss'][n] == want
    assert dynamic['trajectory']['loss'][n][0] == want[0]
    assert dynamic['trajectory']['loss'][n][1] != want[1]

  # Interrupted at the second of the steps.
  losses, calls = length_curve.weighted_losses, []

  def interrupted(*args, **kwargs):
    calls.append(0)
    if len(calls) == 3:
      raise KeyboardInterrupt
    return losses(*args, **kwargs)

  with monkeypatch.context() as patch:
    patch.setattr(length_curve, 'weighted_losses', interrupted)
    with pytest.raises(KeyboardInterrupt):
      compare.compare(tiny_config, tmp_path / 'again', runs)
  folder = tmp_path / 'again' / runs_lib.folder(runs[0])
  begun = json.loads((folder / 'trajectory-curve.json').read_text())
  assert begun['steps'] == [1]
  # A checkpoint that cannot be read costs its step only.
  damaged = shutil.copytree(tmp_path / 'again', tmp_path / 'damaged')
  kept = damaged / runs_lib.folder(runs[0]) / 'checkpoints/3/state'
  for file in kept.glob('**/d/*'):
    file.write_bytes(b'')
  found = compare.compare(tiny_config, damaged, runs)
  assert 'step 3 is not tested: ' in capsys.readouterr().out
  for one, whole in zip(found['curves'], results['curves'], strict=True):
    assert one['trajectory']['steps'] == [1, 4] and one['loss'] == whole['loss']
  # If it can be read again, its losses come before those of later steps.
  late = shutil.copytree(tmp_path / 'again', tmp_path / 'late')
  tested = {key: values[1:2] for key, values in plain['trajectory'].items()}
  path = late / runs_lib.folder(runs[0]) / 'trajectory-curve.json'
  path.write_text(json.dumps(tested))
  found = compare.compare(tiny_config, late, runs)
  assert found['curves'][0]['trajectory'] == plain['trajectory']
  # A version without losses of windows wrote them: they are computed anew.
  wrong = {'steps': [1, 3], 'loss': [[0.0, 0.0], [0.0, 0.0]]}
  (folder / 'trajectory-curve.json').write_text(json.dumps(wrong))
  again = compare.compare(tiny_config, tmp_path / 'again', runs)
  assert [one['trajectory'] for one in again['curves']] == [
    one['trajectory'] for one in results['curves']
  ]


def test_other_parameters_are_refused_before_training(tmp_path, tiny_config):
  runs = runs_lib.parse('alibi; rope => fire', tiny_config)
  with pytest.raises(errors.CombinationError, match='fire cannot .* rope: lay'):
    compare.compare(tiny_config, tmp_path / 'run', runs)
  assert not (tmp_path / 'run').exists()


def test_a_run_that_diverges_does_not_end_a_comparison(
  tmp_path, tiny_config, monkeypatch, capsys
):
  tiny_config.eval.lengths, tiny_config.train.steps = (32,), 4
  train, diverged = loop.train, []

  def diverge(config, *args, **kwargs):
    if config.model.encoding == 'nope':
      diverged.append(config)
      raise errors.DivergedError('not finite')
    return train(config, *args, **kwargs)

  curve, moments = evaluate.curve, []

  def evaluated(trained, *args):
    moments.append(trained.state.opt_state)
    return curve(trained, *args)

  monkeypatch.setattr(compare.loop, 'train', diverge)
  monkeypatch.setattr(evaluate, 'curve', evaluated)
  runs = runs_lib.parse(
    'nope; nope => nope | shape(max_shift=4); alibi', tiny_config
  )
  with pytest.raises(errors.DivergedError, match='^nope.*: not finite'):
    compare.compare(tiny_config, tmp_path, runs)
  assert '[1/3] nope: not finite' in capsys.readouterr().out
  found = json.loads((tmp_path / 'results.json').read_text())
  assert [one['encoding'] for one in found['curves']] == ['alibi']
  assert found['unfinished'][0] == 'nope' and len(found['unfinished']) == 2
  assert compare.finished(tmp_path, runs) == [None, None, *found['curves']]
  # It is trained once for both of its rows.
  assert len(diverged) == 1
  # Checkpoints of earlier steps need the memory.
  assert moments == [None]


@pytest.mark.slow
def test_more_runs_join_a_comparison(tmp_path, tiny_config):
  tiny_config.eval.lengths = (32,)
  tiny_config.train.steps = 4
  first = runs_lib.parse('nope', tiny_config)
  compare.compare(tiny_config, tmp_path, first)
  both = runs_lib.parse('alibi; nope', tiny_config)
  results = compare.compare(tiny_config, tmp_path, both)
  assert [c['encoding'] for c in results['curves']] == ['alibi', 'nope']
  tiny_config.seed = 1
  with pytest.raises(errors.WorkdirError, match='seed: 0 there, 1 here'):
    compare.compare(tiny_config, tmp_path, both)


def test_two_processes_compare_in_turn(tmp_path, tiny_config, monkeypatch):
  began, waits = threading.Event(), threading.Event()
  monkeypatch.setattr(compare, '_compare', lambda *_: began.set())
  lock = locks.lock

  def announced(file, busy):
    waits.set()
    lock(file, busy)

  monkeypatch.setattr(locks, 'lock', announced)
  runs = runs_lib.parse('nope', tiny_config)
  arguments = tiny_config, tmp_path, runs
  with files.locked(tmp_path):
    waits.clear()
    other = threading.Thread(target=compare.compare, args=arguments)
    other.start()
    assert waits.wait(60)
    assert not began.wait(0.1)
  other.join(60)
  assert began.is_set()


def test_tests_may_have_other_batches(tmp_path, tiny_config):
  tiny_config.eval.lengths, tiny_config.train.steps = (32,), 4
  runs = runs_lib.parse('nope; alibi', tiny_config)
  compare.compare(tiny_config, tmp_path, runs[:1])
  tiny_config.eval.batch_tokens //= 2
  assert len(compare.compare(tiny_config, tmp_path, runs)['curves']) == 2
  tiny_config.eval.windows += 1
  with pytest.raises(errors.WorkdirError, match='another config.*eval.windows'):
    compare.compare(tiny_config, tmp_path, runs)


def test_a_bad_run_is_told_before_any_is_trained(tmp_path, tiny_config):
  for bad in (
    'fier',
    'learned(max_position=9)',
    'rope|randomized(max_position=9)',
  ):
    runs = runs_lib.parse(f'alibi; {bad}', tiny_config)
    with pytest.raises(errors.LengenError, match='fier|max_position'):
      compare.compare(tiny_config, tmp_path / 'run', runs)
    assert not (tmp_path / 'run').exists()


def test_a_mistake_leaves_the_workdir_to_the_corrected_command(
  tmp_path, tiny_config
):
  runs = runs_lib.parse('nope', tiny_config)
  tiny_config.train.init_from = str(tmp_path / 'nowhere')
  with pytest.raises(errors.CheckpointError, match='there is no .*nowhere'):
    compare.compare(tiny_config, tmp_path / 'runs', runs)
  assert not (tmp_path / 'runs' / 'comparison.json').exists()
  tiny_config.train.init_from = ''
  tiny_config.model.vocab_size = 64
  with pytest.raises(errors.ConfigError, match='vocab_size=64 is less than'):
    compare.compare(tiny_config, tmp_path / 'runs', runs)
  assert not (tmp_path / 'runs' / 'comparison.json').exists()
