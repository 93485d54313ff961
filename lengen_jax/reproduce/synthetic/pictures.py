"""Pictures of simple patterns in the format of ImageNet.

Twelve of the thousand classes occur: vertical bars, horizontal bars, checkers
and discs, each dark, gray or light. Every pixel shows the brightness, which a
small model learns quickly; the pattern requires several pixels. Offset,
contrast and noise are random.
"""

import numpy as np

from lengen_jax.data import imagenet
from lengen_jax.reproduce.synthetic import datasets
from lengen_jax.reproduce.synthetic.datasets import Record, Rng
from lengen_jax.types import PathLike

# Records of each split.
SIZES = {'train': 2000, 'validation': 500}
_SIZE = 48
# Mean gray values.
_LIGHTS = (50, 128, 205)
# Labels of the twelve classes; neighbours differ in brightness.
CLASSES = tuple(range(40, 1000, 80))
# Standard deviation of the noise; patterns range from -1 to 1.
_NOISE = 0.2


def write(folder: PathLike) -> None:
  """Writes both splits into the folder of `data.raw`, unless they exist."""
  datasets.write(folder, imagenet.DATASET, splits)


def splits() -> dict[str, list[Record]]:
  """Returns {split: records}."""
  found = {}
  for number, (split, count) in enumerate(SIZES.items()):
    rng = np.random.default_rng(number)
    found[split] = [_picture(rng, split, index) for index in range(count)]
  return found


def _picture(rng: Rng, split: str, index: int) -> Record:
  kind = int(rng.integers(len(CLASSES)))
  y, x = np.mgrid[:_SIZE, :_SIZE] / _SIZE
  values = _pattern(rng, kind // len(_LIGHTS), x, y)
  values += _NOISE * rng.standard_normal(values.shape)
  light = _LIGHTS[kind % len(_LIGHTS)] + 15 * rng.standard_normal()
  gray = light + rng.uniform(20, 40) * values
  # Channels differ slightly, so files do not store gray values.
  pixels = gray[..., None] * rng.uniform(0.9, 1.0, 3)
  return {
    'image': np.clip(pixels, 0, 255).astype(np.uint8),
    'label': CLASSES[kind],
    'file_name': f'{split}_{index}.JPEG',
  }


def _pattern(rng: Rng, number: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Returns values from -1 to 1 at coordinates from 0 to 1."""
  bars = np.sin(2 * np.pi * (2 * x + rng.uniform()))
  lying = np.sin(2 * np.pi * (2 * y + rng.uniform()))
  radius = np.hypot(x - rng.uniform(0.35, 0.65), y - rng.uniform(0.35, 0.65))
  disc = np.where(radius < 0.25, 1.0, -1.0)
  return (bars, lying, np.sign(bars * lying), disc)[number]
