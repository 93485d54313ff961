"""Metrics of GLUE and SuperGLUE, in percent.

Definitions: Wang et al., 2018 (https://arxiv.org/abs/1804.07461) and Wang et
al., 2019 (https://arxiv.org/abs/1905.00537). Li et al., 2023 (FIRE,
https://arxiv.org/abs/2310.04418, Table 13) report 15 of the tasks: accuracy,
also for CoLA, and exact match for MultiRC and ReCoRD.

Classes are the ids of labels. A prediction that is no class, such as -1 for
generated text that names no label, is wrong whatever the target is.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lengen_jax import errors
from lengen_jax.evaluation import metrics
from lengen_jax.evaluation.metrics import scrolls


def accuracy(predictions: ArrayLike, targets: ArrayLike) -> float:
  """Share of predictions that equal their targets."""
  predictions, targets = _classes(predictions, targets)
  return 100 * float(np.mean(predictions == targets))


def f1(predictions: ArrayLike, targets: ArrayLike) -> float:
  """F1 of class 1 among classes 0 and 1.

  Every wrong row is a false positive or a false negative, so the F1 is
  2 hits / (2 hits + wrong rows). Without a hit it is 0.

  Args:
    predictions: [rows] class ids; those other than 0 and 1 are wrong.
    targets: [rows] of 0 and 1.

  Returns:
    Percent.
  """
  predictions, targets = _classes(predictions, targets)
  if not np.isin(targets, (0, 1)).all():
    raise errors.MetricError('F1 needs targets of 0 and 1')
  hits = np.sum((predictions == 1) & (targets == 1))
  wrong = np.sum(predictions != targets)
  return 100 * float(2 * hits / (2 * hits + wrong)) if hits else 0.0


def macro_f1(
  predictions: ArrayLike, targets: ArrayLike, num_classes: int
) -> float:
  """Mean over classes of the F1 of each against the others.

  A class without a hit, also one that occurs nowhere, has an F1 of 0.

  Args:
    predictions: [rows] class ids.
    targets: [rows] class ids, 0 to num_classes - 1.
    num_classes: how many classes there are.

  Returns:
    Percent.
  """
  predictions, targets = _classes(predictions, targets)
  classes = np.arange(num_classes)
  if not np.isin(targets, classes).all():
    raise errors.MetricError(f'targets lie outside of 0..{num_classes - 1}')
  predicted = predictions[:, None] == classes
  wanted = targets[:, None] == classes
  hits = np.sum(predicted & wanted, axis=0)
  rows = predicted.sum(axis=0) + wanted.sum(axis=0)
  return 100 * float(np.mean(2 * hits / np.maximum(rows, 1)))


def matthews(predictions: ArrayLike, targets: ArrayLike) -> float:
  """Matthews correlation of classes, for any number of them.

  Gorodkin, 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006; with two
  classes it is the correlation of Matthews, 1975. Predictions that no target
  equals count as one class more. Where all predictions or all targets are equal
  it is undefined, and 0 here.

  Args:
    predictions: [rows] class ids.
    targets: [rows] class ids.

  Returns:
    Percent, -100 to 100.
  """
  predictions, targets = _classes(predictions, targets)
  classes = np.unique(targets)
  # One more column for predictions that are none of them.
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


def pearson(predictions: ArrayLike, targets: ArrayLike) -> float:
  """Pearson's correlation of numbers.

  Where all predictions or all targets are equal it is undefined, and 0 here.

  Args:
    predictions: [rows] finite numbers.
    targets: [rows] finite numbers.

  Returns:
    Percent, -100 to 100.
  """
  arrays = _numbers(predictions, targets)
  # Asked of the numbers themselves: a mean of equal ones may be off by a bit.
  if any(np.ptp(array) == 0 for array in arrays):
    return 0.0
  x, y = [array - array.mean() for array in arrays]
  correlation = x @ y / math.sqrt(x @ x) / math.sqrt(y @ y)
  return 100 * float(np.clip(correlation, -1, 1))


def spearman(predictions: ArrayLike, targets: ArrayLike) -> float:
  """Spearman's correlation: Pearson's of the ranks, ties sharing their mean.

  Where all predictions or all targets are equal it is undefined, and 0 here.

  Args:
    predictions: [rows] finite numbers.
    targets: [rows] finite numbers.

  Returns:
    Percent, -100 to 100.
  """
  return pearson(*map(_ranks, _numbers(predictions, targets)))


def question_match(
  predictions: ArrayLike, targets: ArrayLike, questions: Sequence[Hashable]
) -> float:
  """Share of questions all of whose answers are judged right, as in MultiRC.

  Args:
    predictions: [answers] class ids.
    targets: [answers] class ids.
    questions: list with the question of each answer, anything hashable; in
      MultiRC the pair of paragraph and question, as questions are numbered
      within paragraphs.

  Returns:
    Percent.
  """
  metrics.check_rows(predictions=predictions, questions=questions)
  predictions, targets = _classes(predictions, targets)
  right: dict[Hashable, bool] = {}
  for question, equal in zip(questions, predictions == targets, strict=True):
    right[question] = right.get(question, True) and bool(equal)
  return 100 * float(np.mean(list(right.values())))


# Metrics of each task; the first is what the FIRE paper reports.
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
  'stsb': {'pearson': pearson, 'spearman': spearman},
  'wic': _ACCURACY,
  'wnli': _ACCURACY,
  'wsc': _ACCURACY,
}
# Tasks of Table 13 of the FIRE paper; `mnli` is the matched split here.
FIRE_TASKS = tuple(
  task for task in TASKS if task not in ('mnli_mismatched', 'stsb')
)


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
    predictions: one per row: class ids; numbers in STS-B; in ReCoRD one text
      per query.
    targets: the same; in ReCoRD the list of right answers of each query.
    questions: the question of each row, for MultiRC alone; see
      `question_match`.

  Returns:
    Dict: the metrics of the task, percent, and `score`, the first of them,
    which is what the FIRE paper reports.

  Raises:
    MetricError: an unknown task, or rows that do not go together.
  """
  metrics.check_task('GLUE or SuperGLUE', task, TASKS)
  if task == 'multirc' and questions is None:
    raise errors.MetricError(
      'MultiRC is scored by question: pass `questions`, the one of each row'
    )
  scores = {
    name: metric(predictions, targets, questions)
    if metric is question_match
    else metric(predictions, targets)
    for name, metric in TASKS[task].items()
  }
  return {**scores, 'score': next(iter(scores.values()))}


def average(scores: Mapping[str, float]) -> float:
  """The average of the FIRE paper: the mean over its 15 tasks.

  Args:
    scores: dict from each of `FIRE_TASKS` to its `score`.

  Returns:
    Percent.

  Raises:
    MetricError: a task is unknown or has no score.
  """
  return metrics.mean_over_tasks('FIRE', scores, FIRE_TASKS)


def _arrays(
  predictions: ArrayLike, targets: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
  metrics.check_rows(predictions=predictions, targets=targets)
  predictions, targets = np.asarray(predictions), np.asarray(targets)
  # Columns of other shapes would be compared each with each.
  if predictions.ndim != 1 or targets.ndim != 1:
    raise errors.MetricError(
      'predictions and targets are one value per row, not of shapes '
      f'{predictions.shape} and {targets.shape}'
    )
  return predictions, targets


def _classes(
  predictions: ArrayLike, targets: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
  predictions, targets = _arrays(predictions, targets)
  if np.issubdtype(targets.dtype, np.number) and (targets < 0).any():
    raise errors.MetricError(
      f'a target is {targets.min()}: the labels of test splits are not '
      'public; use validation'
    )
  return predictions, targets


def _numbers(predictions: ArrayLike, targets: ArrayLike) -> list[np.ndarray]:
  arrays = [c.astype(np.float64) for c in _arrays(predictions, targets)]
  if not np.isfinite(arrays).all():
    raise errors.MetricError('a correlation needs finite numbers')
  return arrays


def _ranks(values: np.ndarray) -> np.ndarray:
  _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
  return (np.cumsum(counts) - (counts - 1) / 2)[which]
