"""Pictures and their classes as a seqio task for an encoder-decoder."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from lengen_jax import errors
from lengen_jax.data import imagenet, seqio_files, stream, windows
from lengen_jax.data.config import DataConfig


def register(pictures: imagenet.Imagenet, path: str) -> str:
  """Registers a task of pictures in seqio; returns its name."""

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
    feature = seqio.Feature(vocab, add_eos=False)
    splits = 'train', 'validation'
    return {
      'source': seqio_files.tfds(imagenet.DATASET, path, splits),
      'preprocessors': [tokens],
      'output_features': {'inputs': feature, 'targets': feature},
    }

  return seqio_files.add('imagenet', (path, pictures), arguments)


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
    """Opens a task by its name in seqio's registry."""
    self._task = seqio.get_mixture_or_task(name)
    self.info = stream.info(config, self._task, 'pixels')

  def training(
    self, config: DataConfig, *, seed: int, host: tuple[int, int] = (0, 1)
  ) -> stream.StreamBatches:
    """Returns batches of the training split; see `corpus.Corpus.training`."""

    def rename(row: Mapping[str, Any]) -> dict[str, Any]:
      return {'encoder_tokens': row['inputs'], 'targets': row['targets']}

    return stream.StreamBatches(
      self._task,
      config.batch_size,
      lambda dataset: dataset.map(rename),
      lengths={'inputs': config.train_length, 'targets': 1},
      seed=seed,
      host=host,
      padded=False,
    )

  def evaluation(self, config: Any) -> 'EvaluationPictures':
    """Returns validation pictures at each length of an EvalConfig."""
    return EvaluationPictures(self._task, config.lengths, config.examples)


class EvaluationPictures:
  """The same pictures at every length.

  Attributes:
    lengths: tokens of a picture.
    tokens: number of scored tokens, one per picture.
    bytes_per_token: None, because there is no text.
    digest: '', because losses of single pictures are not kept.
  """

  bytes_per_token = None
  digest = ''

  def __init__(
    self, task: Any, lengths: Sequence[int], limit: int | None
  ) -> None:
    """Reads `limit` validation pictures of a seqio task, or all if None."""
    self._task, self._limit = task, -1 if limit is None else limit
    self.lengths = tuple(lengths)
    self.tokens = self._read(min(lengths))[1].shape[0]

  def batch(self, length: int) -> dict[str, np.ndarray]:
    """Returns all pictures at a length; see `windows.pair_batch`."""
    return windows.pair_batch(*self._read(length))

  def count_words(self, _: Callable[[str], int]) -> int:
    """Returns 0, because there is no text."""
    return 0

  def window_sums(self, values: np.ndarray) -> np.ndarray:
    """Returns an empty array: results do not list thousands of pictures."""
    return np.zeros(0)

  def _read(self, length: int) -> tuple[np.ndarray, np.ndarray]:
    dataset = stream.read(
      self._task,
      lengths={'inputs': length, 'targets': 1},
      split='validation',
    )
    with stream.original_errors(self._task):
      rows = list(dataset.take(self._limit).as_numpy_iterator())
    if not rows:
      raise errors.CorpusError('the validation split of ImageNet is empty')
    inputs, targets = (
      np.stack([row[name] for row in rows]) for name in ('inputs', 'targets')
    )
    return inputs, targets
