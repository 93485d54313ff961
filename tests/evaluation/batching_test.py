"""Tests `lengen_jax/evaluation/batching.py`.

That encodings and tables limit the padding: `generation_test.py`.
"""

import numpy as np
import pytest

from lengen_jax.evaluation import batching
from tests import helpers


@pytest.mark.parametrize(
  'length, width',
  [(0, 16), (16, 16), (17, 24), (24, 24), (25, 32), (33, 48), (1025, 1536)],
)
def test_padded_width(length, width):
  assert batching.padded_width(length) == width


def test_batches_of_equal_size_per_width():
  lengths = [3, 30, 16, 7, 1, 9, 29, 2]
  found = list(
    batching.by_width(
      helpers.tiny_model(encoding='rope'),
      lengths,
      batch_tokens=80,
      new_tokens=4,
      parts=2,
    )
  )
  assert [(batch.width, batch.numbers.tolist()) for batch in found] == [
    (30, [1, 6]),
    (16, [2, 5, 3, 0]),
    (16, [7, 4]),
  ]
  assert found[2].filled.tolist() == [7, 4, 4, 4]
  np.testing.assert_array_equal(found[1].numbers, found[1].filled)
