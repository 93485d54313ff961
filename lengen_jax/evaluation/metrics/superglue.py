"""Metrics of GLUE and SuperGLUE, in percent.

Definitions: Wang et al., 2018 (https://arxiv.org/abs/1804.07461) and Wang et
al., 2019 (https://arxiv.org/abs/1905.00537). Li et al., 2023 (FIRE,
https://arxiv.org/abs/2310.04418, Table 13) report 15 of the tasks: accuracy,
also for CoLA, and exact match for MultiRC and ReCoRD.

Predictions and targets are arrays `[rows]` of class ids. A prediction that is
not a class, such as -1 for generated text that matches no label, is always
wrong. There is no STS-B, whose targets are numbers.
"""

from collections.abc import Callable, Hashable, Sequence
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lengen_jax import errors
from lengen_jax.evaluation import metrics
from lengen_jax.evaluation.metrics import scrolls


def accuracy(predictions: ArrayLike, targets: ArrayLike) -> float:
  """Returns the share of predictions that equal their targets, percent."""
  predictions, targets = _classes(predictions, targets)
  return 100 * float(np.mean(predictions == targets))


def f1(predictions: ArrayLike, targets: ArrayLike) -> float:
  """Returns the F1 of class 1 among classes 0 and 1, percent.

  Every prediction that differs from its target is an error, also one that is
  neither 0 nor 1. The F1 is 2 TP / (2 TP + errors), and 0 if TP, the number of
  true positives, is 0.
  """
  predictions, targets = _classes(predictions, targets)
  if not np.isin(targets, (0, 1)).all():
    raise errors.MetricError(
      f'F1 requires targets of 0 and 1, got {np.unique(targets)[:5].tolist()}'
    )
  hits = np.sum((predictions == 1) & (targets == 1))
  wrong = np.sum(predictions != targets)
  return 100 * float(2 * hits / (2 * hits + wrong)) if hits else 0.0


def macro_f1(
  predictions: ArrayLike, targets: ArrayLike, num_classes: int
) -> float:
  """Returns the mean over classes of the F1 of each class, percent.

  A class without a hit has an F1 of 0, even if it never occurs.
  """
  predictions, targets = _classes(predictions, targets)
  classes = np.arange(num_classes)
  if not np.isin(targets, classes).all():
    raise errors.MetricError(
      f'targets are outside of 0..{num_classes - 1}: they are '
      f'{np.unique(targets)[:5].tolist()}'
    )
  predicted = predictions[:, None] == classes
  wanted = targets[:, None] == classes
  hits = np.sum(predicted & wanted, axis=0)
  rows = predicted.sum(axis=0) + wanted.sum(axis=0)
  return 100 * float(np.mean(2 * hits / np.maximum(rows, 1)))


def matthews(predictions: ArrayLike, targets: ArrayLike) -> float:
  """Returns the Matthews correlation of any number of classes, percent.

  Gorodkin, 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006; for two
  classes it equals the correlation of Matthews, 1975. Predictions that equal no
  target form an additional class. Constant predictions or targets return 0.
  """
  predictions, targets = _classes(predictions, targets)
  classes = np.unique(targets)
  # An additional column for other predictions.
  predicted = np.searchsorted(classes, predictions).clip(max=len(classes) - 1)
  known = classes[predicted] == predictions
  predicted = np.where(known, predicted, len(classes))
  wanted = np.searchsorted(classes, targets)
  shares = [
    np.bincount(ids, minlength=len(classes) + 1) / len(ids)
    for ids in (predicted, wanted)
  ]
  covariance = np.mean(predicted == wanted) - shares[0] @ shares[1]
  variances = [1 - share @ share for share in shares]
  if 0 in variances:
    return 0.0
  return 100 * float(covariance / math.sqrt(math.prod(variances)))


def question_match(
  predictions: ArrayLike, targets: ArrayLike, questions: Sequence[Hashable]
) -> float:
  """Returns the share of questions whose answers are all classified correctly.

  `questions` has the question of each answer; in MultiRC the pair of paragraph
  and question, because questions are numbered within paragraphs.
  """
  metrics.check_rows(predictions=predictions, questions=questions)
  predictions, targets = _classes(predictions, targets)
  rows = zip(questions, predictions == targets, strict=True)
  wrong = {question for question, equal in rows if not equal}
  asked = set(questions)
  return 100 * (len(asked - wrong) / len(asked))


# Metrics of each task; the FIRE paper reports the first.
_ACCURACY = {'accuracy': accuracy}
TASKS: dict[str, dict[str, Callable[..., float]]] = {
  'boolq': _ACCURACY,
  'cb': {**_ACCURACY, 'f1': functools.partial(macro_f1, num_classes=3)},
  'cola': {**_ACCURACY, 'matthews': matthews},
  'copa': _ACCURACY,
  'mnli': _ACCURACY,
  'mnli_mismatched': _ACCURACY,
  'mrpc': {**_ACCURACY, 'f1': f1},
  'multirc': {'exact_match': question_match, 'f1': f1},
  'qnli': _ACCURACY,
  'qqp': {**_ACCURACY, 'f1': f1},
  'record': {'exact_match': scrolls.exact_match, 'f1': scrolls.f1},
  'rte': _ACCURACY,
  'sst2': _ACCURACY,
  'wic': _ACCURACY,
  'wnli': _ACCURACY,
  'wsc': _ACCURACY,
}
# Tasks in Table 13 of the FIRE paper; `mnli` is the matched split.
FIRE_TASKS = tuple(task for task in TASKS if task != 'mnli_mismatched')


def evaluate(
  task: str,
  predictions: Any,
  targets: Any,
  *,
  questions: Sequence[Hashable] | None = None,
) -> dict[str, float]:
  """Scores one task.

  Args:
    task: a key of `TASKS`.
    predictions: one per row; in ReCoRD one text per query.
    targets: one per row; in ReCoRD a list of correct answers per query.
    questions: in MultiRC, the question of each row; see `question_match`.

  Returns:
    The metrics of the task, and `score`, the first of them.

  Raises:
    MetricError: the task is unknown, or the rows do not match.
  """
  metrics.check_task('GLUE or SuperGLUE', task, TASKS)
  if task == 'multirc' and questions is None:
    raise errors.MetricError(
      'MultiRC is scored by question: pass `questions`, one per row'
    )
  scores = {
    name: metric(predictions, targets, questions)
    if metric is question_match
    else metric(predictions, targets)
    for name, metric in TASKS[task].items()
  }
  return {**scores, 'score': next(iter(scores.values()))}


def _classes(
  predictions: ArrayLike, targets: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
  metrics.check_rows(predictions=predictions, targets=targets)
  predictions, targets = np.asarray(predictions), np.asarray(targets)
  # Other shapes would be broadcast.
  if predictions.ndim != 1 or targets.ndim != 1:
    raise errors.MetricError(
      'predictions and targets must have one value per row, got shapes '
      f'{predictions.shape} and {targets.shape}'
    )
  if np.issubdtype(targets.dtype, np.number) and (targets < 0).any():
    raise errors.MetricError(
      f'a target is {targets.min()}: the labels of test splits are not '
      'public; use validation'
    )
  return predictions, targets
