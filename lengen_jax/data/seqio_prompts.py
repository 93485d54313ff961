"""Prompts and answers as seqio tasks and mixtures."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import re
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from lengen_jax import errors
from lengen_jax.data import (
  prompts,
  readers,
  seqio_files,
  sources,
  stream,
  vocabulary,
)
from lengen_jax.data.config import DataConfig

_COLUMNS = ('id', 'inputs', 'targets')


def register(
  task: prompts.PromptTask, path: str, vocab: str, separator: str
) -> str:
  """Registers a PromptTask in seqio; see `registration.register`."""
  found = vocabulary.create(vocab)
  files = prompts.raw_files(task, path)

  def arguments() -> dict[str, Any]:
    inputs = seqio.Feature(found.seqio(), add_eos=False)
    targets = seqio.Feature(found.seqio(), add_eos=True)
    if files:
      data = seqio_files.Files(files, functools.partial(_rows, task), _COLUMNS)
      before = []
    else:
      data = seqio_files.tfds(task.dataset, path, dict(task.splits))
      before = [functools.partial(_to_rows, task=task)]
    return {
      'source': data,
      'preprocessors': [
        *before,
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        functools.partial(
          add_separator, separator=found.encode([separator.encode()])[0]
        ),
        seqio.preprocessors.append_eos_after_trim,
      ],
      'output_features': {'inputs': inputs, 'targets': targets},
    }

  key = (path, found.name, found.fingerprint, separator)
  return seqio_files.add(seqio_name(task), key, arguments)


def seqio_name(task: prompts.PromptTask) -> str:
  """Returns the name of a PromptTask in seqio's registry."""
  return re.sub('[^a-z0-9]+', '_', task.name)


def add_separator(
  dataset: Any,
  sequence_length: Mapping[str, int] | None,
  *,
  separator: np.ndarray,
) -> Any:
  """Truncates 'inputs' so that the separator fits, and appends it.

  Adds 'inputs_size', the number of tokens before truncation.

  Raises:
    errors.ConfigError: `sequence_length` leaves no token beside the separator.
  """
  room = None
  if sequence_length and sequence_length.get('inputs'):
    room = sequence_length['inputs'] - len(separator)
    if room < 1:
      raise errors.ConfigError(
        f'a prompt of {sequence_length["inputs"]} tokens cannot contain the '
        f'separator of {len(separator)} tokens; raise data.train_length and '
        'eval.lengths, or lower data.target_length'
      )

  def add(example: Mapping[str, Any]) -> dict[str, Any]:
    ids = example['inputs']
    return {
      **example,
      'inputs': tf.concat([ids[:room], separator], 0),
      'inputs_size': tf.size(ids),
    }

  return dataset.map(add)


@dataclasses.dataclass(frozen=True)
class Example:
  """A prompt for evaluation.

  Attributes:
    id: id of the prompt within its task.
    tokens: token ids of the prompt, including the separator.
    references: texts of the reference answers.
    whole: whether the prompt is not truncated.
  """

  id: str
  tokens: np.ndarray
  references: list
  whole: bool


class Prompts:
  """Prompts and answers of a seqio task or mixture.

  Attributes:
    info: description of the data, for results.
    vocab_size: number of token ids.
    tasks: the PromptTasks.
    target_lengths: maximum tokens per answer, for each task.
    start: the first token id of a row, before the prompt.
    end: the token id that ends an answer.
  """

  scored_by = 'answers'
  architectures = ('decoder',)

  def __init__(
    self, config: DataConfig, name: str, tasks: Sequence[prompts.PromptTask]
  ) -> None:
    """Opens a task or mixture by its name in seqio's registry."""
    self._config, self._task = config, seqio.get_mixture_or_task(name)
    self._tasks = [
      seqio.get_mixture_or_task(seqio_name(task)) for task in tasks
    ]
    self._vocab = vocabulary.create(config.vocabulary)
    self.tasks = tasks
    self.target_lengths = [
      config.target_length or task.target_length for task in self.tasks
    ]
    self.vocab_size = self._vocab.size
    self.start, self.end = self._vocab.start, self._vocab.end
    self.info = stream.info(
      config,
      self._task,
      self._vocab.fingerprint,
      separator=config.separator,
      cut=self.target_lengths,
    )

  def training(
    self, config: DataConfig, *, seed: int, host: tuple[int, int] = (0, 1)
  ) -> stream.StreamBatches:
    """Returns batches of prompts and answers; only answers are scored."""

    def row(example: Mapping[str, Any]) -> dict[str, Any]:
      inputs, targets = example['inputs'], example['targets']
      tokens = tf.concat([[self.start], inputs, targets], 0)
      size = tf.size(tokens)
      pad = config.train_length + 1 - size
      return {
        'tokens': tf.pad(tokens, [[0, pad]]),
        'size': size,
        'first_scored': tf.size(inputs) + 1,
      }

    return stream.StreamBatches(
      self._task,
      config.batch_size,
      lambda dataset: dataset.map(row),
      lengths=self._lengths(config.train_length),
      seed=seed,
      host=host,
      padded=True,
    )

  def examples(
    self, number: int, length: int, limit: int | None = None
  ) -> list[Example]:
    """Returns the validation examples of one task, one per id.

    Args:
      number: index of the task in `tasks`.
      length: maximum tokens of prompt and answer together.
      limit: maximum number of examples; None for all.

    Raises:
      errors.ConfigError: the length leaves no room for a prompt.
      errors.CorpusError: the split is empty.
    """
    found: dict[str, Example] = {}
    for row in self._validation(number, length):
      key = row['id'].decode()
      reference = row['targets_pretokenized'].decode()
      if key in found:
        found[key].references.append(reference)
        continue
      if len(found) == limit:
        continue
      found[key] = Example(
        key,
        row['inputs'],
        [reference],
        # `inputs_size` excludes the separator, `inputs` includes it.
        whole=row['inputs_size'] <= len(row['inputs']) - self._separator_size,
      )
    return list(found.values())

  def check(self, length: int) -> None:
    """Raises unless each task has an example at a length; see `examples`."""
    for number in range(len(self.tasks)):
      next(self._validation(number, length))

  def _validation(
    self, number: int, length: int
  ) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a validation split; see `examples`."""
    dataset = stream.read(
      self._tasks[number], lengths=self._lengths(length), split='validation'
    )
    empty = True
    with stream.original_errors(self._tasks[number]):
      for row in dataset.as_numpy_iterator():
        empty = False
        yield row
    if empty:
      raise errors.CorpusError(
        f'the validation split of {self.tasks[number].name} is empty'
      )

  def decode(self, ids: np.ndarray) -> str:
    """Returns the text of an answer, without special tokens."""
    return self._vocab.decode(ids, special=False)

  @property
  def _separator_size(self) -> int:
    return len(self._vocab.encode([self._config.separator.encode()])[0])

  def _lengths(self, length: int) -> dict[str, int]:
    """Returns maximum tokens per feature, equal for all tasks."""
    answer = max(self.target_lengths)
    if length <= answer:
      raise errors.ConfigError(
        f'rows of {length} tokens are too short for a prompt and an answer of '
        f'data.target_length={answer} tokens; raise data.train_length and '
        'eval.lengths, or lower data.target_length'
      )
    return {'inputs': length - answer, 'targets': answer}


def _encoded(row: prompts.Row) -> tuple[bytes, ...]:
  return tuple(value.encode() for value in row)


def _rows(
  task: prompts.PromptTask, part: sources.Part
) -> Iterator[tuple[bytes, ...]]:
  """Yields the rows of a file of JSON lines, as bytes."""
  for where, record in readers.records(part.path):
    fields = {
      field: readers.field(part.path, where, record, field)
      for field in task.fields
    }
    for field, value in fields.items():
      if not isinstance(value, str) and (field, value) != ('output', None):
        raise errors.CorpusError(
          f'{part.path}, {where}: {field!r} must be text, got '
          f'{type(value).__name__}'
        )
    yield from map(_encoded, task.rows(fields))


def _to_rows(dataset: Any, task: prompts.PromptTask) -> Any:
  """Converts records of TensorFlow Datasets to rows of text."""

  def rows(*values: Any) -> list[np.ndarray]:
    record = {
      field: _python(value)
      for field, value in zip(task.fields, values, strict=True)
    }
    found = [_encoded(row) for row in task.rows(record)]
    return [seqio_files.texts(column) for column in zip(*found, strict=True)]

  def convert(record: Mapping[str, Any]) -> Any:
    values = []
    for field in task.fields:
      value = record
      for key in field.split('/'):
        value = value[key]
      values.append(value)
    columns = tf.numpy_function(
      rows, values, [tf.string] * len(_COLUMNS), stateful=False
    )
    for column in columns:
      column.set_shape([None])
    return tf.data.Dataset.from_tensor_slices(
      dict(zip(_COLUMNS, columns, strict=True))
    )

  return dataset.flat_map(convert)


def _python(value: Any) -> Any:
  """Converts a value of a record to Python types."""
  if isinstance(value, bytes):
    return value.decode()
  value = value.tolist()
  if isinstance(value, list):
    return [v.decode() if isinstance(v, bytes) else v for v in value]
  return value.decode() if isinstance(value, bytes) else value
