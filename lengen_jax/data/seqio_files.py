"""A data source of seqio that reads files of any format through Python."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import threading
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from lengen_jax import errors
from lengen_jax.data import sources

# TensorFlow is here for reading only.
for _kind in ('GPU', 'TPU'):
  tf.config.set_visible_devices([], _kind)
# Records that are read and handed to TensorFlow together.
_BLOCK = 64
# What went wrong in a reader: TensorFlow hands on no more than its text.
raised: list[Exception] = []


def texts(column: Sequence[bytes]) -> np.ndarray:
  """Byte strings as numpy hands them to TensorFlow, nothing stripped."""
  found = np.empty(len(column), object)
  found[:] = column
  return found


class Files(seqio.DataSource):
  """Reads files of any format through Python, block by block.

  A block is a function of file and number, so that the state of a pipeline is
  a few numbers.
  """

  def __init__(
    self,
    parts: Mapping[str, Sequence[sources.Part]],
    read: Callable[[sources.Part], Iterator[tuple[bytes, ...]]],
    columns: Sequence[str],
  ) -> None:
    """Makes a source.

    Args:
      parts: split to list of Parts.
      read: Part to an iterator of tuples of bytes.
      columns: their names.
    """
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
  """Blocks of an iterator that can be begun again.

  Going on from one block to the next costs what it reads; any other order goes
  through what lies before.
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
