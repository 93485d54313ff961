"""Pictures of patterns, as ImageNet in TensorFlow Datasets.

Twelve of the thousand classes: bars that stand, bars that lie, checkers and a
disc, each dark, gray or light. The light is in every pixel, so that a small
model learns of it at once; the pattern is in how pixels lie to each other.
Where a pattern begins, its contrast and the noise on it differ from picture to
picture.
"""

import numpy as np

from lengen_jax.data import imagenet
from lengen_jax.reproduce.standins import datasets

_TRAIN, _HELD_OUT = 2000, 500
_SIZE = 48
# Gray values that pictures lie around.
_LIGHTS = (50, 128, 205)
# Far from each other among the thousand; the light goes round fastest.
_CLASSES = tuple(range(40, 1000, 80))
# Of the noise, where a pattern goes from -1 to 1.
_NOISE = 0.2


def write(folder):
  """Writes training and validation, unless they are there.

  Args:
    folder: for `data.raw`.
  """
  datasets.write(folder, imagenet.DATASET, _splits)


def _splits():
  found = {}
  for number, (split, count) in enumerate(
    [('train', _TRAIN), ('validation', _HELD_OUT)]
  ):
    rng = np.random.default_rng(number)
    found[split] = [_picture(rng, split, index) for index in range(count)]
  return found


def _picture(rng, split, index):
  kind = rng.integers(len(_CLASSES))
  y, x = np.mgrid[:_SIZE, :_SIZE] / _SIZE
  values = _pattern(rng, kind // len(_LIGHTS), x, y)
  values += _NOISE * rng.standard_normal(values.shape)
  light = _LIGHTS[kind % len(_LIGHTS)] + 15 * rng.standard_normal()
  gray = light + rng.uniform(20, 40) * values
  # Channels differ a little, so that gray is not what is stored.
  pixels = gray[..., None] * rng.uniform(0.9, 1.0, 3)
  return {
    'image': np.clip(pixels, 0, 255).astype(np.uint8),
    'label': _CLASSES[kind],
    'file_name': f'{split}_{index}.JPEG',
  }


def _pattern(rng, number, x, y):
  """Values from -1 to 1, at coordinates from 0 to 1."""
  bars = np.sin(2 * np.pi * (2 * x + rng.uniform()))
  lying = np.sin(2 * np.pi * (2 * y + rng.uniform()))
  # Not always in the middle.
  radius = np.hypot(x - rng.uniform(0.35, 0.65), y - rng.uniform(0.35, 0.65))
  disc = np.where(radius < 0.25, 1.0, -1.0)
  return (bars, lying, np.sign(bars * lying), disc)[number]
