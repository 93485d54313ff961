"""Pictures and their classes as a seqio task for an encoder-decoder."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from lengen_jax import errors
from lengen_jax.data import imagenet, paths, registry, stream, windows
from lengen_jax.data.config import DataConfig


def register(pictures: imagenet.Imagenet, path: str) -> str:
  """Registers a task of pictures in seqio.

  Args:
    pictures: an `imagenet.Imagenet`.
    path: folder of TensorFlow Datasets.

  Returns:
    The name in seqio's registry.
  """

  def tokens(dataset: Any, sequence_length: Mapping[str, int]) -> Any:
    length = sequence_length['inputs']
    shape = pictures.shape(length)

    def convert(record: Mapping[str, Any]) -> dict[str, Any]:
      pixels = imagenet.flatten(record['image'], *shape, pictures.delimiter)
      label = tf.cast(record['label'], tf.int32) + imagenet.PIXELS
      return {
        'inputs': tf.ensure_shape(pixels, [length]),
        'targets': label[None],
      }

    return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def arguments() -> dict[str, Any]:
    vocab = seqio.PassThroughVocabulary(imagenet.PIXELS + imagenet.CLASSES)
    return {
      'source': seqio.TfdsDataSource(
        imagenet.DATASET,
        tfds_data_dir=str(paths.data_folder(path)),
        splits=('train', 'validation'),
        read_only=True,
      ),
      'preprocessors': [tokens],
      'output_features': {
        name: seqio.Feature(vocab, add_eos=False)
        for name in ('inputs', 'targets')
      },
    }

  return registry.add(
    'imagenet', (path, pictures), seqio.TaskRegistry, arguments
  )


class Pictures:
  """Pictures of a seqio task.

  Attributes:
    info: description of the data, for results.
    vocab_size: number of token ids.
  """

  scored_by = 'loss'
  architectures = ('encoder_decoder',)
  vocab_size = imagenet.PIXELS + imagenet.CLASSES

  def __init__(self, config: DataConfig, name: str) -> None:
    """Opens a task.

    Args:
      config: a DataConfig.
      name: name of the task in seqio's registry.
    """
    self._name = name
    self.info = stream.info(config, name, 'pixels')

  def training(
    self, config: DataConfig, *, seed: int, host: tuple[int, int] = (0, 1)
  ) -> stream.StreamBatches:
    """Returns batches of the training split; see `corpus.Corpus.training`."""
    stream.check_files(self._name, host)
    dataset = stream.read(
      self._name,
      lengths={'inputs': config.train_length, 'targets': 1},
      split='train',
      seed=seed,
      host=host,
    )
    dataset = dataset.map(
      lambda row: {'encoder_tokens': row['inputs'], 'targets': row['targets']}
    )
    return stream.StreamBatches(
      self._name,
      dataset,
      rows=len(windows.host_rows(config.batch_size, host)),
      host=host,
      padded=False,
    )

  def evaluation(self, config: Any) -> 'EvaluationPictures':
    """Returns validation pictures at each length of an EvalConfig."""
    return EvaluationPictures(self._name, config.lengths, config.examples)


class EvaluationPictures:
  """The same pictures at every length.

  Attributes:
    lengths: tokens of a picture.
    tokens: number of scored tokens, one per picture.
    bytes_per_token: None, because there is no text.
  """

  bytes_per_token = None

  def __init__(
    self, name: str, lengths: Sequence[int], limit: int | None
  ) -> None:
    """Reads `limit` pictures of the validation split, or all if None."""
    self._name, self._limit = name, -1 if limit is None else limit
    self.lengths = tuple(lengths)
    self.tokens = self._read(min(lengths))[1].shape[0]

  def batch(self, length: int) -> dict[str, np.ndarray]:
    """Returns all pictures at a length; see `windows.pair_batch`."""
    return windows.pair_batch(*self._read(length))

  def texts(self) -> list[str]:
    """Returns an empty list, because there is no text."""
    return []

  def _read(self, length: int) -> tuple[np.ndarray, np.ndarray]:
    dataset = stream.read(
      self._name,
      lengths={'inputs': length, 'targets': 1},
      split='validation',
    )
    with stream.own_errors(self._name):
      rows = list(dataset.take(self._limit).as_numpy_iterator())
    if not rows:
      raise errors.CorpusError('the validation split of ImageNet is empty')
    inputs, targets = (
      np.stack([row[name] for row in rows]) for name in ('inputs', 'targets')
    )
    return inputs, targets
