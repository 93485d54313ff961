"""ImageNet as sequences of gray pixels, classified into 1000 classes.

Source: the paper on randomized encodings for real tasks, table 3, which trains
an encoder-decoder on 506 = 22 x 23 pixels and tests it on 2025 = 45 x 45, a
black pixel ending each row. The paper does not state whether the 23 columns
include that pixel; here they do, so that pictures have 22 and 44 columns.
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
    rows: rows of a picture of `rows * (cols + delimiter)` tokens. At any other
      length, the number of rows is the largest divisor of the length that does
      not exceed its square root.
    cols: columns of that picture.
    delimiter: whether each row ends with a black pixel.
  """

  dataset = DATASET
  how = HOW
  about = 'classification of ImageNet as rows of gray pixels'

  rows: int = 22
  cols: int = 22
  delimiter: bool = True

  def shape(self, length: int) -> tuple[int, int]:
    """Returns the (rows, columns) of a picture of `length` tokens.

    The length includes the delimiters, the columns do not.

    Raises:
      errors.ConfigError: no picture has that length, or it would be more than
        twice as wide as high.
    """
    if length == self.rows * (self.cols + self.delimiter):
      return self.rows, self.cols
    rows = next(r for r in range(math.isqrt(length), 0, -1) if not length % r)
    cols = length // rows - self.delimiter
    # Exclude pictures that are more than twice as wide as high.
    if cols < 1 or cols > 2 * rows:
      raise errors.ConfigError(
        f'{length} tokens form a picture of {rows} x {cols}; it must have 1 to '
        f'{2 * rows} columns. Use a length such as 506 = 22 x 23, or set rows '
        'and cols of data.task'
      )
    return rows, cols


def flatten(image: Any, rows: int, cols: int, delimiter: bool) -> Any:
  """Returns gray values by row, int32 `[rows * (cols + delimiter)]`.

  Args:
    image: uint8 `[height, width, 3]`, a tf.Tensor, resized to `[rows, cols]`.
    rows: number of rows.
    cols: number of columns.
    delimiter: whether each row ends with a black pixel.
  """
  import tensorflow as tf

  gray = tf.image.rgb_to_grayscale(tf.cast(image, tf.float32))
  small = tf.image.resize(gray, (rows, cols), antialias=True)[..., 0]
  pixels = tf.cast(tf.clip_by_value(tf.round(small), 0, PIXELS - 1), tf.int32)
  if delimiter:
    pixels = tf.pad(pixels, [[0, 0], [0, 1]])
  return tf.reshape(pixels, [-1])
