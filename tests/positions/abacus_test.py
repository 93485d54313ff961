"""Tests `lengen_jax/positions/abacus.py`.

Golden arrays: `golden/arithmetic/README.md`, file abacus.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from tests import helpers

GOLDEN = np.load(helpers.GOLDEN / 'arithmetic' / 'abacus.npz')
KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnames=('spec', 'train'))
def draw(spec, index, tokens, segment_ids=None, *, train=True):
  return positions.create(spec)(
    index, tokens=tokens, segment_ids=segment_ids, rng=KEY, train=train
  )


@pytest.mark.parametrize('n', [1, 2, 3, 5, 8, 13, 20])
def test_golden(n):
  ids, want = GOLDEN[f'ids_{n}'], GOLDEN[f'positions_{n}']
  offset = max(int(GOLDEN[f'k_{n}']), 0)
  index = helpers.rows(*ids.shape)
  scheme = positions.create('abacus')
  got = scheme.apply({'offset': jnp.full((4, 1), offset)}, index, tokens=ids)
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, want)
  plain = np.where(want > 0, want - offset, 0)
  np.testing.assert_array_equal(scheme(index, tokens=ids), plain)


@pytest.mark.parametrize('name', ['packed_eos', 'packed_bare'])
def test_golden_of_packed_rows(name):
  """A number ends at the border of its segment."""
  ids, segments, want = (
    jnp.asarray(GOLDEN[f'{name}_{what}'][None], jnp.int32)
    for what in ('ids', 'segment_ids', 'positions_by_segment')
  )
  scheme = positions.create('abacus')
  index = positions.segment_positions(segments)
  # The offset of the row is that of its first digit.
  k = int(want[0][jnp.argmax(want[0] > 0)]) - 1
  got = scheme.apply({'offset': jnp.full((1, 1), k)}, index, tokens=ids)
  np.testing.assert_array_equal(got, want)
  # Segment ids say the same as indices.
  again = scheme.apply(
    {'offset': jnp.full((1, 1), k)},
    helpers.rows(*ids.shape),
    tokens=ids,
    segment_ids=segments,
  )
  np.testing.assert_array_equal(again, want)


def test_golden_of_odd_rows():
  ids = jnp.asarray(GOLDEN['odd_ids'][None], jnp.int32)
  got = positions.create('abacus')(helpers.rows(*ids.shape), tokens=ids)
  np.testing.assert_array_equal(got, GOLDEN['odd_positions'][None])


def test_other_digits():
  tokens = jnp.array([[7, 8, 4, 7, 0]])
  got = positions.create('abacus(digits=(7, 8))')(
    jnp.arange(5)[None], tokens=tokens
  )
  np.testing.assert_array_equal(got, [[1, 2, 0, 1, 0]])


def test_offsets_are_uniform_per_row_and_segment():
  tokens = np.full((600, 6), 5)
  index = jnp.tile(jnp.array([0, 1, 2, 0, 1, 2]), (600, 1))
  got = np.asarray(draw('abacus(max_offset=3)', index, tokens))
  np.testing.assert_array_equal(np.diff(got)[:, [0, 1, 3, 4]], 1)
  first, second = got[:, 0] - 1, got[:, 3] - 1
  for offset in (first, second):
    counts = np.bincount(offset, minlength=4)
    assert len(counts) == 4 and counts.min() > 110
  assert abs((first == second).mean() - 1 / 4) < 0.06


def test_neither_padding_nor_later_tokens_matter():
  tokens = np.random.default_rng(0).integers(2, 14, (3, 12))
  whole = draw('abacus', helpers.rows(3, 12), tokens)
  short = draw('abacus', helpers.rows(3, 7), tokens[:, :7])
  np.testing.assert_array_equal(whole[:, :7], short)
  np.testing.assert_array_equal(
    draw('abacus', helpers.rows(2, 12), tokens[:2]), whole[:2]
  )


def test_packed_rows_equal_single_ones():
  """With draws of their own, but without an offset equal positions."""
  tokens = np.array([[5, 6, 7, 8, 4, 5]])
  index = jnp.array([[0, 1, 2, 0, 1, 2]])
  got = draw('abacus', index, tokens, train=False)
  for part in (slice(0, 3), slice(3, 6)):
    alone = draw('abacus', index[:, :3], tokens[:, part], train=False)
    np.testing.assert_array_equal(got[:, part], alone)


def test_extent():
  scheme = positions.create('abacus(max_offset=9)')
  assert scheme.extent(20, train=True) == 30
  assert scheme.extent(20, train=False) == 21


@pytest.mark.parametrize(
  'spec, message',
  [
    ('abacus(digits=())', 'digits of abacus is'),
    ("abacus(digits=('1',))", 'must be token ids'),
    ('abacus(max_offset=-1)', 'max_offset of abacus is -1'),
  ],
)
def test_refuses_keys(spec, message):
  with pytest.raises(errors.SpecError, match=message):
    positions.create(spec)


@pytest.mark.parametrize(
  'given, message',
  [
    ({}, r'abacus needs tokens, int32 \[B, L\]'),
    ({'tokens': np.zeros((2, 4), int)}, r'\[2, 4\]; .* \[B, L\] = \[2, 5\]'),
    ({'tokens': np.zeros((2, 5))}, r'tokens are float\d\d \[2, 5\]'),
    (
      {'tokens': np.zeros((2, 5), int), 'segment_ids': np.zeros((1, 5), int)},
      r'segment_ids are int\d\d \[1, 5\]',
    ),
  ],
)
def test_refuses_other_tokens(given, message):
  with pytest.raises(errors.ConfigError, match=message):
    positions.create('abacus')(helpers.rows(2, 5), **given)
