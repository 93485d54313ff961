"""Random choices of the generators."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Rng = np.random.Generator
# A record of a data set, by field.
Record = dict[str, Any]


def choose(rng: Rng, items: Sequence[Any]) -> Any:
  """Returns one of `items`."""
  return items[int(rng.integers(len(items)))]


def sample(rng: Rng, items: Sequence[Any], count: int) -> list[Any]:
  """Returns `count` different `items` in random order."""
  return [items[i] for i in rng.permutation(len(items))[:count]]


def shuffle(rng: Rng, items: Sequence[Any]) -> list[Any]:
  """Returns all `items` in random order."""
  return sample(rng, items, len(items))
