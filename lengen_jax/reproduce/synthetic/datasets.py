"""Random choices of the generators, and atomic writes of their data."""

from collections.abc import Callable, Sequence
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from lengen_jax import extra
from lengen_jax.data import paths
from lengen_jax.types import PathLike

Rng = np.random.Generator
# A record of a data set, by field.
Record = dict[str, Any]


def choose(rng: Rng, items: Sequence[Any]) -> Any:
  """Returns one of `items`."""
  return items[int(rng.integers(len(items)))]


def sample(rng: Rng, items: Sequence[Any], count: int | None = None) -> list:
  """Returns `count` different `items`, or all, in random order."""
  return [items[i] for i in rng.permutation(len(items))[:count]]


def mostly(rng: Rng, likely: Any, other: Callable[[], Any] | Any) -> Any:
  """Returns `likely` with probability 0.8, otherwise `other`."""
  if rng.random() < 0.8:
    return likely
  return other() if callable(other) else other


def write_once(
  path: PathLike, fill: Callable[[pathlib.Path], pathlib.Path]
) -> None:
  """Writes a folder atomically, unless it exists.

  `fill(folder)` writes into an empty folder. It returns the folder that becomes
  `path`: the same one, or a folder inside.
  """
  folder = pathlib.Path(path)
  if folder.exists():
    return
  folder.parent.mkdir(parents=True, exist_ok=True)
  # A hidden sibling can be renamed in one step, and readers of the data ignore
  # what an interrupted write leaves behind.
  beside = tempfile.mkdtemp(prefix=f'.{folder.name}-', dir=folder.parent)
  try:
    filled = fill(pathlib.Path(beside))
    # Only the owner can read folders created by mkdtemp.
    filled.chmod(0o755)
    try:
      filled.rename(folder)
    except OSError:
      # Another process may have written the same data first.
      if not folder.exists():
        raise
  finally:
    shutil.rmtree(beside, ignore_errors=True)


def write(
  folder: PathLike,
  dataset: str,
  by_split: Callable[[], dict[str, list[Record]]],
) -> None:
  """Writes {split: records} below `data.raw`, unless the data set exists.

  The files are those that TensorFlow Datasets prepares for `dataset`,
  'name/config:version'.
  """

  def fill(beside: pathlib.Path) -> pathlib.Path:
    # TensorFlow is only required where the data set does not exist.
    tf = extra.load('tensorflow', 'writing synthetic data')
    tfds = extra.load('tensorflow_datasets', 'writing synthetic data')
    builder = tfds.builder(dataset, data_dir=str(beside))
    features, infos = builder.info.features, []
    place = paths.prepared_dataset(beside, dataset)
    place.mkdir(parents=True)
    for split, records in by_split().items():
      name = f'{builder.name}-{split}.tfrecord-00000-of-00001'
      written = [
        features.serialize_example(features.encode_example(record))
        for record in records
      ]
      with tf.io.TFRecordWriter(str(place / name)) as writer:
        for record in written:
          writer.write(record)
      size = sum(map(len, written))
      counts = {'shard_lengths': [len(written)], 'num_bytes': size}
      infos.append(tfds.core.SplitInfo(name=split, **counts))
    tfds.folder_dataset.write_metadata(
      data_dir=place,
      features=features,
      split_infos=infos,
      filename_template='{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
      check_data=False,
    )
    return place

  write_once(paths.prepared_dataset(folder, dataset), fill)
