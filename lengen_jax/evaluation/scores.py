"""Benchmark scores of generated answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from lengen_jax import errors
from lengen_jax.evaluation import metrics
from lengen_jax.evaluation.metrics import scrolls, superglue


def score(
  task: Any,
  predictions: Mapping[Any, str],
  references: Mapping[Any, Sequence[str]],
) -> dict[str, Any]:
  """Returns the metrics of a PromptTask, percent, and `score`, the main metric.

  In GLUE and SuperGLUE, generated text is stripped and must be the name of a
  class. SCROLLS adds `num_predicted` and `mean_prediction_length_characters`.

  Args:
    predictions: generated text by id.
    references: reference texts by id; see `prompts.group`.

  Raises:
    errors.MetricError: ids do not match, or references are not public.
  """
  if references and not any(any(x or ()) for x in references.values()):
    raise errors.MetricError(
      f'no id of {task.name} has an answer: those of test splits are not '
      'public; use validation'
    )
  family, name = task.name.split('/')
  if family == 'scrolls':
    scores = scrolls.evaluate(name, predictions, references)
    scores['score'] = scores.pop('scrolls_score')
    return scores
  metrics.check_ids(predictions, references)
  texts = [predictions[key] for key in references]
  metrics.check_texts(texts, list(references.values()))
  if not task.labels:
    return superglue.evaluate(name, texts, list(references.values()))
  for key, answers in references.items():
    if len(answers) != 1:
      raise errors.MetricError(
        f'id {key!r} has {len(answers)} answers instead of one class'
      )
  ids = {label: number for number, label in enumerate(task.labels)}
  return superglue.evaluate(
    name,
    [ids.get(text.strip(), -1) for text in texts],
    [ids.get(answer.strip(), -1) for (answer,) in references.values()],
    # Answers of MultiRC are numbered 'paragraph/question/answer'.
    questions=[key.rpartition('/')[0] for key in references]
    if name == 'multirc'
    else None,
  )


def average(scores: Mapping[str, float]) -> float | None:
  """Returns the average of a benchmark over its tasks, percent.

  The average is over the seven tasks of SCROLLS, or over the 15 tasks of GLUE
  and SuperGLUE in the FIRE paper. It is None if a task is missing, or if
  `scores` by name, such as 'scrolls/qasper', contains tasks of both.

  Raises:
    errors.MetricError: a task is unknown.
  """
  families = {name.split('/')[0] for name in scores}
  by_task = {name.split('/')[-1]: value for name, value in scores.items()}
  if families == {'scrolls'}:
    benchmark, tasks = 'SCROLLS', tuple(scrolls.TASKS)
    # The benchmark rounds each score first.
    by_task = {task: round(value, 4) for task, value in by_task.items()}
  elif families == {'glue', 'super_glue'}:
    benchmark, tasks = 'FIRE', superglue.FIRE_TASKS
    # The paper does not name its split of MNLI; this is the matched one.
    by_task.pop('mnli_mismatched', None)
  else:
    return None
  if not by_task.keys() >= set(tasks):
    return None
  for task in by_task:
    metrics.check_task(benchmark, task, tasks)
  return sum(by_task[task] for task in tasks) / len(tasks)
