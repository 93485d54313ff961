"""Tests `lengen_jax/training/loop.py`: training, stopping, going on."""

import contextlib
import dataclasses
import json
import types

import jax
import numpy as np
import pytest

from lengen_jax import data, errors
from lengen_jax.data import vocabulary, windows
from lengen_jax.evaluation import length_curve
from lengen_jax.training import files, loop, metrics, pretrained, throughput
from lengen_jax.training import run as run_lib
from lengen_jax.training import workdir as workdir_lib
from tests import helpers


def log(folder):
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  entries = [json.loads(line) for line in lines]
  return [(e['step'], e['loss'], e['grad_norm']) for e in entries]


def test_a_resumed_run_repeats_an_uninterrupted_one(
  tmp_path, tiny_config, corpus, monkeypatch
):
  tiny_config.model.encoding = 'rope'
  tiny_config.model.dropout_rate = 0.1
  tiny_config.positions = 'randomized(max_position=64)'
  whole = loop.train(tiny_config, tmp_path / 'whole', corpus=corpus)
  with monkeypatch.context() as patch:
    helpers.kill_at_step(patch, 6)
    with pytest.raises(helpers.Killed):
      loop.train(tiny_config, tmp_path / 'cut', corpus=corpus)
  steps = [step for step, *_ in log(tmp_path / 'cut')]
  assert steps == [1, 2, 3, 4]
  # Steps after the last checkpoint are done again, half lines forgotten.
  with (tmp_path / 'cut' / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 5, "loss": 1.0, "grad_norm": 0, "seconds": 1}\n{"st')
  cut = loop.train(tiny_config, tmp_path / 'cut', corpus=corpus)
  assert log(tmp_path / 'cut') == log(tmp_path / 'whole')
  assert len(log(tmp_path / 'cut')) == tiny_config.train.steps
  helpers.assert_same(cut.state, whole.state)


@pytest.mark.slow
def test_metrics_for_tensorboard_and_a_profile(
  tmp_path, tiny_config, corpus, capsys
):
  tiny_config.train.tensorboard = True
  tiny_config.train.profile = '2:3'
  loop.train(tiny_config, tmp_path, corpus=corpus)
  assert list((tmp_path / 'tensorboard').iterdir())
  assert list((tmp_path / 'profile').rglob('*.xplane.pb'))
  assert 'profiled from step 2' in capsys.readouterr().out
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  last = json.loads(lines[-1])
  assert last['tokens_per_second'] > 0 and 0 < last['goodput'] <= 1
  tiny_config.train.profile = '3:2'
  with pytest.raises(errors.ConfigError, match="'3:2' must be FIRST:LAST"):
    run_lib.Run(tiny_config)


def test_what_is_saved_is_logged(tmp_path, tiny_config, corpus, monkeypatch):
  """A run that ends where it has just saved loses no line."""
  with monkeypatch.context() as patch:
    helpers.kill_at_step(patch, 4)
    with pytest.raises(helpers.Killed):
      loop.train(tiny_config, tmp_path, corpus=corpus)
  assert [step for step, *_ in log(tmp_path)] == [1, 2, 3, 4]
  loop.train(tiny_config, tmp_path, corpus=corpus)
  steps = [step for step, *_ in log(tmp_path)]
  assert steps == list(range(1, tiny_config.train.steps + 1))


def test_a_model_that_is_not_for_the_data(tmp_path, tiny_config):
  tiny_config.model.architecture = 'encoder_decoder'
  with pytest.raises(errors.ConfigError, match="set it to 'decoder' or 'enc"):
    loop.train(tiny_config, tmp_path)


def test_a_finished_run_is_not_done_again(tmp_path, tiny_config, corpus):
  first = loop.train(tiny_config, tmp_path, corpus=corpus)
  before = (tmp_path / 'metrics.jsonl').read_text()
  again = loop.train(tiny_config, tmp_path, corpus=corpus)
  assert (tmp_path / 'metrics.jsonl').read_text() == before
  helpers.assert_same(again.state, first.state)
  assert again.seconds == pytest.approx(first.seconds, abs=1e-3)
  restored = pretrained.restore(tmp_path)
  helpers.assert_same(restored.state, first.state.weights())
  assert restored.seconds == again.seconds
  assert (tmp_path / 'metrics.jsonl').read_text() == before


def test_no_steps_keep_the_initial_state(tmp_path, tiny_config, corpus):
  tiny_config.train.steps = 0
  trained = loop.train(tiny_config, tmp_path, corpus=corpus)
  assert trained.state.step == 0
  again = loop.train(tiny_config, tmp_path, corpus=corpus)
  restored = pretrained.restore(tmp_path)
  initial = run_lib.Run(tiny_config).init_state()
  for found in (trained, again):
    helpers.assert_same(found.state, initial)
  helpers.assert_same(restored.state, initial.weights())


@pytest.mark.one_jax
def test_training_learns(tmp_path, tiny_config, corpus):
  tiny_config.train.steps = tiny_config.train.checkpoint_every = 60
  loop.train(tiny_config, tmp_path, corpus=corpus)
  losses = [loss for _, loss, _ in log(tmp_path)]
  assert losses[0] == pytest.approx(np.log(256), abs=0.5)
  assert np.mean(losses[-5:]) < losses[0] - 1.5


def test_workdir_of_another_config(tmp_path, tiny_config, corpus):
  workdir_lib.claim(tmp_path, tiny_config, corpus.info)
  tiny_config.model.num_layers = 5
  tiny_config.optimizer.learning_rate = 1.0
  with pytest.raises(
    errors.WorkdirError,
    match=r'model.num_layers: 1 there, 5 here; optimizer.learning_rate',
  ):
    loop.train(tiny_config, tmp_path, corpus=corpus)


def test_workdir_of_another_corpus(tmp_path, tiny_config, corpus):
  other = dataclasses.replace(corpus, info=corpus.info | {'sha256': 'x'})
  workdir_lib.claim(tmp_path, tiny_config, other.info)
  with pytest.raises(errors.WorkdirError, match="corpus_sha256: 'x' there"):
    loop.train(tiny_config, tmp_path, corpus=corpus)


def test_config_survives_the_workdir(tmp_path, tiny_config, corpus):
  workdir_lib.claim(tmp_path, tiny_config, corpus.info)
  config, path = workdir_lib.read_config(tmp_path)
  assert config.to_dict() == tiny_config.to_dict()
  assert path == tmp_path


def test_no_run_in_workdir(tmp_path):
  with pytest.raises(errors.WorkdirError, match='holds no run'):
    pretrained.restore(tmp_path)


def test_run_without_checkpoint(tmp_path, tiny_config, corpus):
  workdir_lib.claim(tmp_path, tiny_config, corpus.info)
  with pytest.raises(errors.CheckpointError, match='no checkpoint yet'):
    pretrained.restore(tmp_path)


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(encoding='fier'), "'fier'; did you mean 'fire'"),
    (dict(dtype='float16'), "model.dtype 'float16'"),
    (dict(num_layers=0), 'num_layers must be at least 1, got 0'),
    (dict(vocab_size=100), 'vocab_size=100 is less than the 256'),
    (dict(attention_scale='none, logn'), "attention scale 'logn'"),
  ],
)
def test_bad_model(tmp_path, tiny_config, corpus, change, message):
  tiny_config.model.update(change)
  with pytest.raises(errors.LengenError, match=message):
    loop.train(tiny_config, tmp_path / 'run', corpus=corpus)
  assert not (tmp_path / 'run').exists()


def test_a_token_id_that_the_model_does_not_have(
  tmp_path, tiny_config, corpus, monkeypatch
):
  """Its embedding is NaN, which would look like divergence."""
  run = run_lib.Run(tiny_config)
  size = run.model.vocab_size
  tokens = np.zeros((run.data.batch_size, run.data.train_length + 1), int)
  rows = windows.lm_batch(tokens)
  run.place(rows)
  tokens[1, -1] = size
  rows = windows.lm_batch(tokens)
  batches = types.SimpleNamespace(padded=False, next=lambda: rows)
  monkeypatch.setattr(type(corpus), 'training', lambda *_, **__: batches)
  wanted = f'token id {size}, over .*vocab_size .now {size}. to {size + 1}'
  with pytest.raises(errors.CorpusError, match=wanted):
    loop.train(tiny_config, tmp_path / 'run', corpus=corpus)
  losses = length_curve.batch_losses(
    run.model, run.scheme, {}, rows, 64, 0, run.layout
  )
  with pytest.raises(errors.CorpusError, match=wanted):
    next(losses)
  tokens[1, -1] = -1
  with pytest.raises(errors.CorpusError, match='token id -1; .* negative'):
    run.place(windows.lm_batch(tokens))


def test_more_token_ids_than_the_model_has(tiny_config):
  folder = str(helpers.GOLDEN / 'checkpoints' / 'gemma2')
  corpus = data.Corpus({}, vocabulary.create(folder), {})
  tiny_config.data.update(
    source='prepared', path='x', task='lm', vocabulary=folder
  )
  tiny_config.model.vocab_size = 561
  with pytest.raises(
    errors.ConfigError,
    match='vocab_size=561 is less than the 562 token ids of lm with '
    r"data\.vocabulary='.*gemma2'; raise it, or set data\.vocabulary to that",
  ):
    loop.check_corpus(run_lib.Run(tiny_config), corpus)
  # The embedding may have more rows.
  for size in (562, 600):
    tiny_config.model.vocab_size = size
    loop.check_corpus(run_lib.Run(tiny_config), corpus)


@pytest.mark.parametrize(
  'section, field, message',
  [
    ('model', 'widht', "'model.widht'; did you mean 'model.width'"),
    ('train', 'log_evry', "'train.log_evry'; did you mean 'train.log_every'"),
  ],
)
def test_unknown_field(tiny_config, section, field, message):
  tiny_config[section][field] = 3
  with pytest.raises(errors.ConfigError, match=message):
    run_lib.Run(tiny_config)


@pytest.mark.parametrize(
  'section, field', [('model', 'width'), ('train', 'log_every')]
)
def test_missing_field(tiny_config, section, field):
  del tiny_config[section][field]
  with pytest.raises(errors.ConfigError, match=f'lacks {section}.{field}'):
    run_lib.Run(tiny_config)


@pytest.mark.parametrize(
  'section, field, value',
  [
    ('train', 'steps', -1),
    ('train', 'checkpoint_every', 0),
    ('train', 'log_every', 0),
    ('data', 'batch_size', 0),
    ('eval', 'windows', 0),
    ('eval', 'lengths', ()),
  ],
)
def test_values_out_of_range(tiny_config, section, field, value):
  tiny_config[section][field] = value
  with pytest.raises(errors.ConfigError, match=f'{section}.{field} must be'):
    run_lib.Run(tiny_config)


@pytest.mark.slow
def test_a_damaged_last_step_is_trained_and_saved_again(
  tmp_path, tiny_config, corpus
):
  first = loop.train(tiny_config, tmp_path, corpus=corpus)
  last = tmp_path / 'checkpoints' / str(tiny_config.train.steps)
  for file in last.rglob('d/*'):
    file.write_bytes(b'')
  again = loop.train(tiny_config, tmp_path, corpus=corpus)
  helpers.assert_same(again.state, first.state)
  assert len(list((tmp_path / 'unreadable_checkpoints').iterdir())) == 1
  restored = pretrained.restore(tmp_path)
  helpers.assert_same(restored.state, first.state.weights())


@pytest.mark.parametrize(
  'encoding, positions, message',
  [
    (
      'learned(max_position=64)',
      'interpolated(scale=2)',
      'has fractional positions and learned',
    ),
    ('learned(max_position=64)', 'randomized(max_position=65)', '65 or more'),
    ('rope(scale=2.)', 'interpolated(scale=2)', 'interpolates positions and'),
  ],
)
def test_encodings_and_schemes_that_do_not_combine(
  tiny_config, encoding, positions, message
):
  tiny_config.model.encoding = encoding
  tiny_config.positions = positions
  with pytest.raises(errors.CombinationError, match=message):
    run_lib.Run(tiny_config)


def test_table_shorter_than_training(tmp_path, tiny_config, corpus):
  tiny_config.model.encoding = 'learned(max_position=31)'
  with pytest.raises(errors.LengthError, match='no entry for position 31'):
    loop.train(tiny_config, tmp_path / 'run', corpus=corpus)
  # No folder remains that would block the corrected command.
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_the_error_of_an_approximate_bias_is_kept_at_checkpoints(
  tmp_path, tiny_config, corpus, capsys
):
  tiny_config.model.encoding = 'fire(init_threshold=8.)'
  tiny_config.model.bias_form = 'anchored'
  tiny_config.data.train_length = 256
  tiny_config.data.batch_size = 2
  tiny_config.train.checkpoint_every = 3
  tiny_config.train.steps = 5
  loop.train(tiny_config, tmp_path, corpus=corpus)
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  errors_at = {
    entry['step']: entry['bias_error']
    for entry in map(json.loads, lines)
    if 'bias_error' in entry
  }
  assert [*errors_at] == [3, 5]
  assert all(0 < error < 0.05 for error in errors_at.values())
  out = capsys.readouterr().out
  assert "bias_form='anchored' has errors of up to" in out


def test_data_that_was_moved_is_the_same_data(tmp_path, tiny_config):
  info = {'sha256': 'a', 'vocabulary': 'bytes'}
  tiny_config.data.path = 'here'
  workdir_lib.claim(tmp_path, tiny_config, info)
  tiny_config.data.path = 'there'
  workdir_lib.claim(tmp_path, tiny_config, info)
  # From now on it is looked for there.
  assert workdir_lib.read_config(tmp_path)[0].data.path == 'there'
  tiny_config.data.path = 'elsewhere'
  with pytest.raises(errors.WorkdirError, match='corpus_sha256.*data.path'):
    workdir_lib.claim(tmp_path, tiny_config, {**info, 'sha256': 'b'})


def test_a_workdir_has_one_training_at_a_time(tmp_path, tiny_config):
  with files.locked(tmp_path):
    with pytest.raises(errors.WorkdirError, match='another process is at work'):
      loop.train(tiny_config, tmp_path)
  assert not (tmp_path / 'config.json').exists()


def test_devices_outside_the_mesh_need_no_memory(tiny_config, monkeypatch):
  run = run_lib.Run(tiny_config)
  size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.init_state()))
  # The mesh has one of the devices.
  tiny_config.mesh.data = 1
  assert jax.device_count() > 1
  for limit, fits in ((1.5 * size, True), (0.5 * size, False)):
    monkeypatch.setattr(files, 'physical_memory', lambda limit=limit: limit)
    with contextlib.nullcontext() if fits else pytest.raises(errors.FitError):
      loop.check_state_fits(run_lib.Run(tiny_config))


def test_a_table_larger_than_the_memory(tiny_config, monkeypatch):
  tiny_config.model.encoding = 'learned(max_position=100000)'
  run = run_lib.Run(tiny_config)
  loop.check_state_fits(run)
  monkeypatch.setattr(files, 'physical_memory', lambda: 2**20)
  with pytest.raises(
    errors.FitError, match=r'[0-9,]+ param.* has 1.0 MiB; use'
  ):
    loop.check_state_fits(run)


def test_the_log_has_the_tokens_of_all_rows(tmp_path, tiny_config, monkeypatch):
  run, seen = run_lib.Run(tiny_config), {}

  def log(*_, **named):
    seen.update(named)
    return types.SimpleNamespace(close=lambda: None)

  monkeypatch.setattr(metrics, 'Log', log)
  one = loop.Loop(run, None, None, tmp_path, None, None, 'label')
  with contextlib.ExitStack() as stack:
    one._reporters(stack, 0, {'inputs': np.zeros((4, 32))})
  assert seen['tokens'] == 4 * 32
  assert seen['flops'] == throughput.model_flops(run.model, 4, 32)


def test_validations_do_not_count_as_seconds_of_training(tmp_path, monkeypatch):
  now, spent = [0.0], []

  def takes(seconds, result=None):
    def function(*_):
      now[0] += seconds
      return result

    return function

  def write(pending, seconds, durable, saves):
    spent.append(seconds)
    return metrics.Written(0.0, 0, {})

  def nothing(*_):
    return None

  reporter = types.SimpleNamespace(
    **dict.fromkeys(
      ('before', 'after', 'start_clock', 'update', 'announce'), nothing
    )
  )
  log = types.SimpleNamespace(write=write)
  step = takes(1.0, (types.SimpleNamespace(params=None), {'loss': 1.0}))
  monkeypatch.setattr(
    loop, 'time', types.SimpleNamespace(monotonic=lambda: now[0])
  )
  monkeypatch.setattr(loop, '_bias_error', lambda *_: {})
  for name, value in (
    ('_reporters', lambda *_: (reporter, log, reporter)),
    ('_compile', lambda *_: step),
    ('_validate', takes(100.0)),
  ):
    monkeypatch.setattr(loop.Loop, name, value)
  run = types.SimpleNamespace(
    train=types.SimpleNamespace(
      **{'steps': 3, 'log_every': 1, 'checkpoint_every': 1},
      **{'max_skipped': 1, 'stall_seconds': 0},
      validates=lambda step: True,
    ),
    eval=types.SimpleNamespace(steps=()),
    place=lambda batch: batch,
  )
  one = loop.Loop(
    run,
    types.SimpleNamespace(next=nothing),
    None,
    tmp_path,
    types.SimpleNamespace(check=nothing, durable_step=nothing, save=nothing),
    types.SimpleNamespace(reached=lambda: False),
    '',
  )
  one.train(types.SimpleNamespace(step=0), False)
  assert spent == [1.0, 2.0, 3.0]
