"""Batches from a tf.data pipeline with checkpointed state."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import functools
import hashlib
import json
import os
import pathlib
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from lengen_jax import errors
from lengen_jax.data import seqio_files, windows
from lengen_jax.data.config import DataConfig


class StreamBatches(windows.Batches):
  """Batches from a tf.data pipeline with checkpointed state."""

  def __init__(
    self,
    task: Any,
    batch_size: int,
    transform: Callable[[Any], Any],
    *,
    lengths: Mapping[str, int] | None,
    seed: int,
    host: tuple[int, int],
    padded: bool,
  ) -> None:
    """Starts the pipeline.

    `batch_size` counts the rows of all hosts. `transform` is a function from a
    Dataset of the training split to one of dicts, either with `tokens`
    `[L + 1]`, `size` and optionally `first_scored`, see `windows.lm_batch`; or
    with `encoder_tokens` and `targets`, see `windows.pair_batch`. Rows that are
    `padded` end with padding. For other arguments see `read`.
    """
    self.padded, self._host, self._task = padded, host, task
    _check_files(task, host)
    rows = len(windows.host_rows(batch_size, host))
    open_with = functools.partial(
      read, task, lengths=lengths, split='train', host=host
    )
    # An endless mixture without a row would be read forever.
    if isinstance(task, seqio.Mixture):
      with original_errors(task):
        if next(iter(transform(open_with(seed=None))), None) is None:
          raise self._no_row()
    dataset = transform(open_with(seed=seed))
    options = tf.data.Options()
    options.deterministic = True
    # Repeating an empty dataset ends here, but not within a seqio task.
    dataset = dataset.repeat().batch(rows, drop_remainder=True).prefetch(2)
    self._iterator = iter(dataset.with_options(options))
    self._checkpoint = tf.train.Checkpoint(iterator=self._iterator)

  def next(self) -> dict[str, np.ndarray]:
    with original_errors(self._task):
      batch = next(self._iterator, None)
    if batch is None:
      raise self._no_row()
    batch = {key: value.numpy() for key, value in batch.items()}
    if 'encoder_tokens' in batch:
      return windows.pair_batch(batch['encoder_tokens'], batch['targets'])
    return windows.lm_batch(
      batch['tokens'], batch['size'], batch.get('first_scored')
    )

  def save(self, folder: pathlib.Path) -> None:
    (folder / 'hosts.json').write_text(json.dumps({'hosts': self._host[1]}))
    self._checkpoint.write(str(folder / self._name))

  def restore(self, folder: pathlib.Path) -> None:
    hosts = json.loads((folder / 'hosts.json').read_text())['hosts']
    if hosts != self._host[1]:
      raise errors.CheckpointError(
        f'the pipeline in {folder} was saved by {hosts} hosts and cannot '
        f'resume on {self._host[1]}; use {hosts} hosts or prepared data'
      )
    try:
      self._checkpoint.read(str(folder / self._name)).assert_consumed()
    except Exception as error:  # The type depends on the difference.
      raise errors.CheckpointError(
        f'cannot resume the pipeline in {folder}: {errors.reason(error)}; the '
        'data or its settings have changed; to train on from the parameters, '
        'set train.init_from and another workdir'
      ) from error

  @property
  def _name(self) -> str:
    return f'pipeline-{self._host[0]}'

  def _no_row(self) -> errors.CorpusError:
    return errors.CorpusError(
      f'the training split of {self._task.name} has no row for host '
      f'{self._host[0]} of {self._host[1]}: it is empty, has fewer documents '
      'than hosts (use prepared data), or all texts are shorter than '
      'data.train_length (lower it or change data.mode)'
    )


def read(
  task: Any,
  *,
  lengths: Mapping[str, int] | None,
  split: str,
  seed: int | None = None,
  host: tuple[int, int] | None = None,
) -> Any:
  """Returns one epoch of a split of a seqio task or mixture, as a Dataset.

  Args:
    task: a Task or Mixture of seqio. Its name may be registered anew.
    lengths: maximum tokens per feature; None for no truncation.
    split: split of the task.
    seed: seed of the order; None for the order of the files. A mixture with a
      seed is infinite, because its tasks have different sizes.
    host: (index, count) of the hosts; each host reads its shard.
  """
  endless = isinstance(task, seqio.Mixture) and seed is not None
  return task.get_dataset(
    sequence_length=lengths,
    split=split,
    shuffle=seed is not None,
    seed=seed,
    shard_info=seqio.ShardInfo(*host) if host else None,
    num_epochs=None if endless else 1,
    # The state of a pipeline does not include the memory cache.
    try_in_mem_cache=False,
  )


def _check_files(task: Any, host: tuple[int, int]) -> None:
  """Prints a note if hosts outnumber files.

  Each host then reads all files, and keeps its share of the documents.

  Raises:
    errors.ConfigError: a task has no training split.
  """
  check_split(task, 'train')
  for each in getattr(task, 'tasks', [task]):
    files = len(each.source.list_shards('train'))
    if files < host[1] and host[0] == 0:
      print(
        f'note: {each.name} has {files} files for {host[1]} hosts, so that '
        'each host reads all of them and keeps a part of their documents; '
        'prepared data avoids this'
      )


def info(
  config: DataConfig, task: Any, vocabulary: str, **more: Any
) -> dict[str, Any]:
  """Returns a description of the data, with the entries `more`.

  The hash depends on names and sizes of the files, but not on their folder.
  Shards of a FunctionDataSource are not files.
  """
  files = {}
  for each in getattr(task, 'tasks', [task]):
    for split in sorted(each.splits):
      paths = {f.split('!/')[0] for f in each.source.list_shards(split)}
      files[f'{each.name}/{split}'] = [
        [os.path.basename(path), os.path.getsize(path)]
        for path in sorted(paths)
        if not isinstance(each.source, seqio.FunctionDataSource)
        and os.path.exists(path)
      ]
  info = {'source': f'seqio {config.task}', 'vocabulary': vocabulary, **more}
  text = json.dumps([info, files], sort_keys=True)
  return {
    **info,
    'files': sum(map(len, files.values())),
    'sha256': hashlib.sha256(text.encode()).hexdigest(),
  }


@contextlib.contextmanager
def original_errors(task: Any) -> Iterator[None]:
  """Raises the original errors of the readers in the pipeline of a task."""
  try:
    yield
  except tf.errors.OpError as error:
    for original in seqio_files.raised:
      # Prefetching may have raised the error earlier.
      if str(original) in str(error):
        # A new exception, without the traceback of TensorFlow.
        raise type(original)(str(original)) from None
    files = ''
    if isinstance(task, seqio.Task):
      shards = task.source.list_shards(sorted(task.splits)[0])
      files = f' in {os.path.dirname(shards[0])}' if shards else ''
    raise errors.CorpusError(
      f'the data of {task.name}{files} is corrupt or has another format '
      f'({errors.reason(error)}); download or prepare it again'
    ) from error


def check_split(task: Any, split: str) -> None:
  """Raises errors.ConfigError unless each task of `task` has a split."""
  for each in getattr(task, 'tasks', [task]):
    if split not in each.splits:
      raise errors.ConfigError(
        f'{each.name} has no split {split!r}, only {", ".join(each.splits)}; '
        'set data.task to another task'
      )
