"""Prompts and answers of a task or mixture of seqio."""

import dataclasses

import numpy as np
import tensorflow as tf

from lengen_jax import errors
from lengen_jax.data import stream
from lengen_jax.data import vocabulary
from lengen_jax.data import windows


@dataclasses.dataclass(frozen=True)
class Example:
  """A prompt of an evaluation.

  Attributes:
    id: of the task.
    tokens: token ids of the prompt, its separator included.
    references: texts that are right answers.
    whole: whether nothing of the prompt was cut away.
  """

  id: str
  tokens: np.ndarray
  references: list
  whole: bool


class Prompts:
  """Prompts and answers of a seqio task or mixture.

  Attributes:
    info: where they come from, for results.
    vocab_size: ids are below this.
    tasks: the PromptTasks.
    target_length: tokens kept of an answer.
    decode: token ids to text.
  """

  scored_by = 'answers'

  def __init__(self, config, name, tasks):
    """Takes a task or mixture.

    Args:
      config: a DataConfig.
      name: in seqio's registry.
      tasks: dict from name in seqio's registry to PromptTask.
    """
    self._config, self._name, self._names = config, name, list(tasks)
    self._vocab = vocabulary.create(config.vocabulary)
    self.tasks = list(tasks.values())
    self.target_length = config.target_length or max(
      task.target_length for task in self.tasks
    )
    self.vocab_size, self.decode = self._vocab.size, self._vocab.decode
    self.info = stream.info(
      config,
      self._vocab.fingerprint,
      separator=config.separator,
      cut=self.target_length,
    )

  def training(self, config, *, seed, host=(0, 1)):
    """Batches of prompts with their answers, which alone are scored."""
    lengths = self._lengths(config.train_length)
    for name, task in zip(self._names, self.tasks, strict=True):
      if 'train' in dict(task.splits):
        stream.check_not_empty(
          stream.read(name, lengths=lengths, split='train'),
          f'the training split of {task.name} is empty',
        )
    dataset = stream.read(
      self._name, lengths=lengths, split='train', seed=seed, host=host
    )

    def row(example):
      inputs, targets = example['inputs'], example['targets']
      tokens = tf.concat([[vocabulary.PAD], inputs, targets], 0)
      size = tf.size(tokens)
      pad = config.train_length + 1 - size
      return {
        'tokens': tf.pad(tokens, [[0, pad]]),
        'size': size,
        'first_scored': tf.size(inputs) + 1,
      }

    return stream.StreamBatches(
      dataset.map(row),
      rows=len(windows.host_rows(config.batch_size, host)),
      host=host,
      padded=True,
    )

  def examples(self, number, length, limit=None):
    """Examples of the validation split of one task, one per id.

    Args:
      number: of the task in `tasks`.
      length: tokens of prompt and answer together.
      limit: how many at most; None for all.

    Returns:
      list of Examples; the same ids and references at every length.

    Raises:
      errors.CorpusError: there are none.
    """
    dataset = stream.read(
      self._names[number], lengths=self._lengths(length), split='validation'
    )
    found = {}
    with stream.own_errors():
      for row in dataset.as_numpy_iterator():
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
          # Nothing was cut if all of it and the separator are there.
          whole=row['inputs_size'] <= len(row['inputs']) - self._separator_size,
        )
    if not found:
      raise errors.CorpusError(
        f'the validation split of {self.tasks[number].name} is empty'
      )
    return list(found.values())

  @property
  def _separator_size(self):
    return len(self._vocab.encode([self._config.separator.encode()])[0])

  def _lengths(self, length):
    if length <= self.target_length:
      raise errors.ConfigError(
        f'rows of {length} tokens leave no room for a prompt beside an answer '
        f'of data.target_length={self.target_length}; raise data.train_length '
        'and eval.lengths, or lower it'
      )
    return {
      'inputs': length - self.target_length,
      'targets': self.target_length,
    }
