"""Tests `lengen_jax/evaluation/batching.py`.

That encodings and tables limit the padding: `generation_test.py`.
"""

import numpy as np
import pytest

from lengen_jax import positions
from lengen_jax.evaluation import batching
from tests import helpers


@pytest.mark.parametrize(
  'length, width',
  [(0, 16), (16, 16), (17, 24), (24, 24), (25, 32), (33, 48), (1025, 1536)],
)
def test_padded_width(length, width):
  assert batching.padded_width(length) == width


def by_width(
  lengths, scheme='standard', batch_tokens=80, parts=2, encoding='rope'
):
  return list(
    batching.by_width(
      helpers.tiny_model(encoding=encoding),
      positions.create(scheme),
      lengths,
      batch_tokens=batch_tokens,
      new_tokens=4,
      parts=parts,
    )
  )


def test_batches_of_equal_size_per_width():
  found = by_width([3, 29, 16, 7, 1, 9, 27, 2])
  assert [(batch.width, batch.numbers.tolist()) for batch in found] == [
    (30, [1, 6]),
    (16, [2, 5, 3, 0]),
    (16, [7, 4]),
  ]
  assert found[2].filled.tolist() == [7, 4, 4, 4]
  np.testing.assert_array_equal(found[1].numbers, found[1].filled)


def test_similar_rows_have_the_same_programs():
  programs = set()
  for longest in (187, 189, 190):
    for count in (31, 32, 61, 62):
      lengths = np.full(count, longest)
      for batch in by_width(lengths, batch_tokens=64 * 200):
        programs.add((batch.width, len(batch.filled)))
  assert programs == {(192, 32), (192, 64)}
  # Up to an eighth is added.
  (batch,) = by_width([129], batch_tokens=1)
  assert batch.width == 144
  # There are no positions beyond a table.
  random = 'randomized(max_position=160)'
  for encoding, scheme in (
    ('rope', random),
    ('learned(max_position=160) + rope', f'{random} + standard'),
    ('learned(max_position=160) + rope', 'standard'),
  ):
    (batch,) = by_width([129], scheme, batch_tokens=1, encoding=encoding)
    assert batch.width == 129
