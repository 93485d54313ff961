"""Tests `lengen_jax/training/task_trainer.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import arithmetic, chomsky, crasp, recall, warping_algorithmic
from lengen_jax import errors
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import task_trainer


def create(task='reverse_string', size='tiny', **fields):
  config = chomsky.get_config(f'{task},{size}')
  if size == 'tiny':
    config.model.num_layers = 1
  with config.unlocked():
    for key, value in fields.items():
      section, _, field = key.partition('__')
      if field:
        config[section][field] = value
      else:
        config[section] = value
  return task_trainer.TaskTrainer(config)


def trained(program, *bounds):
  runs = program.init((0, 1), (1e-3, 2e-3))
  for first, last in zip(bounds, bounds[1:], strict=False):
    runs = program.train(runs, first, last)
  return runs


def test_the_official_model_has_as_many_parameters():
  program = create(size='paper', model__encoding='rope')
  params = jax.tree.leaves(program.abstract(2).params)
  assert sum(leaf.size for leaf in params) == 2 * 248_962
  assert program.train_widths == (8, 16, 24, 32, 40)
  assert program.test_widths[-1] == 500 and len(program.test_widths) == 8


def test_the_model_of_addition_has_25_million_parameters():
  """Without the embedding, as the paper counts."""
  params = task_trainer.TaskTrainer(arithmetic.get_config()).abstract(2).params
  inside = {k: v for k, v in params.items() if k not in ('embed', 'head')}
  count = sum(leaf.size for leaf in jax.tree.leaves(inside)) / 2
  assert count == pytest.approx(25.2e6, rel=1e-3)


def test_steps_in_parts_are_the_same_steps():
  program = create()
  whole, parts = trained(program, 0, 6), trained(program, 0, 0, 2, 2, 6)
  assert whole.step.tolist() == [6, 6]
  assert np.isfinite(whole.loss).all()
  parts = parts.replace(loss=whole.loss)
  for a, b in zip(*map(jax.tree.leaves, (whole, parts)), strict=True):
    np.testing.assert_array_equal(a, b)


def test_tests_do_not_repeat_training():
  program = create()
  rngs = program._example_rngs(5)
  tested, _ = program._sample(program.task, rngs, 5, 5)
  for seed in range(3):
    # As in `_step`.
    key = jax.random.fold_in(jax.random.key(seed), 5)
    rng, _ = jax.random.split(key)
    batch, _ = program.task.sample(rng, 8, 5)
    assert (batch[0] != tested[0]).any()


@pytest.mark.slow
def test_runs_do_not_touch_each_other(assert_close):
  program = create()
  two = trained(program, 0, 4)
  assert two.loss[0] != two.loss[1]
  swapped = program.init((1, 0), (2e-3, 1e-3))
  swapped = program.train(swapped, 0, 4)
  flipped = jax.tree.map(lambda x: np.asarray(x)[::-1], swapped)
  assert_close(two.params, flipped.params, 1e-4)
  alone = program.train(program.init((0,), (1e-3,)), 0, 4)
  assert len(alone.step.sharding.device_set) == 1
  assert_close(
    alone.params, jax.tree.map(lambda x: np.asarray(x)[:1], two.params), 1e-4
  )


@pytest.mark.slow
def test_vectorised_runs_are_the_same_runs(assert_close):
  program = create(sweep__batching='vmap')
  four = program.init((0, 0, 1, 1), (1e-3, 1e-3, 2e-3, 2e-3))
  four = program.train(four, 0, 4)
  two = trained(create(), 0, 4)
  assert_close(four.loss[::2], two.loss, 1e-4)
  some = jax.tree.map(lambda x: np.asarray(x)[::2], four.params)
  assert_close(some, two.params, 1e-3)


@pytest.mark.parametrize(
  'encoding',
  [
    'alibi',
    pytest.param('rnn', marks=pytest.mark.slow),
    pytest.param('stack_rnn', marks=pytest.mark.slow),
  ],
)
def test_it_learns(encoding):
  """parity_check at length 1 is the bit itself."""
  program = create(
    'parity_check',
    model__encoding=encoding,
    train__max_length=2,
    eval__lengths=(1, 3),
    eval__examples=32,
  )
  runs = program.init((0, 1), (1e-2, 1e-2))
  before = program.test(runs, 1)
  runs = program.train(runs, 0, 150)
  after = program.test(runs, 1)
  assert np.isfinite(runs.loss).all()
  assert np.max(after['accuracy']) == 1 and np.max(after['exact']) == 1
  assert np.max(after['loss']) < 0.5 * np.min(before['loss'])


@pytest.mark.slow
@pytest.mark.parametrize(
  'encoding', ['alibi', pytest.param('lstm', marks=pytest.mark.slow)]
)
def test_it_learns_targets_at_the_input(encoding):
  """flip_flop of 2 instructions is the bit before."""
  config = recall.get_config('flip_flop,tiny')
  config.model.encoding = encoding
  config.model.num_layers = 1
  config.train.min_length = config.train.max_length = 2
  config.eval.lengths = (2, 4)
  program = task_trainer.TaskTrainer(config)
  runs = program.init((0, 1), (1e-2, 1e-2))
  runs = program.train(runs, 0, 60)
  scores = program.test(runs, 2)
  assert np.max(scores['accuracy']) == 1 and np.max(scores['exact']) == 1
  # At length 4, one or more of up to three answers are scored.
  scores = program.test(runs, 4)
  assert (scores['exact'] <= scores['accuracy']).all()
  assert scores['right'].shape == (2, program.config.eval.examples)
  np.testing.assert_allclose(scores['right'].mean(1), scores['exact'])
  assert (0 < scores['accuracy']).all() and np.isfinite(scores['loss']).all()


def test_without_finite_logits_no_example_is_right():
  """Their largest is the first, which is the answer to half of the examples."""
  program = create('even_pairs')
  runs = program.init((0, 1), (1e-3, 1e-3))
  lost = jax.tree.map(lambda x: x.at[1].set(jnp.nan), runs.params)
  scores = program.test(runs.replace(params=lost), 2)
  assert np.isfinite(scores['exact']).tolist() == [True, False]
  assert not scores['right'][1].any()


def test_bad_lengths_and_names():
  limited = 'randomized(max_position=20)'
  with pytest.raises(errors.LengthError) as caught:
    create(positions=limited)
  assert 'reverse_string of length 12 has 24 tokens' in str(caught.value)
  assert 'set max_position=24' in str(caught.value)
  with pytest.raises(errors.LengthError, match='max_position=24'):
    create(model__encoding='learned(max_position=20)')
  with pytest.raises(errors.LengenError, match='reverse_string'):
    create('revers_string')


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'eval__lengths': (0, 8)}, 'length=0 is too short'),
    ({'eval__lengths': ()}, 'eval.lengths must be one or more distinct'),
    ({'eval__score': 'acuracy'}, "did you mean 'accuracy'"),
    ({'eval__examples': 0}, 'eval.examples must be at least 1, got 0'),
    ({'eval__by': 'generating'}, "did you mean 'generation'"),
    ({'model__scan_layers': True}, 'sweeps do not support model.scan_layers='),
    ({'train__buckets': 0}, 'train.buckets must be at least 1, got 0'),
    ({'train__log_every': 0}, 'train.log_every must be at least 1, got 0'),
    ({'train__min_length': 9}, 'train.min_length=9 and train.max_length=6'),
    ({'sweep__seeds': ()}, 'sweep.seeds must be one or more distinct'),
    ({'sweep__seeds': (0, 0)}, 'sweep.seeds must be one or more distinct'),
    ({'sweep__seeds': (-1,)}, 'sweep.seeds must be integers from 0'),
    ({'sweep__seeds': (0.2, 0.7)}, 'sweep.seeds must be integers from 0'),
    ({'sweep__learning_rates': (0.0,)}, 'sweep.learning_rates above 0'),
    ({'sweep__batching': 'pmap'}, "unknown sweep.batching 'pmap'"),
    ({'model__encoding': 'lsmt'}, "did you mean 'lstm'"),
    (
      {'model__encoding': 'rnn', 'positions': 'randomized(max_position=30)'},
      "attention; remove 'randomized(max_position=30)'",
    ),
    (
      {'model__encoding': 'rnn', 'model__contextual_positions': 'repo'},
      "attention; remove 'repo'",
    ),
    (
      {'model__encoding': 'rnn', 'positions': 'none'},
      "attention; remove 'none'",
    ),
    (
      {'model__vocab_size': 7},
      "unknown field of the config 'model.vocab_size'",
    ),
  ],
)
def test_refuses_before_anything_is_trained(fields, message):
  with pytest.raises(errors.LengenError) as caught:
    create(**fields)
  assert message in str(caught.value)


def test_scores_do_not_depend_on_how_examples_are_split():
  few, many = (
    create(eval__batch_tokens=tokens, model__encoding='alibi')
    for tokens in (30, 512)
  )
  runs = few.init((0, 1), (1e-3, 1e-3))
  for name, score in few.test(runs, 8).items():
    np.testing.assert_allclose(score, many.test(runs, 8)[name], rtol=1e-5)


@pytest.mark.parametrize('size', ['paper', 'cpu', 'tiny'])
@pytest.mark.parametrize(
  'config, task',
  [
    *((chomsky, task) for task in ('bucket_sort', 'duplicate_string')),
    *((warping_algorithmic, task) for task in ('copy', 'sort', 'sum')),
    (warping_algorithmic, 'figure3'),
    *(
      pytest.param(
        recall,
        task,
        marks=() if task in ('mqar', 'flip_flop') else pytest.mark.slow,
      )
      for task in recall.TASKS
    ),
    *((arithmetic, task) for task in ('plain', 'reversed', 'hints,268M')),
    *((crasp, task) for task in ('bin_majority_interleave', 'unique_copy')),
  ],
)
def test_every_run_of_every_config_goes_together(config, task, size):
  config = config.get_config(f'{task},{size}')
  for run in runs_lib.parse(config.sweep.runs, config):
    task_trainer.TaskTrainer(runs_lib.configure(config, run))


@pytest.mark.parametrize('tokens', [60, 4096])
def test_answers_by_the_digits_of_both_operands(tokens, monkeypatch):
  """In blocks of some examples; all points have the same."""
  config = arithmetic.get_config('reversed,tiny')
  config.task = (
    "arithmetic/multiplication(format='reversed', pad=True, second_digits=1)"
  )
  config.eval.operand_examples, config.eval.batch_tokens = 60, tokens
  program = task_trainer.TaskTrainer(config)
  seen = set()

  def predict(task, params, rngs, length, width):
    """Answers questions whose first number has fewer digits, and not 3."""
    seen.add(len(rngs))
    inputs, targets = program._sample(task, rngs, length, width)
    digits = task.operand_digits(inputs)
    known = (digits[:, 0] < digits[:, 1]) & (digits[:, 0] != 3)
    answers = jnp.where(known[:, None], targets, 4)
    return inputs, targets, jax.nn.one_hot(answers + params['shift'], 20)

  monkeypatch.setattr(program, '_predict', predict)
  points = program.abstract(2).replace(params={'shift': jnp.array([0, 1])})
  found = program.test_operands(points)
  # A row of 5 x 5 digits has 22 tokens.
  assert seen == {{60: 2, 4096: 60}[tokens]}
  assert found['count'].sum() == 60 and (found['count'] > 0).sum() > 15
  some = found['count'] > 0
  n = np.arange(1, 6)
  want = (n[:, None] < n) & (n[:, None] != 3)
  np.testing.assert_array_equal(found['share'][0][some], want[some])
  assert not found['share'][1][some].any()
  assert np.isnan(found['share'][:, ~some]).all()


@pytest.mark.parametrize(
  'task', ['addition(operands=3)', 'parity(scratchpad=False)']
)
def test_refuses_maps_of_other_tasks(task):
  config = arithmetic.get_config('plain,tiny')
  config.task = f'arithmetic/{task}'
  config.eval.operand_examples = 7
  with pytest.raises(errors.ConfigError, match='examples=7 requires.*two oper'):
    task_trainer.TaskTrainer(config)


@pytest.mark.parametrize(
  'positions, encoding, message',
  [
    ('coupled(max_position=20)', 'rope', 'second_digits determines the roles'),
    # Rows of 5 x 1 digits have 14 tokens, and those of 5 x 5 digits 22.
    (
      *('standard', 'learned(max_position=15)'),
      'operand_examples=7 has two operands of up to 5 digits: learned',
    ),
  ],
)
def test_refuses_maps_of_longer_rows_or_other_roles(
  positions, encoding, message
):
  config = arithmetic.get_config('reversed,tiny')
  config.task = (
    "arithmetic/multiplication(format='reversed', pad=True, second_digits=1)"
  )
  config.positions, config.model.encoding = positions, encoding
  config.eval.operand_examples = 0
  task_trainer.TaskTrainer(config)
  config.eval.operand_examples = 7
  with pytest.raises(errors.LengenError, match=message):
    task_trainer.TaskTrainer(config)


def test_maps_of_equal_roles():
  config = arithmetic.get_config('reversed,tiny')
  config.task = "arithmetic/addition(format='reversed', second_digits=2)"
  config.positions, config.model.encoding = 'coupled(max_position=20)', 'rope'
  config.eval.operand_examples = 7
  task_trainer.TaskTrainer(config)


def test_maps_of_models_that_diverged():
  config = arithmetic.get_config('plain,tiny')
  config.eval.operand_examples = 7
  program = task_trainer.TaskTrainer(config)
  points = program.init([0], [0.1])
  params = jax.tree.map(lambda leaf: leaf * jnp.nan, points.params)
  found = program.test_operands(points.replace(params=params))
  assert found['count'].sum() == 7
  assert np.isnan(found['share']).all()


def test_widths():
  assert task_trainer.widths(range(1, 41), 5) == (8, 16, 24, 32, 40)
  assert task_trainer.widths((5, 3, 9), 8) == (3, 5, 9)
