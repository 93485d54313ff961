"""Metrics of SCROLLS: exact match, F1 and ROUGE of generated text, in percent.

Results equal those of the benchmark's code, `metrics/scrolls.py` of
https://huggingface.co/datasets/tau/scrolls (Shaham et al., 2022,
https://arxiv.org/abs/2201.03533). `references` contains a list of strings for
each prediction; the score of a prediction is its maximum over them. Texts that
are not strings, or rows that do not match, raise `errors.MetricError`.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import re
import string
from typing import Any

import numpy as np

from lengen_jax import errors, extra
from lengen_jax.evaluation import metrics

# The metric of each task; its score enters the average of the benchmark.
TASKS = {
  'contract_nli': 'exact_match',
  'gov_report': 'rouge',
  'narrative_qa': 'f1',
  'qasper': 'f1',
  'qmsum': 'rouge',
  'quality': 'exact_match',
  'summ_screen_fd': 'rouge',
}
ROUGE_TYPES = ('rouge1', 'rouge2', 'rougeL')

_ARTICLES = re.compile(r'\b(a|an|the)\b')
_NO_PUNCTUATION = str.maketrans('', '', string.punctuation)


def normalize(text: str) -> str:
  """Returns lower case text without ASCII punctuation and English articles.

  Punctuation is removed first, so that 'the-end' becomes 'theend'.
  """
  text = text.lower().translate(_NO_PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def exact_match(
  predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
  """Returns the share of predictions that equal a reference, percent.

  Predictions and references are compared after `normalize`.
  """

  def equal(prediction: str, reference: str) -> bool:
    return normalize(prediction) == normalize(reference)

  return _mean_of_best(equal, predictions, references)


def f1(
  predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
  """Returns the mean F1 of the words of predictions and references, percent.

  Words are counted as often as they occur. Without a common word the F1 is 0,
  also where both texts are empty.
  """

  def of_words(prediction: str, reference: str) -> float:
    predicted = collections.Counter(normalize(prediction).split())
    wanted = collections.Counter(normalize(reference).split())
    common = (predicted & wanted).total()
    return 2 * common / (predicted.total() + wanted.total()) if common else 0.0

  return _mean_of_best(of_words, predictions, references)


def rouge(
  predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
  """Returns the geometric mean of mean ROUGE-1, ROUGE-2 and ROUGE-L."""
  return _geometric_mean(rouge_components(predictions, references))


def rouge_components(
  predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
  """Returns mean F measures by `ROUGE_TYPES`, without stemming.

  The best reference is chosen separately for each type. Tokens are runs of a-z
  and 0-9; text in other scripts has no tokens.
  """
  metrics.check_texts(predictions, references)
  rouge_scorer = extra.load(
    'rouge_score.rouge_scorer', 'ROUGE', 'data', errors.MetricError
  )
  scorer = rouge_scorer.RougeScorer(list(ROUGE_TYPES), use_stemmer=False)
  scores = [
    scorer.score_multi(texts, prediction)
    for prediction, texts in zip(predictions, references, strict=True)
  ]
  return {
    kind: 100 * float(np.mean([score[kind].fmeasure for score in scores]))
    for kind in ROUGE_TYPES
  }


def group_outputs(rows: Iterable[Mapping[str, Any]]) -> dict[Any, list[str]]:
  """Returns a dict from each `id` to its `output`s, in the order of the rows.

  Raises:
    MetricError: a row has no output, as in the test split.
  """
  outputs: dict[Any, list[str]] = {}
  for row in rows:
    if row['output'] is None:
      raise errors.MetricError(
        f'row {row["id"]!r} has no output: the references of the test split '
        'are not public; use validation'
      )
    outputs.setdefault(row['id'], []).append(row['output'])
  return outputs


def evaluate(
  task: str,
  predictions: Mapping[Any, str],
  references: Mapping[Any, Sequence[str]],
) -> dict[str, float]:
  """Scores one task as the benchmark does, rounded to four decimals.

  Args:
    task: a key of `TASKS`.
    predictions: generated text by id.
    references: list of texts by id; see `group_outputs`.

  Returns:
    The metrics of the task, percent, under the names of the benchmark;
    `scrolls_score`, the main metric; `num_predicted`;
    `mean_prediction_length_characters`.

  Raises:
    MetricError: the task is unknown, or ids do not match.
  """
  metrics.check_task('SCROLLS', task, TASKS)
  metrics.check_ids(predictions, references)
  texts = [predictions[key] for key in references]
  references = list(references.values())
  if TASKS[task] == 'rouge':
    components = rouge_components(texts, references)
    score = _geometric_mean(components)
    scores = {f'rouge/{kind}': value for kind, value in components.items()}
    scores['rouge/geometric_mean'] = score
  else:
    metric = f1 if TASKS[task] == 'f1' else exact_match
    score = metric(texts, references)
    scores = {TASKS[task]: score}
  scores['scrolls_score'] = score
  lengths = [len(text) for text in texts]
  scores['mean_prediction_length_characters'] = float(np.mean(lengths))
  rounded = {name: round(float(value), 4) for name, value in scores.items()}
  return {**rounded, 'num_predicted': len(texts)}


def _mean_of_best(
  score: Callable[[str, str], float],
  predictions: Sequence[str],
  references: Sequence[Sequence[str]],
) -> float:
  metrics.check_texts(predictions, references)
  best = [
    max(score(prediction, text) for text in texts)
    for prediction, texts in zip(predictions, references, strict=True)
  ]
  return 100 * float(np.mean(best))


def _geometric_mean(components: Mapping[str, float]) -> float:
  return float(np.prod(list(components.values())) ** (1 / len(components)))
