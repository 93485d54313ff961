"""ImageNet as sequences of gray pixels, to be told its 1000 classes.

Source: the paper on randomized encodings for real tasks, table 3, which trains
an encoder-decoder on 506 = 22 x 23 pixels and tests it on 2025 = 45 x 45, a
black pixel ending each row. Whether that pixel is among the 23 is not said;
here it is, so that pictures have 22 and 44 columns of their own.
"""

import dataclasses
import math
from typing import Any

from lengen_jax import errors

DATASET = 'imagenet2012:5.1.0'
HOW = (
  'fetch ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from '
  'https://image-net.org, which needs an account, and run '
  f'tfds build {DATASET} --manual_dir=FOLDER'
)
# Tokens: gray values, then classes.
PIXELS, CLASSES = 256, 1000


@dataclasses.dataclass(frozen=True)
class Imagenet:
  """Pictures as rows of pixels.

  Attributes:
    rows: of pictures that have `rows * (cols + delimiter)` tokens; others have
      as many as the divisor of their length that is nearest to its root.
    cols: see `rows`.
    delimiter: each row ends with a black pixel.
  """

  dataset = DATASET
  how = HOW
  about = 'ImageNet as rows of gray pixels, to be told the class'

  rows: int = 22
  cols: int = 22
  delimiter: bool = True

  def shape(self, length: int) -> tuple[int, int]:
    """(rows, columns) of pictures of `length` tokens, delimiters left out.

    Raises:
      errors.ConfigError: no picture has that length.
    """
    if length == self.rows * (self.cols + self.delimiter):
      return self.rows, self.cols
    rows = next(r for r in range(math.isqrt(length), 0, -1) if not length % r)
    cols = length // rows - self.delimiter
    # A strip of pixels is no picture.
    if cols < 1 or cols > 2 * rows:
      raise errors.ConfigError(
        f'{length} tokens are no picture but {rows} x {cols}; take a length '
        'such as 506 = 22 x 23, or set rows and cols of data.task'
      )
    return rows, cols


def flatten(image: Any, rows: int, cols: int, delimiter: bool) -> Any:
  """Pixels of a picture, row after row.

  Args:
    image: uint8 `[height, width, 3]`, a tf.Tensor.
    rows: to resize to.
    cols: to resize to.
    delimiter: end each row with a black pixel.

  Returns:
    int32 `[rows * (cols + delimiter)]`, gray values.
  """
  import tensorflow as tf

  gray = tf.image.rgb_to_grayscale(tf.cast(image, tf.float32))
  small = tf.image.resize(gray, (rows, cols), antialias=True)[..., 0]
  pixels = tf.cast(tf.clip_by_value(tf.round(small), 0, PIXELS - 1), tf.int32)
  if delimiter:
    pixels = tf.pad(pixels, [[0, 0], [0, 1]])
  return tf.reshape(pixels, [-1])
