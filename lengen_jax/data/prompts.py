"""Tasks of prompts and answers: what a record asks, what counts as right.

Nothing here or in the tables of tasks needs TensorFlow: a record is a dict of
Python values, whatever file it came from.
"""

import collections
from collections.abc import Callable
import dataclasses
import typing


class Row(typing.NamedTuple):
  """A prompt and one answer to it.

  Attributes:
    id: rows of one id are the same prompt with several right answers.
    prompt: text that the model is given.
    answer: text that it is to give; '' where it is not public.
  """

  id: str
  prompt: str
  answer: str


@dataclasses.dataclass(frozen=True)
class PromptTask:
  """A task that a language model answers in text.

  Attributes:
    name: 'family/task', for example 'scrolls/qasper'.
    dataset: name and version in TensorFlow Datasets.
    fields: of a record that `rows` reads, those inside others as 'idx/passage'.
    rows: record, a dict from field to value, to a list of Rows, for training
      and for evaluation alike.
    labels: the answers there are, by class; () where answers are free.
    target_length: tokens kept of an answer, its end included.
    num_train: records of the training split, the task's weight in a mixture.
    splits: (what for, split of the dataset).
    folder: name of the folder or zip of raw files, `{split}.jsonl`; '' where
      there are none.
  """

  name: str
  dataset: str
  fields: tuple
  rows: Callable
  target_length: int
  num_train: int
  labels: tuple = ()
  splits: tuple = (('train', 'train'), ('validation', 'validation'))
  folder: str = ''


def group(rows):
  """Prompts and references by id, in the order of the rows.

  Args:
    rows: Rows.

  Returns:
    (dict from id to its prompt, dict from id to its list of answers).
  """
  prompts, references = {}, collections.defaultdict(list)
  for row in rows:
    prompts.setdefault(row.id, row.prompt)
    references[row.id].append(row.answer)
  return prompts, dict(references)
