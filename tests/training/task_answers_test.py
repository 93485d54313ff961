"""Tests `lengen_jax/training/task_answers.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import arithmetic
from lengen_jax import errors, tasks
from lengen_jax.models import presets, transduction
from lengen_jax.tasks import batches
from lengen_jax.training import task_answers, task_trainer
from tests import helpers


def create(architecture='decoder', **fields):
  config = arithmetic.get_config('plain,tiny')
  config.model.architecture = architecture
  config.model.encoding = 'alibi'
  config.eval.by = 'generation'
  config.eval.update(fields)
  return task_trainer.TaskTrainer(config)


@pytest.mark.some(2)
@pytest.mark.parametrize(
  ('encoding', 'scheme', 'rows'),
  [
    ('alibi', 'standard', 1),
    ('learned(max_position=24)', 'coupled(max_position=24)', 1),
    (
      'learned(max_position=40, rows=3) + alibi',
      'coupled(max_position=40) + standard',
      3,
    ),
  ],
)
def test_a_generated_answer_is_its_own_most_probable_continuation(
  encoding, scheme, rows
):
  """With teacher forcing on it, the model predicts the answer itself.

  Roles are those of the correct answer.
  """
  if rows == 1:
    task = tasks.create("arithmetic/addition(lengths='uniform')")
  else:
    keys = "format='reversed', pad=True, scratchpad=True"
    task = tasks.create(f"arithmetic/multiplication({keys}, lengths='uniform')")
  fields = presets.get('tiny') | {
    'num_layers': 1,
    'encoding': encoding,
    'attention_scale': 'none',
  }
  model = transduction.create(
    task, fields, scheme, train_length=3, test_length=3
  )
  params = helpers.params_of(model.config)
  if 'learned' in encoding:
    # Positions matter beside tokens.
    params = jax.tree.map(lambda leaf: 4 * leaf, params)
  inputs, targets = task.sample(jax.random.key(1), 8, 3)
  assert len({*np.asarray(task.input_lengths(inputs, 3)).tolist()}) > 1
  answers = task_answers.generate(
    model, task, params, inputs, targets, 3, batch_tokens=64
  )
  assert answers.shape == targets.shape and len(np.unique(answers)) > 3

  @jax.jit
  def predict(targets, roles):
    batch = batches.make(task, inputs, targets, 3, autoregressive=True)
    rngs = {'positions': jax.random.key(0)}
    outputs = model.apply(
      params, batch | roles, rngs=rngs, train=False, scored=False
    )
    logits = batches.at_targets(task, outputs, inputs, targets, 3)
    return logits.argmax(-1)

  batch = batches.make(task, inputs, targets, 3, autoregressive=True)
  roles = {'roles': batch['roles']}
  mask = task.mask(targets, 3)
  np.testing.assert_array_equal(
    np.where(mask, predict(answers, roles), -1), np.where(mask, answers, -1)
  )
  if model.scheme.needs_roles:
    other = {'roles': jnp.maximum(batch['roles'] - 1, -1)}
    assert not np.array_equal(predict(answers, other), predict(answers, roles))


def test_scores(monkeypatch):
  """Rows that are right, of the examples that teacher forcing has."""
  trainer = create()
  seen = []

  def generate(model, task, params, inputs, targets, length, **_):
    del model, params
    seen.append(np.asarray(inputs))
    answers = np.array(task.target(inputs, length))
    answers[: 2 * len(seen), 1] = 0
    return answers[:, : task.output_length(length)]

  monkeypatch.setattr(task_answers, 'generate', generate)
  scores = trainer.test(trainer.init((0, 1), (1e-3, 1e-3)), 3)
  np.testing.assert_allclose(scores['exact'], [0.75, 0.5])
  np.testing.assert_allclose(scores['right'].mean(1), [0.75, 0.5])
  assert (scores['accuracy'] > scores['exact']).all()
  assert np.isnan(scores['loss']).all()
  np.testing.assert_array_equal(*seen)


def test_refuses_what_it_cannot_score():
  message = "generation' requires model.architecture='decoder'"
  with pytest.raises(errors.ConfigError, match=message):
    create(score='loss')
  with pytest.raises(errors.ConfigError, match=message):
    create(architecture='encoder')


@pytest.mark.one_jax
def test_a_point_that_diverged_has_no_score():
  """The other points are scored."""
  program = create(examples=4)
  points = program.init((0, 1), (1e-3, 1e-3))
  points = points.replace(
    params=jax.tree.map(lambda x: x.at[1].set(jnp.nan), points.params)
  )
  found = program.test(points, 2)
  for name in ('accuracy', 'exact'):
    assert np.isfinite(found[name]).tolist() == [True, False]
  assert found['right'].shape == (2, 4) and not found['right'][1].any()
