"""Scores of generated answers to prompts, as the benchmarks count them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lengen_jax import errors
from lengen_jax.evaluation.metrics import scrolls, superglue


def score(
  task: Any,
  predictions: Mapping[Any, str],
  references: Mapping[Any, Sequence[str]],
) -> dict[str, Any]:
  """Scores one task.

  In GLUE and SuperGLUE the generated text, without spaces around it, must be
  the name of a class; any other text is wrong.

  Args:
    task: a PromptTask.
    predictions: dict from id to the text generated for it.
    references: dict from id to its list of right texts; see `prompts.group`.

  Returns:
    Dict: the metrics of the task, percent, and `score`, the one that counts.
    Those of SCROLLS come with `num_predicted` and
    `mean_prediction_length_characters`.

  Raises:
    errors.MetricError: ids that are missing or too many, or answers that are
      not public.
  """
  if references and not any(map(any, references.values())):
    raise errors.MetricError(
      f'no id of {task.name} has an answer: those of test splits are not '
      'public; use validation'
    )
  family, name = task.name.split('/')
  if family == 'scrolls':
    scores = scrolls.evaluate(name, predictions, references)
    scores['score'] = scores.pop('scrolls_score')
    return scores
  _check_ids(predictions, references)
  texts = [predictions[key] for key in references]
  if not task.labels:
    return superglue.evaluate(name, texts, list(references.values()))
  targets = [_one(key, answers) for key, answers in references.items()]
  # Answers of MultiRC are numbered 'paragraph/question/answer'.
  questions = [key.rpartition('/')[0] for key in references]
  return superglue.evaluate(
    name,
    _classes(task, texts),
    _classes(task, targets),
    questions=questions if name == 'multirc' else None,
  )


def average(scores: Mapping[str, float]) -> float | None:
  """The average of a benchmark over its tasks.

  Args:
    scores: dict from the names of tasks, such as 'scrolls/qasper', to their
      `score`.

  Returns:
    Percent: for tasks of SCROLLS the mean over its seven, for those of GLUE and
    SuperGLUE over the 15 of the FIRE paper. None if one of them is missing, or
    if tasks are of both.

  Raises:
    errors.MetricError: a task is unknown.
  """
  families = {name.split('/')[0] for name in scores}
  by_task = {name.split('/')[-1]: value for name, value in scores.items()}
  if families == {'scrolls'}:
    tasks, mean = scrolls.TASKS, scrolls.average
  elif families == {'glue', 'super_glue'}:
    tasks, mean = superglue.FIRE_TASKS, superglue.average
    # The paper does not say which split of MNLI it reports: matched, here.
    by_task.pop('mnli_mismatched', None)
  else:
    return None
  return mean(by_task) if by_task.keys() >= set(tasks) else None


def _classes(task: Any, texts: Iterable[str]) -> list[int]:
  ids = {label: number for number, label in enumerate(task.labels)}
  return [ids.get(text.strip(), -1) for text in texts]


def _one(key: Any, answers: Sequence[str]) -> str:
  if len(answers) != 1:
    raise errors.MetricError(
      f'id {key!r} has {len(answers)} answers, where one class is right'
    )
  return answers[0]


def _check_ids(
  predictions: Mapping[Any, str], references: Mapping[Any, Sequence[str]]
) -> None:
  unmatched = sorted(predictions.keys() ^ references.keys())
  if unmatched:
    raise errors.MetricError(
      f'{len(unmatched)} ids have a prediction or references, but not both: '
      f'{", ".join(map(repr, unmatched[:5]))}'
      + (', ...' if len(unmatched) > 5 else '')
    )
