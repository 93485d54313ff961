"""Batches out of a pipeline of tf.data, whose state goes into checkpoints."""

import hashlib
import json

import seqio
import tensorflow as tf

from lengen_jax import errors
from lengen_jax.data import seqio_files
from lengen_jax.data import windows


class StreamBatches(windows.Batches):
  """Batches of a pipeline, whose state goes into checkpoints."""

  def __init__(self, dataset, *, rows, host, padded):
    """Begins.

    Args:
      dataset: endless, of dicts with `tokens` `[L + 1]`, `size` and perhaps
        `first_scored`, see `windows.lm_batch`; or with `encoder_tokens` and
        `targets`, see `windows.pair_batch`.
      rows: of this host per batch.
      host: (index, count) of the hosts.
      padded: whether rows end with padding.
    """
    self.padded, self._host = padded, host
    options = tf.data.Options()
    options.deterministic = True
    dataset = dataset.batch(rows, drop_remainder=True).prefetch(2)
    self._iterator = iter(dataset.with_options(options))
    self._checkpoint = tf.train.Checkpoint(iterator=self._iterator)

  def next(self):
    with own_errors():
      batch = next(self._iterator)
    batch = {key: value.numpy() for key, value in batch.items()}
    if 'encoder_tokens' in batch:
      return windows.pair_batch(batch['encoder_tokens'], batch['targets'])
    return windows.lm_batch(
      batch['tokens'], batch['size'], batch.get('first_scored')
    )

  def save(self, folder):
    (folder / 'hosts.json').write_text(json.dumps({'hosts': self._host[1]}))
    self._checkpoint.write(str(folder / self._name))

  def restore(self, folder):
    hosts = json.loads((folder / 'hosts.json').read_text())['hosts']
    if hosts != self._host[1]:
      raise errors.CheckpointError(
        f'the pipeline in {folder} was that of {hosts} hosts and cannot go on '
        f'with {self._host[1]}; use as many, or prepared data, which can'
      )
    self._checkpoint.read(str(folder / self._name)).assert_consumed()

  @property
  def _name(self):
    return f'pipeline-{self._host[0]}'


def read(name, *, lengths, split, seed=None, host=None):
  """The dataset of a task or mixture.

  Args:
    name: in seqio's registry.
    lengths: of its features; None to cut nothing.
    split: of the task.
    seed: of an endless, shuffled dataset; None to go through once in order.
    host: (index, count) of the hosts, each having a part of the examples.

  Returns:
    A tf.data.Dataset of dicts.
  """
  return seqio.get_mixture_or_task(name).get_dataset(
    sequence_length=lengths,
    split=split,
    shuffle=seed is not None,
    seed=seed,
    shard_info=seqio.ShardInfo(*host) if host else None,
    num_epochs=1 if seed is None else None,
    # What is cached in memory is not in the state of a pipeline.
    try_in_mem_cache=False,
  )


def check_not_empty(dataset, reason):
  """Raises unless a dataset that ends has a first row.

  One that goes on without end would be searched for it forever.

  Raises:
    errors.CorpusError: giving the reason.
  """
  with own_errors():
    if next(dataset.take(1).as_numpy_iterator(), None) is None:
      raise errors.CorpusError(reason)


def check_files(name, host):
  """Says so where hosts outnumber files: then each reads all of them."""
  task = seqio.get_mixture_or_task(name)
  for each in getattr(task, 'tasks', [task]):
    files = len(each.source.list_shards('train'))
    if files < host[1] and host[0] == 0:
      print(
        f'note: {each.name} has {files} files for {host[1]} hosts, so that '
        'each host reads all of them; prepared data has no such limit'
      )


def info(config, vocabulary, **more):
  """What is known of the data without reading it."""
  info = {
    'source': f'seqio {config.task}',
    'path': config.path or None,
    'vocabulary': vocabulary,
    **more,
  }
  text = json.dumps(info, sort_keys=True)
  return {**info, 'sha256': hashlib.sha256(text.encode()).hexdigest()}


class own_errors:
  """Raises what our own readers raised within a pipeline as it was."""

  def __enter__(self):
    seqio_files.raised.clear()

  def __exit__(self, kind, error, traceback):
    if kind is None or not issubclass(kind, tf.errors.OpError):
      return
    if seqio_files.raised:
      # A new one: the first has been through TensorFlow.
      first = seqio_files.raised[0]
      raise type(first)(str(first)) from None
    raise errors.CorpusError(
      f'cannot read the data: {str(error).splitlines()[0]}'
    ) from error
