"""What TensorFlow Datasets would prepare, out of records of our own."""

from lengen_jax.data import extra
from lengen_jax.data import paths
from lengen_jax.reproduce.standins import folders


def write(folder, dataset, by_split):
  """Writes a dataset with the features it has in TensorFlow Datasets.

  Args:
    folder: for `data.raw`.
    dataset: 'name/config:version'.
    by_split: function that gives a dict from split to list of records; not
      called if the dataset is there.
  """

  def fill(beside):
    # Loaded, not imported: where the data is there nobody needs it.
    tf = extra.load('tensorflow', 'writing a stand-in')
    tfds = extra.load('tensorflow_datasets', 'writing a stand-in')
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
