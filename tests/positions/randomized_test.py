"""Tests `lengen_jax/positions/randomized.py`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from tests import helpers

KEY = jax.random.key(0)


def create(max_position, **keys):
  keys = ''.join(f', {k}={v!r}' for k, v in keys.items())
  return positions.create(f'randomized(max_position={max_position}{keys})')


def draw(scheme, index, lengths, key=KEY, train=True):
  """Positions drawn by a compiled scheme, which is faster than eagerly."""
  index, lengths = (jnp.asarray(x, jnp.int32) for x in (index, lengths))
  return np.asarray(_call(scheme, index, lengths, key, train))


@functools.partial(jax.jit, static_argnums=(0, 4))
def _call(scheme, index, lengths, key, train):
  return scheme(index, lengths=lengths, rng=key, train=train)


def chi_square(samples, max_position):
  """Returns chi-squared of equally likely subsets, and degrees of freedom."""
  size = samples.shape[1]
  subsets = list(itertools.combinations(range(max_position), size))
  number = {subset: n for n, subset in enumerate(subsets)}
  counts = np.bincount(
    [number[tuple(row)] for row in samples], minlength=len(subsets)
  )
  expected = len(samples) / len(subsets)
  return np.sum((counts - expected) ** 2 / expected), len(subsets) - 1


@pytest.mark.parametrize(
  'length, max_position', [(1, 1), (8, 8), (8, 9), (8, 2048)]
)
def test_sorted_distinct_and_in_range(length, max_position):
  got = draw(create(max_position), helpers.rows(16, length), [[length]] * 16)
  assert got.dtype == np.int32 and got.shape == (16, length)
  assert (np.diff(got) > 0).all()
  assert got.min() >= 0 and got.max() < max_position
  assert (len(np.unique(got, axis=0)) > 1) == (length < max_position)


def test_every_subset_is_equally_likely():
  for length in range(1, 6):
    lengths = np.full((6000, 1), length)
    samples = draw(create(6), helpers.rows(6000, 6), lengths)[:, :length]
    statistic, freedom = chi_square(samples, 6)
    # Four to five standard deviations either way, and a little more.
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 5
    assert statistic > freedom - 3.5 * freedom**0.5


def test_every_subset_is_equally_likely_in_later_segments():
  index = np.tile([0, 1, 2, 0, 1, 0, 1], (6000, 1))
  lengths = np.tile([3, 3, 3, 2, 2, 2, 2], (6000, 1))
  samples = draw(create(7), index, lengths)
  for part in (slice(0, 3), slice(3, 5), slice(5, 7)):
    statistic, freedom = chi_square(samples[:, part], 7)
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 5
  # Segments are drawn independently of each other.
  same = (samples[:, 3:5] == samples[:, 5:7]).all(1).mean()
  np.testing.assert_allclose(same, 1 / 21, atol=0.01)


def test_the_test_of_uniformity_can_fail():
  rng = np.random.default_rng(0)
  biased = np.sort(rng.integers(0, 4, (6000, 2)) + np.arange(2), 1)
  biased[biased[:, 0] == biased[:, 1]] = [0, 4]
  statistic, freedom = chi_square(biased, 5)
  assert statistic > freedom + 5 * (2 * freedom) ** 0.5 + 5


def test_padding_as_continued_indices_changes_nothing():
  scheme = create(50)
  lengths = [[3], [6], [9]]
  padded = draw(scheme, helpers.rows(3, 12), lengths)
  assert padded.min() >= 0 and padded.max() < 50
  for b, n in ((0, 3), (2, 9)):
    want = draw(scheme, helpers.rows(3, n), [[n]] * 3)
    np.testing.assert_array_equal(padded[b, :n], want[b])


def test_padding_as_new_segments_changes_nothing():
  scheme = create(50)
  short = draw(scheme, helpers.rows(3, 9), [[9]] * 3)
  for rest in (np.arange(3), np.zeros(3, int)):
    index = np.concatenate([helpers.rows(3, 9), np.tile(rest, (3, 1))], 1)
    lengths = np.array([[9] * 9 + [rest.max() + 1] * 3] * 3)
    padded = draw(scheme, index, lengths)
    np.testing.assert_array_equal(padded[:, :9], short)


def test_packed_segments():
  scheme = create(20)
  index = np.array([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]] * 4)
  lengths = np.array([[4] * 4 + [3] * 3 + [5] * 5] * 4)
  got = draw(scheme, index, lengths)
  for part in (slice(0, 4), slice(4, 7), slice(7, 12)):
    assert (np.diff(got[:, part]) > 0).all()
  assert got.min() >= 0 and got.max() < 20
  # Segments of equal length in one row differ.
  same = draw(scheme, np.tile(helpers.rows(4, 3), 4), np.full((4, 12), 3))
  assert len(np.unique(same.reshape(-1, 3), axis=0)) > 10
  # And none depends on what follows.
  short = draw(scheme, index[:, :7], lengths[:, :7])
  np.testing.assert_array_equal(short, got[:, :7])


def test_rows_differ_and_keys_decide():
  scheme = create(10**6)
  args = helpers.rows(4, 5), [[5]] * 4
  first = draw(scheme, *args)
  assert len(np.unique(first, axis=0)) == 4
  np.testing.assert_array_equal(draw(scheme, *args), first)
  assert (draw(scheme, *args, key=jax.random.key(1)) != first).any(1).all()
  # Nor does it matter how many rows there are.
  fewer = draw(scheme, helpers.rows(2, 5), [[5]] * 2)
  np.testing.assert_array_equal(fewer, first[:2])


def test_lengths_of_every_shape_with_and_without_jit():
  scheme = create(10**6)
  index = jnp.asarray(helpers.rows(2, 5))
  want = scheme(index, lengths=jnp.array([[5], [5]]), rng=KEY, train=True)
  for lengths in ([[5], [5]], [[5]], np.full((2, 5), 5)):
    np.testing.assert_array_equal(draw(scheme, index, lengths), want)


def test_draws_can_be_given():
  given = jnp.array([[3, 7, 9]])
  got = create(10).apply({'positions': given}, jnp.arange(3)[None])
  np.testing.assert_array_equal(got, given)


def test_at_test_time_drawn_again_unless_even():
  index = helpers.rows(2, 5)
  again = draw(create(10**6), index, [[5]] * 2, train=False)
  np.testing.assert_array_equal(
    again, draw(create(10**6), index, [[5]] * 2, train=True)
  )
  even = create(9, test='even')
  assert even.draws(True) and not even.draws(False)
  got = even(jnp.asarray(index), lengths=jnp.array([[5], [5]]))
  np.testing.assert_array_equal(got, [[0, 2, 4, 6, 8]] * 2)
  drawn = draw(even, helpers.rows(8, 5), [[5]] * 8, train=True)
  assert len(np.unique(drawn, axis=0)) > 1


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'length, max_position',
  [
    (1, 1),
    (1, 100),
    (2, 100),
    (5, 5),
    (7, 1000),
    (3000, 2**20),
    (4097, 2**20),
    (3000, 2**31 - 1),
    (60_000, 2**20),
    (60_000, 100_003),
  ],
)
def test_even_spacing_in_whole_numbers(length, max_position):
  gaps = max(length - 1, 1)
  want = [t * (max_position - 1) // gaps for t in range(length)]
  got = create(max_position, test='even')(
    jnp.arange(length)[None], lengths=jnp.array([[length]])
  )
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, [want])


def test_even_spacing_per_segment_and_behind_the_end():
  got = create(11, test='even')(
    jnp.array([[0, 1, 2, 0, 1, 2, 3, 4]]),
    lengths=jnp.array([[3, 3, 3, 2, 2, 2, 2, 2]]),
  )
  np.testing.assert_array_equal(got[0, :5], [0, 5, 10, 0, 10])
  assert got.max() <= 10


def test_too_long_a_segment():
  scheme = create(8)
  with pytest.raises(errors.LengthError) as caught:
    scheme(jnp.arange(9)[None], lengths=jnp.array([[9]]), rng=KEY)
  assert '8 positions for a segment of 9' in str(caught.value)
  assert 'max_position=9' in str(caught.value)
  # Padding beyond the range is no segment.
  got = scheme(jnp.arange(12)[None], lengths=jnp.array([[8]]), rng=KEY)
  np.testing.assert_array_equal(got[:, :8], [np.arange(8)])
  # Inside jit the static width is what can be checked.
  with pytest.raises(errors.LengthError, match='segment of 9'):
    draw(scheme, helpers.rows(1, 9), [[9]])


@pytest.mark.parametrize('train', [True, False])
def test_needs_lengths_and_rng(train):
  scheme = create(8)
  index = jnp.arange(4)[None]
  with pytest.raises(errors.LengthError, match='max_position=8.*needs lengths'):
    scheme(index, rng=KEY, train=train)
  with pytest.raises(errors.LengthError, match='max_position=8.*needs rng'):
    scheme(index, lengths=jnp.array([[4]]), train=train)


@pytest.mark.parametrize(
  'keys, value',
  [
    ('', 'max_position of randomized is None; it must be >= 1'),
    ('max_position=0', 'max_position of randomized is 0'),
    ('max_position=-3', 'max_position of randomized is -3'),
    ("max_position=8, test='evne'", "'evne'; did you mean 'even'"),
  ],
)
def test_refuses(keys, value):
  with pytest.raises(errors.SpecError, match=value):
    positions.create(f'randomized({keys})')


def draw_tree(scheme, index, lengths, key=KEY, train=True, num_layers=None):
  index, lengths = (jnp.asarray(x, jnp.int32) for x in (index, lengths))
  return _call_layers(scheme, index, lengths, key, train, num_layers)


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def _call_layers(scheme, index, lengths, key, train, num_layers):
  return scheme(
    index, lengths=lengths, rng=key, train=train, num_layers=num_layers
  )


def test_once_per_batch_equal_lengths_share_their_positions():
  scheme = create(64, draw='batch')
  got = draw(scheme, helpers.rows(4, 6), [[6], [6], [4], [4]])
  np.testing.assert_array_equal(got[0], got[1])
  np.testing.assert_array_equal(got[2, :4], got[3, :4])
  again = draw(scheme, helpers.rows(4, 6), [[6]] * 4, key=jax.random.key(9))
  assert (again != got).any()
  single = draw(create(64), helpers.rows(4, 6), [[6]] * 4)
  assert len(np.unique(single, axis=0)) == 4
  fractional = create(64, draw='batch', fractional=True)
  got = draw(fractional, helpers.rows(4, 6), [[6]] * 4)
  np.testing.assert_array_equal(got, np.tile(got[:1], (4, 1)))


def test_every_layer_draws_for_itself():
  scheme = create(64, draw='layer')
  got = np.asarray(
    draw_tree(scheme, helpers.rows(2, 6), [[6]] * 2, num_layers=3)
  )
  assert got.shape == (3, 2, 6)
  assert (np.diff(got) > 0).all() and got.min() >= 0 and got.max() < 64
  np.testing.assert_array_equal(got[:, 0], got[:, 1])
  assert len(np.unique(got[:, 0], axis=0)) == 3
  # At test time nothing is drawn, and all layers share.
  even = create(64, draw='layer', test='even')
  assert draw_tree(even, helpers.rows(2, 6), [[6]] * 2, train=False).shape == (
    2,
    6,
  )


def test_a_draw_per_layer_needs_their_number():
  with pytest.raises(errors.LengthError, match='needs num_layers'):
    draw_tree(create(64, draw='layer'), helpers.rows(1, 4), [[4]])


@pytest.mark.parametrize('length, max_position', [(1, 1), (2, 2), (6, 7)])
def test_distances_are_sorted_and_begin_with_zero(length, max_position):
  scheme = create(max_position, mode='distances')
  got = draw_tree(scheme, helpers.rows(64, length), [[length]] * 64)
  assert isinstance(got, positions.Distances)
  r = np.asarray(got.r)
  assert r.dtype == np.int32 and r.shape == (64, length)
  assert (r[:, 0] == 0).all() and (np.diff(r) > 0).all()
  assert r.max() < max_position
  assert (len(np.unique(r, axis=0)) > 1) == (1 < length < max_position)


def test_every_subset_of_distances_is_equally_likely():
  scheme = create(6, mode='distances')
  got = draw_tree(scheme, helpers.rows(6000, 4), [[4]] * 6000)
  statistic, freedom = chi_square(np.asarray(got.r)[:, 1:] - 1, 5)
  assert freedom == 9 and statistic < 28


def test_distances_of_packed_and_padded_rows():
  scheme = create(32, mode='distances')
  index = [[0, 1, 2, 0, 1, 0, 1]]
  lengths = [[3, 3, 3, 2, 2, 1, 1]]
  got = draw_tree(scheme, index, lengths)
  r = np.asarray(got.r)[0]
  assert (r[[0, 3, 5]] == 0).all() and 0 < r[1] < r[2] and 0 < r[4] < 32
  np.testing.assert_array_equal(got.start, [[0, 0, 0, 3, 3, 5, 5]])
  wider = draw_tree(scheme, [[*index[0], 2, 3]], [[*lengths[0], 1, 1]])
  np.testing.assert_array_equal(wider.r[0, :6], r[:6])


def test_even_distances():
  scheme = create(64, mode='distances', test='even')
  got = draw_tree(scheme, helpers.rows(1, 8), [[8]], train=False)
  np.testing.assert_array_equal(got.r, [np.arange(8) * 9])


def test_given_distances():
  scheme = create(64, mode='distances')
  r = jnp.array([[0, 3, 7]])
  got = scheme.apply(
    {'distances': r}, jnp.arange(3)[None], lengths=jnp.array([[3]])
  )
  want = [[[0, -3, -7], [3, 0, -3], [7, 3, 0]]]
  np.testing.assert_array_equal(got.to(got), want)


@pytest.mark.parametrize('n', [1, 5, 16, 40])
def test_golden_fractional_positions(n, assert_close):
  golden = np.load(helpers.GOLDEN / 'arithmetic' / 'rfs.npz')
  u = golden[f'u_{n}']
  # Padding does not enter the sort.
  padded = np.pad(u, ((0, 0), (0, 3)), constant_values=-1)
  scheme = create(int(golden[f'max_{n}']), fractional=True)
  got = scheme.apply(
    {'uniform': jnp.asarray(padded)},
    helpers.rows(2, n + 3),
    lengths=jnp.full((2, n + 3), n),
  )
  assert got.dtype == jnp.float32
  assert_close(got[:, :n], golden[f'positions_{n}'], 1e-6)


def test_fractional_positions():
  scheme = create(8, fractional=True)
  # The range does not bound the length.
  got = draw(scheme, helpers.rows(500, 16), [[12]] * 500)
  short = draw(scheme, helpers.rows(500, 12), [[12]] * 500)
  np.testing.assert_array_equal(got[:, :12], short)
  assert (np.diff(short) >= 0).all() and short.min() >= 0 and short.max() < 8
  mean = 8 * np.arange(1, 13) / 13
  assert np.abs(short.mean(0) - mean).max() < 0.25
  even = create(8, fractional=True, test='even')
  got = draw(even, helpers.rows(1, 12), [[12]], train=False)
  np.testing.assert_allclose(got, mean[None], rtol=1e-6)
  index = np.array([[0, 1, 2, 0, 1, 2]] * 50)
  packed = draw(scheme, index, np.full((50, 6), 3))
  first = draw(scheme, index[:, :3], np.full((50, 3), 3))
  np.testing.assert_array_equal(packed[:, :3], first)
  assert (np.diff(packed[:, 3:]) >= 0).all()


def test_distances_are_not_fractional():
  with pytest.raises(errors.SpecError, match="requires mode='positions'"):
    create(8, fractional=True, mode='distances')
