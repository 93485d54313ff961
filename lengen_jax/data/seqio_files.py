"""A seqio data source that reads files of any format in Python."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import threading
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_datasets

from lengen_jax import errors
from lengen_jax.data import paths, sources

# TensorFlow only reads data and must not claim accelerators.
for _kind in ('GPU', 'TPU'):
  tf.config.set_visible_devices([], _kind)
# Records per call from TensorFlow.
_BLOCK = 64
# Exceptions raised in readers, of which TensorFlow keeps only the text.
raised: list[Exception] = []
# Maps each registered name to its key.
_registered: dict[str, tuple] = {}


def add(
  name: str,
  key: tuple,
  arguments: Callable[[], Mapping[str, Any]],
  registry: Any = seqio.TaskRegistry,
) -> str:
  """Registers a task or mixture in seqio; returns its name.

  Args:
    name: name of the task or mixture.
    key: everything that the registration depends on; a new key replaces the
      existing registration.
    arguments: function that returns the keyword arguments of `registry.add`.
    registry: a registry class of seqio.
  """
  if _registered.get(name) != key or name not in registry.names():
    registry.remove(name)
    registry.add(name, **arguments())
    _registered[name] = key
  return name


def tfds(dataset: str, path: str, splits: Any) -> seqio.TfdsDataSource:
  """Returns the source of a prepared dataset; see `paths.data_folder`."""
  folder = str(paths.data_folder(path))
  return _Tfds(dataset, tfds_data_dir=folder, splits=splits, read_only=True)


class _Tfds(seqio.TfdsDataSource):
  """Reads files in sequence unless it shuffles them, as `lengen prepare` does.

  seqio reads sixteen files in turn.
  """

  def get_dataset(
    self,
    split: str | None = None,
    shuffle: bool = True,
    *args: Any,
    **options: Any,
  ) -> tf.data.Dataset:
    if shuffle:
      return super().get_dataset(split, shuffle, *args, **options)
    in_sequence = tensorflow_datasets.ReadConfig(interleave_cycle_length=1)
    seqio.utils.set_tfds_read_config_override(in_sequence)
    try:
      return super().get_dataset(split, shuffle, *args, **options)
    finally:
      seqio.utils.set_tfds_read_config_override(None)


def texts(column: Sequence[bytes]) -> np.ndarray:
  """Returns byte strings as an object array, which keeps trailing zeros."""
  found = np.empty(len(column), object)
  found[:] = column
  return found


class Files(seqio.DataSource):
  """Reads files of any format through Python, block by block.

  A block is a function of file and block number, so that the state of a
  pipeline consists of a few integers.
  """

  def __init__(
    self,
    parts: Mapping[str, Sequence[sources.Part]],
    read: Callable[[sources.Part], Iterator[tuple[bytes, ...]]],
    columns: Sequence[str],
  ) -> None:
    """Creates a source of `parts` by split; `read` yields the `columns`."""
    self._parts, self._read, self._columns = parts, read, columns
    super().__init__(splits=tuple(parts), caching_permitted=True)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    return False

  def list_shards(self, split: str) -> list[str]:
    return [part.path for part in self._parts[split]]

  def get_dataset(
    self,
    split: str = 'train',
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: Any = None,
    *,
    sequence_length: Mapping[str, int] | None = None,
    use_cached: bool = False,
    num_epochs: int | None = 1,
  ) -> Any:
    del sequence_length, use_cached, num_epochs
    parts = self._parts[split]
    numbers = tf.data.Dataset.range(len(parts))
    if shard_info:
      numbers = numbers.shard(shard_info.num_shards, shard_info.index)
    if shuffle:
      numbers = numbers.shuffle(len(parts), seed=seed)
    blocks = [_Blocks(functools.partial(self._read, part)) for part in parts]

    def block(part: int, number: int) -> list[np.ndarray]:
      rows = blocks[part](number)
      columns = list(zip(*rows, strict=True)) or [()] * len(self._columns)
      return [texts(column) for column in columns]

    def read(part: Any) -> Any:
      def block_of(number: Any) -> dict[str, Any]:
        columns = tf.numpy_function(
          block,
          [part, number],
          [tf.string] * len(self._columns),
          stateful=False,
        )
        for column in columns:
          column.set_shape([None])
        return dict(zip(self._columns, columns, strict=True))

      first = self._columns[0]
      return (
        tf.data.Dataset.range(1 << 40)
        .map(block_of)
        .take_while(lambda rows: tf.size(rows[first]) > 0)
        .unbatch()
      )

    return numbers.interleave(
      read, cycle_length=min(16, len(parts)) if shuffle else 1, block_length=16
    )


class _Blocks:
  """Blocks of an iterator that can be restarted.

  The next block is read directly. Any other block requires a restart, which
  reads and discards all records before it.
  """

  def __init__(self, begin: Callable[[], Iterator[tuple[bytes, ...]]]) -> None:
    self._begin = begin
    self._next: int | None = None
    self._rows: Iterator[tuple[bytes, ...]] = iter(())
    self._lock = threading.Lock()

  def __call__(self, number: int) -> list[tuple[bytes, ...]]:
    with self._lock:
      try:
        if number != self._next:
          self._rows = self._begin()
          for _ in range(int(number) * _BLOCK):
            next(self._rows, None)
        self._next = number + 1
        return [row for _, row in zip(range(_BLOCK), self._rows, strict=False)]
      except errors.LengenError as error:
        self._next = None
        raised.append(error)
        raise
