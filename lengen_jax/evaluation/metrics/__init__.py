"""Metrics of the papers' benchmarks; this module checks their inputs."""

from collections.abc import Iterable, Mapping, Sequence
import reprlib
from typing import Any, TYPE_CHECKING

from lengen_jax import errors, submodules

if not TYPE_CHECKING:
  __getattr__ = submodules.lazy(__name__)


def check_rows(**columns: Any) -> None:
  """Raises MetricError unless columns have equal lengths and a row."""
  lengths = {name: len(column) for name, column in columns.items()}
  counts = ', '.join(f'{length} {name}' for name, length in lengths.items())
  if len(set(lengths.values())) > 1:
    raise errors.MetricError(f'{counts}: numbers must be equal')
  if 0 in lengths.values():
    raise errors.MetricError(f'{counts}: there is nothing to score')


def check_ids(
  predictions: Mapping[Any, str], references: Mapping[Any, Sequence[str]]
) -> None:
  """Raises MetricError unless predictions and references have the same ids."""
  missing = [key for key in references if key not in predictions]
  extra = [key for key in predictions if key not in references]
  problems = [
    f'{len(keys)} {what}: {", ".join(map(repr, keys[:5]))}'
    + (', ...' if len(keys) > 5 else '')
    for keys, what in (
      (missing, 'ids without a prediction'),
      (extra, 'predictions for ids without references'),
    )
    if keys
  ]
  if problems:
    raise errors.MetricError('; '.join(problems))


def check_task(benchmark: str, task: str, tasks: Iterable[str]) -> None:
  """Raises MetricError unless `task` is one of a benchmark's `tasks`."""
  if task not in tasks:
    raise errors.MetricError(errors.one_of(f'{benchmark} task', task, tasks))


def check_texts(
  predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> None:
  """Raises MetricError unless predictions are strings with lists of strings."""
  check_rows(predictions=predictions, references=references)
  for index, (prediction, texts) in enumerate(
    zip(predictions, references, strict=True)
  ):
    if not isinstance(prediction, str):
      raise errors.MetricError(
        f'predictions[{index}] is {reprlib.repr(prediction)}; pass a string'
      )
    several = isinstance(texts, list | tuple) and len(texts)
    if not (several and all(isinstance(text, str) for text in texts)):
      raise errors.MetricError(
        f'references[{index}] is {reprlib.repr(texts)}; pass a list of one or '
        'more strings'
      )
