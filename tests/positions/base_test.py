"""Tests `lengen_jax/positions/base.py` and the standard scheme."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions, testing
from lengen_jax.positions import base


@dataclasses.dataclass(frozen=True)
class Coin(base.PositionScheme):
  """Moves a row by 100 or not, while training; plain at test time."""

  random = True
  max_position = 200

  def draw(self, rng, segment_positions, lengths):
    return {'coin': jax.random.bernoulli(rng, 0.5, segment_positions.shape)}

  def apply(self, draws, segment_positions, *, lengths=None):
    return segment_positions + 100 * draws['coin']

  def at_test(self, segment_positions, lengths):
    return segment_positions


@pytest.mark.parametrize(
  'ids, want',
  [
    ([1, 1, 1, 1], [0, 1, 2, 3]),
    ([1, 1, 2, 2], [0, 1, 0, 1]),
    ([3, 1, 1, 2], [0, 0, 1, 0]),
    # Padding is a segment like any other, and an id may come again.
    ([1, 1, 0, 0], [0, 1, 0, 1]),
    ([1, 2, 1, 1], [0, 0, 0, 1]),
    ([0], [0]),
  ],
)
def test_segment_positions(ids, want):
  got = positions.segment_positions(jnp.array([ids]))
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, [want])


@pytest.mark.parametrize('ids', [[1, 1, 2], np.array([1, 1, 2])])
def test_segment_positions_of_other_shapes(ids):
  with pytest.raises(
    errors.ConfigError, match=r'an array \[B, L\], got .*1, 1'
  ):
    positions.segment_positions(ids)


def test_segment_positions_of_rows_are_independent():
  ids = np.random.default_rng(0).integers(0, 3, (5, 40))
  want = np.zeros_like(ids)
  for b, n in np.ndindex(5, 40):
    same = n > 0 and ids[b, n] == ids[b, n - 1]
    want[b, n] = want[b, n - 1] + 1 if same else 0
  got = jax.jit(positions.segment_positions)(jnp.asarray(ids))
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
  'ids, want',
  [
    ([1, 1, 1, 1], [4, 4, 4, 4]),
    ([1, 1, 2, 2, 2], [2, 2, 3, 3, 3]),
    ([3, 1, 1, 0], [1, 2, 2, 1]),
    # An id that comes again begins another segment.
    ([1, 1, 2, 1, 1, 1], [2, 2, 1, 3, 3, 3]),
    ([0], [1]),
  ],
)
def test_segment_lengths(ids, want):
  got = jax.jit(positions.segment_lengths)(jnp.array([ids, ids]))
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, [want, want])


def test_segment_lengths_end_where_positions_do():
  ids = jnp.asarray(np.random.default_rng(1).integers(0, 3, (5, 40)))
  index, lengths = (
    np.asarray(f(ids))
    for f in (positions.segment_positions, positions.segment_lengths)
  )
  for row, n in zip(index, lengths, strict=True):
    last = np.append(np.flatnonzero(row == 0)[1:], 40) - 1
    np.testing.assert_array_equal(row[last] + 1, n[last])
    np.testing.assert_array_equal(np.repeat(n[last], n[last]), n)


def test_segment_starts():
  index = jnp.array([[0, 1, 2, 0, 1, 0]])
  np.testing.assert_array_equal(
    base.segment_starts(index), [[0, 0, 0, 3, 3, 5]]
  )


def test_draws_per_token_depend_on_row_and_column_only():
  def data(*shape, **kwargs):
    draw, rng = jax.random.key_data, jax.random.key(0)
    return np.asarray(base.per_token(draw, rng, shape, **kwargs))

  wide = data(3, 8)
  assert len(np.unique(wide.reshape(24, -1), axis=0)) == 24
  np.testing.assert_array_equal(data(2, 5), wide[:2, :5])
  same = data(3, 8, same_rows=True)
  np.testing.assert_array_equal(same, np.stack([wide[0]] * 3))


def test_standard():
  scheme = positions.create('standard')
  index = jnp.array([[0, 1, 2, 0, 1]])
  np.testing.assert_array_equal(scheme(index), index)
  np.testing.assert_array_equal(scheme(index, train=True), index)
  assert scheme(index).dtype == jnp.int32
  assert scheme.contiguous and not scheme.random and not scheme.fractional


def test_a_scheme_draws_while_training_only():
  scheme = Coin()
  index = jnp.arange(16)[None]
  np.testing.assert_array_equal(scheme(index), index)
  drawn = scheme(index, rng=jax.random.key(0), train=True)
  assert set(np.unique(drawn - index)) == {0, 100}
  np.testing.assert_array_equal(
    scheme.apply({'coin': jnp.ones((1, 16), int)}, index), index + 100
  )


def test_a_drawing_scheme_needs_rng():
  with pytest.raises(errors.LengthError, match='coin draws .* needs rng'):
    Coin()(jnp.arange(4)[None], train=True)


def test_length_is_checked_on_the_host():
  scheme = functools.partial(Coin(), rng=jax.random.key(0), train=True)
  scheme(jnp.arange(200)[None])
  with pytest.raises(errors.LengthError) as caught:
    scheme(jnp.arange(201)[None])
  assert '200 positions for a segment of 201' in str(caught.value)
  assert 'max_position=201' in str(caught.value)
  # What is true of the segments counts, not the width of the batch.
  scheme(jnp.arange(300)[None], lengths=jnp.array([[150]]))
  scheme(jnp.arange(300)[None], lengths=np.array([[150]]))
  with pytest.raises(errors.LengthError, match='segment of 250'):
    scheme(jnp.arange(100)[None], lengths=jnp.array([[250]]))
  # Nothing is drawn, and positions have no end.
  Coin()(jnp.arange(201)[None])


def test_lengths_may_be_constants_of_a_jitted_function():
  lengths = jnp.array([[2]])
  got = jax.jit(lambda x: Coin()(x, lengths=lengths))(jnp.arange(4)[None])
  np.testing.assert_array_equal(got, [[0, 1, 2, 3]])


def test_schemes_are_hashable_and_compared_by_value():
  one, other = (positions.create('randomized(max_position=9)') for _ in 'ab')
  assert one == other and hash(one) == hash(other)
  assert one != positions.create('randomized(max_position=8)')


def plain_distances(r, index, start, k_index):
  """Signed distances of all pairs, one at a time."""
  batch, (length,) = len(r), r[0].shape
  out = np.zeros((batch, index.shape[1], k_index.shape[1]))
  for b in range(batch):
    for a, i in enumerate(index[b]):
      for c, j in enumerate(k_index[b]):
        place = min(start[b][a] + abs(i - j), length - 1)
        out[b, a, c] = np.sign(i - j) * r[b][place]
  return out


def test_distances_of_pairs():
  r = np.array([[0, 2, 5, 0, 4, 9], [0, 1, 2, 3, 30, 31]])
  index = np.tile(np.arange(6), (2, 1))
  start = np.array([[0, 0, 0, 3, 3, 3], [0] * 6])
  whole = positions.Distances(jnp.asarray(r), start=jnp.asarray(start))
  want = plain_distances(r, index, start, index)
  np.testing.assert_array_equal(whole.to(whole), want)
  # Pairs within the second segment of the first row.
  np.testing.assert_array_equal(
    want[0, 3:, 3:], [[0, -4, -9], [4, 0, -4], [9, 4, 0]]
  )


@pytest.mark.parametrize(
  'start', [None, [[0, 0, 0, 3, 3, 3], [0, 1, 1, 1, 4, 4]]]
)
def test_distances_of_some_tokens(start):
  r = np.array([[0, 2, 5, 0, 11, 20], [0, 0, 2, 3, 0, 31]])
  start = None if start is None else jnp.array(start)
  all_of_them = positions.Distances(jnp.asarray(r), start=start)
  index = np.array([[4, 1], [5, 2]])
  some = positions.take(all_of_them, jnp.asarray(index))
  got = some.to(all_of_them.at(jnp.arange(6)[None]))
  whole = np.asarray(all_of_them.to(all_of_them))
  want = np.stack([whole[b, index[b]] for b in range(2)])
  np.testing.assert_array_equal(got, want)


def test_taking_positions():
  given = jnp.array([[0.5, 1.5, 9.0]])
  got = positions.take(given, jnp.array([[2], [0]]))
  np.testing.assert_array_equal(got, [[9.0], [0.5]])


def test_distances_pass_through_jit_and_scan():
  r = jnp.array([[0, 2, 5]])
  whole = positions.Distances(r)
  want = whole.to(whole)
  got = jax.jit(lambda d: d.to(d))(whole)
  np.testing.assert_array_equal(got, want)
  layers = positions.Distances(jnp.stack([r, 2 * r]))
  _, got = jax.lax.scan(lambda c, d: (c, d.to(d)), 0, layers)
  np.testing.assert_array_equal(got, jnp.stack([want, 2 * want]))


@pytest.mark.some(3)
@pytest.mark.parametrize('spec', testing.scheme_specs())
def test_positions_have_32_bits(spec):
  """With 64-bit types, and with narrow integers."""
  scheme = positions.create(spec)
  key, index = jax.random.key(0), np.arange(12)[None]
  seen = {'tokens': index, 'roles': index[None]}

  def call(index, lengths):
    return [
      scheme(index, lengths=lengths, rng=key, train=train, num_layers=2, **seen)
      for train in (True, False)
    ]

  want = call(jnp.asarray(index, jnp.int32), jnp.full((1, 1), 12, jnp.int32))
  with jax.enable_x64(True):
    found = call(jnp.asarray(index), jnp.full((1, 1), 12))
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(found)}
    assert dtypes <= {'int32', 'float32'}
  narrow = call(index.astype(np.uint8), [[12]])
  jax.tree.map(np.testing.assert_array_equal, narrow, want)


@pytest.mark.parametrize(
  'found, got',
  [
    (None, 'None; positions must be an array'),
    ([[0, 1, 2]], r'\[\[0, 1, 2\]\]; positions must be an array'),
    (np.arange(3), r'positions of shape \(3,\) for tokens of shape \(1, 3\)'),
    (np.sqrt(np.arange(3))[None], 'float64; positions must be int32, unless'),
    (np.arange(3, dtype=np.float16)[None], 'float16; .* be int32 or float32'),
  ],
)
def test_refuses_what_are_no_positions(found, got):
  class Own(positions.PositionScheme):
    def apply(self, draws, i, *, lengths=None):
      return found

  message = f'own returned {got}'
  with pytest.raises(errors.ConfigError, match=message):
    Own()(np.arange(3)[None])


def test_positions_of_other_integers_and_of_one_row():
  class Own(positions.PositionScheme):
    def apply(self, draws, i, *, lengths=None):
      return i[:1].astype(jnp.uint8)

  found = Own()(np.arange(6).reshape(2, 3))
  assert found.dtype == jnp.int32
  np.testing.assert_array_equal(found, [[0, 1, 2]])
