"""Tests `lengen_jax/evaluation/metrics/scrolls.py`.

Golden scores: `golden/scrolls/README.md`.
"""

import json
import subprocess
import sys

import pytest

from lengen_jax import errors
from lengen_jax.evaluation.metrics import scrolls
from tests import helpers

GOLDEN = helpers.GOLDEN / 'scrolls'


def golden(name):
  return json.loads((GOLDEN / f'{name}.json').read_text())


def cases(name):
  return [
    pytest.param(case, id=str(number))
    for number, case in enumerate(golden(name)['cases'])
  ]


def rounded(value):
  return pytest.approx(value, abs=5.1e-5)


def test_normalize_golden():
  for case in golden('normalize'):
    assert scrolls.normalize(case['text']) == case['normalized'], case['text']


@pytest.mark.parametrize('case', cases('exact_match'))
def test_exact_match_golden(case):
  got = scrolls.exact_match([case['prediction']], [case['references']])
  assert got == rounded(case['scores']['exact_match'])


@pytest.mark.parametrize('case', cases('f1'))
def test_f1_golden(case):
  got = scrolls.f1([case['prediction']], [case['references']])
  assert got == rounded(case['scores']['f1'])


@pytest.mark.parametrize('case', cases('rouge'))
def test_rouge_golden(case):
  rows = [case['prediction']], [case['references']]
  components = scrolls.rouge_components(*rows)
  assert list(components) == ['rouge1', 'rouge2', 'rougeL']
  for kind, value in components.items():
    assert value == rounded(case['scores'][f'rouge/{kind}'])
  assert scrolls.rouge(*rows) == rounded(case['scores']['scrolls_score'])


@pytest.mark.parametrize(
  ('task', 'name'),
  [('quality', 'exact_match'), ('qasper', 'f1'), ('qmsum', 'rouge')],
)
def test_evaluate_golden(task, name):
  for case in golden(name)['cases']:
    got = scrolls.evaluate(
      task, {'id': case['prediction']}, {'id': case['references']}
    )
    assert got == case['scores']


def test_rows_with_equal_ids_are_one_prediction():
  case = golden('duplicates')
  references = scrolls.group_outputs(case['rows'])
  assert list(references.items()) == list(case['id_to_references'].items())
  for task, name in (('narrative_qa', 'f1'), ('contract_nli', 'exact_match')):
    got = scrolls.evaluate(task, case['predictions'], references)
    assert got == case[name]


def test_order_of_predictions_does_not_matter():
  references = {1: ['cat'], 2: ['dog'], 3: ['fish']}
  predictions = {3: 'bird', 2: 'dog', 1: 'cat'}
  got = scrolls.evaluate('quality', predictions, references)
  assert got['scrolls_score'] == 66.6667


def test_metric_of_each_task():
  assert scrolls.TASKS == golden('tasks')['dataset_to_metric']


def test_words_count_as_often_as_they_occur():
  # Two of three words and two of four: 2 * 2 / (3 + 4).
  assert scrolls.f1(['x x y'], [['x x x z']]) == pytest.approx(400 / 7)


def test_mean_is_over_rows_and_the_best_is_within_a_row():
  predictions = ['red', 'blue', 'green']
  references = [['blue', 'red'], ['red'], ['green grass']]
  assert scrolls.exact_match(predictions, references) == pytest.approx(100 / 3)
  # 1, 0 and 2/3.
  assert scrolls.f1(predictions, references) == pytest.approx(500 / 9)


def test_rouge_by_hand():
  # 3 of 4 and of 3 tokens are shared, and a pair of 3 and 2; 'a c' or 'a b' in
  # order.
  components = scrolls.rouge_components(['a b c d'], [['a c b']])
  assert components['rouge1'] == pytest.approx(600 / 7)
  assert components['rouge2'] == 0
  assert components['rougeL'] == pytest.approx(400 / 7)


def test_best_reference_of_each_rouge_apart():
  references = ['w x y z', 'z y x w v']
  each = [
    scrolls.rouge_components(['x w y z v'], [[text]]) for text in references
  ]
  best = scrolls.rouge_components(['x w y z v'], [references])
  assert each[0]['rouge1'] < each[1]['rouge1']
  assert each[0]['rougeL'] > each[1]['rougeL']
  assert best['rouge1'] == each[1]['rouge1']
  assert best['rougeL'] == each[0]['rougeL']


def test_rouge_is_the_geometric_mean_of_means():
  # A mean of geometric means would be 50: the second row has no pair of words.
  got = scrolls.rouge(['one two', 'one'], [['one two'], ['one']])
  assert got == pytest.approx((100 * 50 * 100) ** (1 / 3))


def test_rouge_does_not_stem():
  assert scrolls.rouge_components(['running'], [['run']])['rouge1'] == 0


@pytest.mark.parametrize('metric', [scrolls.exact_match, scrolls.f1])
@pytest.mark.parametrize(
  ('predictions', 'references', 'message'),
  [
    (['a'], [['a'], ['b']], '1 predictions, 2 references'),
    ([], [], 'nothing to score'),
    (['a', 'b'], [['a'], 'b'], r"references\[1\] is 'b'; pass a list"),
    (['a'], [[]], r'references\[0\] is \[\]'),
    (['a'], [[b'a']], r"references\[0\] is \[b'a'\]"),
    ([b'a'], [['a']], r"predictions\[0\] is b'a'; pass a string"),
  ],
)
def test_rows_that_cannot_be_scored(metric, predictions, references, message):
  with pytest.raises(errors.MetricError, match=message):
    metric(predictions, references)


def test_rouge_checks_rows():
  with pytest.raises(errors.MetricError, match='1 predictions, 2 references'):
    scrolls.rouge(['a'], [['a'], ['b']])


def test_missing_and_extra_ids_are_named():
  references = {f'q{number}': ['a'] for number in range(9)}
  with pytest.raises(errors.MetricError) as error:
    scrolls.evaluate('qasper', {'q8': 'a', 'r1': 'a'}, references)
  assert str(error.value) == (
    "8 ids without a prediction: 'q0', 'q1', 'q2', 'q3', 'q4', ...; "
    "1 predictions for ids without references: 'r1'"
  )


def test_output_of_the_test_split():
  with pytest.raises(errors.MetricError, match="row 'q7' has no output"):
    scrolls.group_outputs([{'id': 'q7', 'output': None}])


def test_unknown_task():
  with pytest.raises(errors.LengenError, match="did you mean 'qasper'"):
    scrolls.evaluate('quasper', {}, {})


def test_rouge_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, 'rouge_score.rouge_scorer', None)
  with pytest.raises(errors.MetricError, match='pip install'):
    scrolls.rouge(['a'], [['a']])


@pytest.mark.parametrize('name', ['scrolls', 'superglue', 'lm'])
def test_metrics_load_nothing_heavy(name):
  heavy = {'jax', 'flax', 'tensorflow', 'seqio', 'rouge_score', 'nltk'}
  code = (
    f'import sys\nfrom lengen_jax.evaluation.metrics import {name}\n'
    'print(*sys.modules)'
  )
  run = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  loaded = {module.split('.')[0] for module in run.stdout.split()}
  assert 'lengen_jax' in loaded
  assert not loaded & heavy


def test_rouge_loads_neither_jax_nor_tensorflow():
  code = (
    'import sys\nfrom lengen_jax.evaluation.metrics import scrolls\n'
    "scrolls.rouge(['a b'], [['a b']])\n"
    "assert 'rouge_score' in sys.modules\n"
    "assert not {'jax', 'tensorflow'} & set(sys.modules)"
  )
  subprocess.run([sys.executable, '-c', code], check=True)
