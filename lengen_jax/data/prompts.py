"""Tasks that consist of prompts and reference answers.

This module does not require TensorFlow: a record is a dict of Python values,
independent of the file format.
"""

import collections
from collections.abc import Callable, Iterable
import dataclasses
import pathlib
import typing

from lengen_jax.data import paths, readers, sources


class Row(typing.NamedTuple):
  """A prompt and one reference answer.

  Attributes:
    id: rows with equal ids have the same prompt and alternative answers.
    prompt: input text of the model.
    answer: reference text; '' if it is not public.
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
    fields: fields of a record that `rows` reads, nested as 'idx/passage'.
    rows: function from a record, a dict from field to value, to a list of Rows,
      for training and evaluation.
    labels: the names of the classes; () if answers are free text.
    target_length: maximum tokens per answer, including the end token.
    num_train: records in the training split, the weight in a mixture.
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


def group(rows: Iterable[Row]) -> tuple[dict[str, str], dict[str, list[str]]]:
  """Returns dicts from id to prompt and from id to answers, in order."""
  prompts: dict[str, str] = {}
  references = collections.defaultdict(list)
  for row in rows:
    prompts.setdefault(row.id, row.prompt)
    references[row.id].append(row.answer)
  return prompts, dict(references)


def raw_files(task: PromptTask, path: str) -> dict[str, list[sources.Part]]:
  """Returns the raw file of each split, {} if one is missing."""
  if not task.folder:
    return {}
  family = task.name.split('/')[0]
  for folder in (*paths.candidates(path, family), paths.data_folder(path)):
    found = {use: _raw_file(task, folder, split) for use, split in task.splits}
    if all(found.values()):
      return {use: [sources.Part(file)] for use, file in found.items()}
  return {}


def check_present(task: PromptTask, path: str) -> None:
  """Raises an error if data of a task is missing; reads no data.

  Raises:
    errors.CorpusError: data is missing; the message lists the searched paths.
  """
  if raw_files(task, path):
    return
  there = paths.dataset_splits(path, task.dataset)
  if {split for _, split in task.splits} <= {*there}:
    return
  tried = [str(paths.prepared_dataset(path, task.dataset))]
  how = f'tfds build {task.dataset}'
  if task.folder:
    family = task.name.split('/')[0]
    for place in paths.candidates(path, family):
      tried += [
        str(place / task.folder / '{train,validation}.jsonl'),
        str(place / f'{task.folder}.zip'),
      ]
    how += (
      f', or fetch {task.folder}.zip of '
      'https://huggingface.co/datasets/tau/scrolls; no need to unpack it'
    )
  raise paths.missing(
    f'{task.name} ({task.dataset} of TensorFlow Datasets)', tried, how
  )


def _raw_file(task: PromptTask, folder: pathlib.Path, split: str) -> str:
  """Returns the file of a split below a folder, '' if there is none."""
  for place in (folder / task.folder, folder):
    file = place / f'{split}.jsonl'
    if file.is_file() and task.folder in file.parts:
      return str(file)
  archive = folder / f'{task.folder}.zip'
  if archive.is_file():
    for file in readers.files(archive):
      if file.endswith(f'{split}.jsonl'):
        return file
  return ''
