"""Tests `lengen_jax/evaluation/metrics/superglue.py`."""

import math

import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.evaluation.metrics import superglue


def test_accuracy():
  assert superglue.accuracy([1, 0, 2, -1], [1, 1, 2, 0]) == 50
  assert superglue.accuracy([True, False], [True, True]) == 50


def test_accuracy_of_the_paper():
  # CB: 47 of 56.
  targets = np.zeros(56, int)
  assert superglue.accuracy(np.arange(56) >= 47, targets) == pytest.approx(
    83.93, abs=0.005
  )


def test_f1():
  # 2 true positives, 1 false positive, 3 false negatives.
  predictions = [1, 1, 1, 0, 0, 0, 0]
  targets = [1, 1, 0, 1, 1, 1, 0]
  assert superglue.f1(predictions, targets) == pytest.approx(400 / 8)


@pytest.mark.parametrize('target', [0, 1])
def test_f1_of_an_output_that_is_no_class(target):
  # As if it were the other class.
  got = superglue.f1([1, 0, -1], [1, 0, target])
  assert got == superglue.f1([1, 0, 1 - target], [1, 0, target])
  assert got == pytest.approx(200 / 3)


@pytest.mark.parametrize(
  ('predictions', 'targets', 'want'),
  [
    ([0, 0, 0], [1, 0, 1], 0),
    ([1, 1, 1], [0, 0, 0], 0),
    ([0, 0], [0, 0], 0),
    ([1, 1], [1, 1], 100),
    ([1, 1, 1, 1], [1, 0, 0, 0], 40),
  ],
)
def test_f1_of_constants(predictions, targets, want):
  assert superglue.f1(predictions, targets) == pytest.approx(want)


def test_macro_f1():
  # Class 0: 1 of 2 predicted and 2 wanted; 1: 1 of 2 and 1; 2: 1 of 1 and 2.
  got = superglue.macro_f1([0, 1, 1, 0, 2], [0, 0, 1, 2, 2], 3)
  assert got == pytest.approx(100 * (1 / 2 + 2 / 3 + 2 / 3) / 3)


def test_macro_f1_counts_every_class():
  assert superglue.macro_f1([0, 0], [0, 0], 3) == pytest.approx(100 / 3)
  assert superglue.macro_f1([-1, 1], [0, 1], 2) == pytest.approx(50)


def test_matthews():
  # True positives 3, negatives 2, false positives 1, false negatives 2.
  predictions = [1, 1, 1, 0, 0, 1, 0, 0]
  targets = [1, 1, 1, 0, 0, 0, 1, 1]
  want = (3 * 2 - 1 * 2) / math.sqrt(4 * 5 * 3 * 4)
  assert superglue.matthews(predictions, targets) == pytest.approx(100 * want)
  # For labels 0 and 1, it is Pearson's correlation.
  assert want == pytest.approx(np.corrcoef(predictions, targets)[0, 1])


def test_matthews_of_opposites():
  assert superglue.matthews([1, 0, 0], [1, 0, 0]) == pytest.approx(100)
  assert superglue.matthews([0, 1, 1], [1, 0, 0]) == pytest.approx(-100)


@pytest.mark.parametrize(
  ('predictions', 'targets'),
  [([1, 1, 1], [1, 0, 1]), ([1, 0, 1], [1, 1, 1]), ([-1, -1], [0, 1])],
)
def test_matthews_of_constants(predictions, targets):
  assert superglue.matthews(predictions, targets) == 0


def test_matthews_of_more_classes():
  # Right 3 of 4; predicted 1, 2, 1 and wanted 2, 1, 1 times.
  got = superglue.matthews([0, 1, 1, 2], [0, 0, 1, 2])
  want = (3 * 4 - 5) / math.sqrt((16 - 6) * (16 - 6))
  assert got == pytest.approx(100 * want)


def test_matthews_takes_all_that_is_no_class_for_one():
  got = superglue.matthews([0, 1, -1, 7], [0, 1, 1, 0])
  assert got == superglue.matthews([0, 1, 2, 2], [0, 1, 1, 0])
  want = (2 * 4 - 4) / math.sqrt((16 - 6) * (16 - 8))
  assert got == pytest.approx(100 * want)


def test_matthews_of_many_rows():
  # Products of counts are beyond 64 bits here.
  targets = np.arange(400_000) % 2
  predictions = np.where(np.arange(400_000) % 4 == 0, 1, targets)
  # True positives 2, false positives 1, true negatives 1 of each 4.
  want = 2 * 1 / math.sqrt(3 * 2 * 2 * 1)
  assert superglue.matthews(predictions, targets) == pytest.approx(100 * want)


def test_multirc():
  # Questions of two paragraphs, answers not in order.
  questions = [(0, 0), (0, 1), (1, 0), (0, 0), (0, 1), (1, 0), (1, 0)]
  predictions = [1, 1, -1, 0, 1, 1, 0]
  targets = [1, 1, 0, 0, 0, 1, 0]
  got = superglue.evaluate('multirc', predictions, targets, questions=questions)
  # Only (0, 0) is right throughout, the others but for their last and first
  # answers; 3 true positives and 2 wrong answers.
  assert got['exact_match'] == pytest.approx(100 / 3)
  assert got['f1'] == pytest.approx(600 / 8)
  assert got['score'] == got['exact_match']


def test_record():
  predictions = ['The Beatles', 'Paris Hilton', 'Rome']
  answers = [['Queen', 'beatles!'], ['Paris'], ['Oslo', 'Bergen']]
  got = superglue.evaluate('record', predictions, answers)
  assert got['exact_match'] == pytest.approx(100 / 3)
  assert got['f1'] == pytest.approx(100 * (1 + 2 / 3) / 3)
  assert got['score'] == got['exact_match']


@pytest.mark.parametrize('task', superglue.TASKS)
def test_every_task(task):
  """Perfect predictions score 100, and some score less."""
  right, wrong = [0, 1, 2, 1], [0, 0, 2, 1]
  extra = {'questions': [0, 1, 2, 3]} if task == 'multirc' else {}
  if task in ('mrpc', 'qqp', 'multirc'):
    right, wrong = [0, 1, 1, 1], [0, 0, 1, 1]
  targets = right
  if task == 'record':
    right, wrong = [str(i) for i in right], [str(i) for i in wrong]
    targets = [[text] for text in right]
  got = superglue.evaluate(task, right, targets, **extra)
  assert list(got.values()) == pytest.approx([100] * len(got))
  got = superglue.evaluate(task, wrong, targets, **extra)
  assert all(value < 99 for value in got.values())


@pytest.mark.parametrize(
  ('task', 'names'),
  [
    ('boolq', ['accuracy', 'score']),
    ('cb', ['accuracy', 'f1', 'score']),
    ('cola', ['accuracy', 'matthews', 'score']),
    ('mrpc', ['accuracy', 'f1', 'score']),
    ('qqp', ['accuracy', 'f1', 'score']),
  ],
)
def test_metrics_of_a_task(task, names):
  got = superglue.evaluate(task, [0, 1, 1, 0], [0, 1, 0, 0])
  assert list(got) == names
  # The paper reports accuracy, also for CoLA.
  assert got['score'] == got[names[0]]


def test_cb_has_three_classes():
  got = superglue.evaluate('cb', [0, 1], [0, 1])
  assert got['f1'] == pytest.approx(200 / 3)


def test_unknown_task():
  with pytest.raises(errors.MetricError, match="did you mean 'multirc'"):
    superglue.evaluate('multi_rc', [1], [1])


@pytest.mark.parametrize(
  'metric',
  [
    superglue.accuracy,
    superglue.f1,
    superglue.matthews,
    lambda p, t: superglue.macro_f1(p, t, 2),
    lambda p, t: superglue.question_match(p, t, [0] * len(p)),
  ],
)
@pytest.mark.parametrize(
  ('predictions', 'targets', 'message'),
  [
    ([1, 0, 1], [1, 0], '3 predictions, 2 targets'),
    ([], [], 'nothing to score'),
    (np.ones((2, 1)), np.ones(2), r'shapes \(2, 1\) and \(2,\)'),
  ],
)
def test_rows_that_cannot_be_scored(metric, predictions, targets, message):
  with pytest.raises(errors.MetricError, match=message):
    metric(predictions, targets)


@pytest.mark.parametrize('task', ['sst2', 'cola', 'cb', 'mrpc'])
def test_targets_of_a_test_split(task):
  with pytest.raises(errors.MetricError, match='a target is -1.*validation'):
    superglue.evaluate(task, [1, 0], [-1, -1])


def test_targets_beyond_the_classes():
  with pytest.raises(errors.MetricError, match='targets of 0 and 1'):
    superglue.f1([1, 0], [2, 0])
  with pytest.raises(errors.MetricError, match='outside of 0..2'):
    superglue.macro_f1([1, 0], [3, 0], 3)


def test_multirc_needs_questions():
  with pytest.raises(errors.MetricError, match='pass `questions`'):
    superglue.evaluate('multirc', [1], [1])
  with pytest.raises(errors.MetricError, match='1 predictions, 2 questions'):
    superglue.evaluate('multirc', [1], [1], questions=[0, 1])
