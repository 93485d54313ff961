"""Tests `lengen_jax/training/evaluate.py`."""

import types

from lengen_jax import errors, positions
from lengen_jax.training import config, evaluate, sharding
from tests import helpers


def test_a_length_that_a_task_refuses_has_no_results(monkeypatch):
  def generate(generator, trained, examples, name, after_batch):
    if name == 'eval: long at 16':
      raise errors.LengthError('too long')
    return [[] for _ in examples]

  monkeypatch.setattr(evaluate, '_generate', generate)
  monkeypatch.setattr(evaluate, '_facts', lambda trained: {})
  monkeypatch.setattr(
    evaluate.scores_lib, 'score', lambda task, texts, references: {'score': 1.0}
  )
  example = types.SimpleNamespace(id='0', references=['x'], whole=True)
  prompts = types.SimpleNamespace(
    tasks=[types.SimpleNamespace(name=name) for name in ('short', 'long')],
    target_lengths=[4, 4],
    start=0,
    end=1,
    examples=lambda number, length, count: [example] * count,
    decode=lambda output: '',
  )
  run = types.SimpleNamespace(
    model=helpers.tiny_model(num_layers=1),
    scheme=positions.create('standard'),
    layout=sharding.Layout.create(config.MeshConfig(), 1),
    config=types.SimpleNamespace(seed=0),
    eval=types.SimpleNamespace(
      **{'lengths': (8, 16), 'examples': 1, 'batch_tokens': 64},
      **{'temperature': 0.0, 'top_p': 1.0},
    ),
  )
  found, predictions = evaluate.answers(types.SimpleNamespace(run=run), prompts)
  assert found['refused'] == {'16': 'too long'}
  assert [*found['scores']] == [*found['whole']] == [*found['average']] == ['8']
  assert found['examples'] == {'short': 1, 'long': 1}
  assert {one['length'] for one in predictions} == {8}


def test_the_best_model_has_the_highest_score(monkeypatch):
  run = types.SimpleNamespace(
    eval=types.SimpleNamespace(lengths=(64, 512)),
    data=types.SimpleNamespace(train_length=80),
  )
  costs = []
  for by_task in ({'a': 10.0, 'b': 20.0}, {'a': 80.0, 'b': 90.0}):
    scores = {'64': {task: {'score': x} for task, x in by_task.items()}}
    monkeypatch.setattr(
      evaluate, 'answers', lambda *_, found=scores: ({'scores': found}, [])
    )
    shown, cost = evaluate.validate(
      types.SimpleNamespace(run=run),
      types.SimpleNamespace(scored_by='answers'),
      '',
      None,
    )
    assert shown == {'validation_score': sum(by_task.values()) / 2}
    costs.append(cost)
  # The best checkpoint has the least.
  assert costs[1] < costs[0]
