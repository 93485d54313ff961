"""Writes records as data sets that TensorFlow Datasets has prepared."""

from collections.abc import Callable
import pathlib

from lengen_jax.data import extra, paths
from lengen_jax.hints import PathLike
from lengen_jax.reproduce.synthetic import folders
from lengen_jax.reproduce.synthetic.sampling import Record


def write(
  folder: PathLike,
  dataset: str,
  by_split: Callable[[], dict[str, list[Record]]],
) -> None:
  """Writes a data set with its features in TensorFlow Datasets.

  Args:
    folder: the folder of `data.raw`.
    dataset: 'name/config:version'.
    by_split: returns {split: records}; not called if the data set exists.
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
      infos.append(
        tfds.core.SplitInfo(
          name=split,
          shard_lengths=[len(written)],
          num_bytes=sum(map(len, written)),
        )
      )
    tfds.folder_dataset.write_metadata(
      data_dir=place,
      features=features,
      split_infos=infos,
      filename_template='{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
      check_data=False,
    )
    return place

  folders.write_once(paths.prepared_dataset(folder, dataset), fill)
