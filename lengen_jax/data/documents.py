"""Documents of a part of a source, from files or TensorFlow Datasets."""

from lengen_jax import errors


def read(source, part):
  """Yields the documents of a part, `bytes`, always in the same order.

  Args:
    source: a `sources.Source`.
    part: one of its Parts.

  Raises:
    errors.CorpusError: something cannot be read.
  """
  if not part.dataset:
    yield from source.documents(part)
    return
  for record in dataset(part).as_numpy_iterator():
    yield source.from_record(record)


def dataset(part):
  """A split that TensorFlow Datasets has prepared, as a tf.data.Dataset.

  Raises:
    errors.CorpusError: the folder holds no such dataset or split.
  """
  import tensorflow_datasets as tfds

  name, split = part.dataset.split('@')
  try:
    builder = tfds.builder_from_directory(part.path)
  except Exception as error:  # Whatever a broken folder makes it raise.
    raise errors.CorpusError(
      f'{part.path} holds no prepared {name}: {str(error).splitlines()[0]}'
    ) from error
  if split not in builder.info.splits:
    raise errors.CorpusError(
      f'{part.path} has no split {split!r}, only '
      f'{", ".join(builder.info.splits)}'
    )
  return builder.as_dataset(split, shuffle_files=False)
