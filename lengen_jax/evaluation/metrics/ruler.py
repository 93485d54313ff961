"""Metrics of RULER: reference strings that a prediction contains, in percent.

Results equal those of https://github.com/NVIDIA/RULER (Hsieh et al., 2024,
https://arxiv.org/abs/2404.06654). A reference counts if it is a substring of
the prediction, ignoring case: its place, its order and any other text do not
matter. `references` contains a list of strings for each prediction. Texts that
are not strings, or rows that do not match, raise `errors.MetricError`.
"""

from collections.abc import Mapping, Sequence
import re

from lengen_jax.evaluation import metrics

# The average of Llama 2 7B at 4096 tokens.
THRESHOLD = 85.6
_CONTROL = re.compile('[\0-\x1f]')


def postprocess(prediction: str) -> str:
  """Returns stripped text with newlines in place of control characters."""
  return _CONTROL.sub('\n', prediction).strip()


def string_match_all(
  predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
  """Returns the mean share of references that a prediction contains.

  It is the score of all tasks without questions about documents. It is rounded
  to two decimals.
  """
  found = _matches(predictions, references)
  return _percent([sum(row) / len(row) for row in found])


def string_match_part(
  predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
  """Returns the share of predictions that contain any of their references.

  It is the score of questions about documents. It is rounded to two decimals.
  """
  found = _matches(predictions, references)
  return _percent([float(any(row)) for row in found])


def effective_length(
  averages: Mapping[int, float], threshold: float = THRESHOLD
) -> int | None:
  """Returns the largest length whose average is at least the threshold.

  Args:
    averages: average score of all tasks by length, percent.
    threshold: percent.

  Returns:
    The length; None if there is none.
  """
  lengths = [n for n, average in averages.items() if average >= threshold]
  return max(lengths, default=None)


def _matches(
  predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> list[list[bool]]:
  """Returns for each prediction which of its references it contains."""
  metrics.check_texts(predictions, references)
  found = []
  for prediction, texts in zip(predictions, references, strict=True):
    text = postprocess(prediction).lower()
    found.append([reference.lower() in text for reference in texts])
  return found


def _percent(shares: Sequence[float]) -> float:
  return round(sum(shares) / len(shares) * 100, 2)
