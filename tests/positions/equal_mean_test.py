"""Tests `lengen_jax/positions/equal_mean.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from tests import helpers

EXPONENTIAL = 'equal_mean'
BETA = "equal_mean(distribution='beta', max_position=48)"
both = pytest.mark.parametrize('spec', [EXPONENTIAL, BETA])


@functools.partial(jax.jit, static_argnums=(0, 4))
def run(scheme, index, lengths, key, train=True):
  return scheme(index, lengths=lengths, rng=key, train=train)


@functools.partial(jax.jit, static_argnums=0)
def draw(scheme, index, lengths, key):
  return scheme.draw(key, index, lengths)


def ends(spec, n, count=6000):
  """Ends n' of many segments of n tokens, one to a row."""
  draws = draw(
    positions.create(spec),
    jnp.zeros((count, 1), jnp.int32),
    jnp.full((count, 1), n),
    jax.random.key(n),
  )
  assert set(draws) == {'last'} and draws['last'].shape == (count, 1)
  return np.asarray(draws['last'][:, 0], np.float64)


def given(spec, last, lengths, width):
  """Positions from an end per row."""
  scheme = positions.create(spec)
  index = helpers.rows(len(last), width)
  draws = {'last': jnp.array(last, jnp.float32)[:, None]}
  lengths = jnp.broadcast_to(jnp.array(lengths)[:, None], index.shape)
  return np.asarray(jax.jit(scheme.apply)(draws, index, lengths=lengths))


@both
def test_given_ends(spec):
  lengths = [5, 5, 2, 12, 3]
  last = [6.0, 4.0, 30.0, 0.5, 0.0]
  got = given(spec, last, lengths, 12)
  assert got.dtype == np.float32 and got.shape == (5, 12)
  for row, end, n in zip(got, last, lengths, strict=True):
    want = np.linspace(0, 1, n) * end
    np.testing.assert_allclose(row[:n], want, rtol=1e-6)
    # Both ends are taken, to the last bit.
    assert row[0] == 0 and row[n - 1] == end
  # Padding goes on at the same pace.
  assert np.isfinite(got).all()
  np.testing.assert_array_equal(got[1], np.arange(12))


@both
def test_a_single_token_is_at_0(spec):
  got = given(spec, [7.0, 0.0], [1, 1], 4)
  np.testing.assert_array_equal(got[:, 0], 0)
  assert np.isfinite(got).all()
  drawn = run(
    positions.create(spec),
    helpers.rows(3, 1),
    jnp.ones((3, 1), jnp.int32),
    jax.random.key(0),
  )
  np.testing.assert_array_equal(drawn, np.zeros((3, 1)))


def distance_to(distribution, values):
  """Largest difference to a distribution function, times sqrt(count)."""
  x = np.sort(values)
  steps = np.arange(len(x) + 1) / len(x)
  f = distribution(x)
  apart = max(abs(f - steps[1:]).max(), abs(f - steps[:-1]).max())
  return apart * len(x) ** 0.5


@pytest.mark.parametrize('n', [1, 12, 500])
def test_exponential(n):
  last = ends(EXPONENTIAL, n)
  # Four standard deviations.
  np.testing.assert_allclose(last.mean(), n, rtol=4 / len(last) ** 0.5)
  assert last.min() >= 0
  assert distance_to(lambda x: 1 - np.exp(-x / n), last) < 1.95
  # With the mean of another length it is not this distribution.
  assert distance_to(lambda x: 1 - np.exp(-x / (1.1 * n)), last) > 1.95


@pytest.mark.parametrize(
  'alpha, n, max_position', [(1.0, 12, 48), (1.0, 20, 48), (3.0, 12, 48)]
)
def test_beta(alpha, n, max_position):
  spec = (
    f"equal_mean(distribution='beta', max_position={max_position}, "
    f'alpha={alpha})'
  )
  last = ends(spec, n)
  # alpha / (alpha + beta) is the mean, as a part of max_position.
  mean = n / max_position
  total = alpha / mean
  deviation = max_position * (mean * (1 - mean) / (total + 1)) ** 0.5
  bound = 4 * deviation / len(last) ** 0.5
  np.testing.assert_allclose(last.mean(), n, atol=bound)
  np.testing.assert_allclose(last.std(), deviation, rtol=0.06)
  assert 0 <= last.min() and last.max() <= max_position
  if alpha == 1:
    beta = total - 1
    assert (
      distance_to(lambda x: 1 - (1 - x / max_position) ** beta, last) < 1.95
    )


def test_beta_of_a_segment_as_long_as_the_range():
  last = ends(BETA, 48)
  assert np.isfinite(last).all() and last.max() <= 48
  np.testing.assert_allclose(last.mean(), 48, rtol=0.01)


@both
def test_the_mean_end_is_that_of_each_segment(spec):
  """Packed: a length and a draw to each segment, constant within it."""
  scheme = positions.create(spec)
  sizes = (4, 1, 9, 4)
  count = 2000
  index = np.tile(np.concatenate([np.arange(n) for n in sizes]), (count, 1))
  lengths = np.tile(np.repeat(sizes, sizes), (count, 1))
  key = jax.random.key(3)
  last = np.asarray(draw(scheme, index, lengths, key)['last'])
  draws = {'last': jnp.asarray(last)}
  got = np.asarray(
    scheme.apply(draws, jnp.asarray(index), lengths=jnp.asarray(lengths))
  )
  start, first = 0, []
  for n in sizes:
    part = np.s_[:, start : start + n]
    end = last[:, start]
    assert (last[part] == end[:, None]).all()
    want = np.linspace(0, 1, n) * end[:, None].astype(np.float64)
    np.testing.assert_allclose(got[part], want, rtol=2e-6)
    assert (np.diff(got[part]) >= 0).all()
    # At most an exponential's deviation, five times.
    np.testing.assert_allclose(end.mean(), n, rtol=5 / count**0.5)
    first.append(end)
    start += n
  others = np.corrcoef(first) - np.eye(len(sizes))
  assert np.abs(others).max() < 0.1


@both
def test_padded_equals_unpadded(spec):
  scheme = positions.create(spec)
  lengths = jnp.array([[5], [9], [12], [12]])
  key = jax.random.key(3)
  short = np.asarray(run(scheme, helpers.rows(4, 12), lengths, key))
  assert len(np.unique(short[:, 1])) == 4
  for rest in (np.arange(12, 20), np.arange(8), np.zeros(8, int)):
    index = np.concatenate([helpers.rows(4, 12), np.tile(rest, (4, 1))], 1)
    long = np.asarray(run(scheme, jnp.int32(index), lengths, key))
    for row, (n,) in enumerate(np.asarray(lengths)):
      np.testing.assert_array_equal(long[row, :n], short[row, :n])
  np.testing.assert_array_equal(
    run(scheme, helpers.rows(4, 12), lengths, key), short
  )
  other = run(scheme, helpers.rows(4, 12), lengths, jax.random.key(4))
  assert (other[:, 1] != short[:, 1]).all()


@both
def test_plain_at_test_time(spec):
  scheme = positions.create(spec)
  assert scheme.draws(True) and not scheme.draws(False)
  assert scheme.fractional and scheme.needs_lengths
  assert not scheme.contiguous and not scheme.interpolates
  index = jnp.array([[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 5]])
  got = scheme(index, lengths=jnp.array([[4, 4, 4, 4, 2, 2], [6] * 6]))
  assert got.dtype == jnp.float32
  np.testing.assert_array_equal(got, index)


def test_a_segment_beyond_the_range_of_beta():
  scheme = positions.create(BETA)
  lengths = jnp.full((1, 49), 49)
  with pytest.raises(errors.LengthError, match='segment of 49') as caught:
    scheme(
      helpers.rows(1, 49), lengths=lengths, rng=jax.random.key(0), train=True
    )
  assert 'max_position=49' in str(caught.value)


@both
def test_needs_lengths_and_rng(spec):
  scheme = positions.create(spec)
  for train in (True, False):
    with pytest.raises(errors.LengthError, match='needs lengths'):
      scheme(helpers.rows(1, 4), rng=jax.random.key(0), train=train)
  with pytest.raises(errors.LengthError, match='needs rng'):
    scheme(helpers.rows(1, 4), lengths=jnp.full((1, 4), 4), train=True)


@pytest.mark.parametrize(
  'keys, message',
  [
    ("distribution='normal'", "'normal'; valid: beta, exponential"),
    ("distribution='exponent'", "did you mean 'exponential'"),
    ("distribution='beta'", "requires max_position if distribution='beta'"),
    ('max_position=48', 'accepts it only then'),
    (
      "distribution='beta', max_position=48, alpha=0.",
      'alpha of equal_mean is 0.0; it must be > 0',
    ),
    ('alpha=-1.', 'alpha of equal_mean is -1.0'),
  ],
)
def test_refuses(keys, message):
  with pytest.raises(errors.SpecError, match=message):
    positions.create(f'equal_mean({keys})')


@pytest.mark.parametrize('max_position', [0, -5])
def test_refuses_an_empty_range(max_position):
  with pytest.raises(errors.SpecError, match=f'max_position.*{max_position}'):
    positions.create(
      f"equal_mean(distribution='beta', max_position={max_position})"
    )
