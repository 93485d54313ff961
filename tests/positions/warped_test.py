"""Tests `lengen_jax/positions/warped.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from lengen_jax.positions import warped
from tests import helpers

PLAIN, HEAD, TAIL = range(3)
SCHEMES = ['head_warp', 'tail_warp', 'head_tail_warp']
ALPHAS = (0.4, 0.5, 0.6, 0.7, 0.8)
# In float64, from the formulas.
SKEWS = {
  'sqrt': lambda x: x**0.5,
  'log': lambda x: np.log10(1 + 9 * x),
  'sine': lambda x: np.sin(np.pi * x / 2),
  'beta(2,5)': lambda x: 1 - (1 - x) ** 6 - 6 * x * (1 - x) ** 5,
}
all_schemes = pytest.mark.parametrize('name', SCHEMES)
all_skews = pytest.mark.parametrize('skew', SKEWS)


def create(name, train_length=12, **keys):
  keys = ''.join(f', {key}={value!r}' for key, value in keys.items())
  return positions.create(f'{name}(train_length={train_length}{keys})')


@functools.partial(jax.jit, static_argnums=(0, 4))
def run(scheme, index, lengths, key, train=True):
  return scheme(index, lengths=lengths, rng=key, train=train)


def given(scheme, mode, alpha, index, lengths):
  """Positions from a mode and an alpha per row."""
  draws = {
    'mode': jnp.array(mode)[:, None],
    'alpha': jnp.array(alpha, jnp.float32)[:, None],
  }
  lengths = jnp.broadcast_to(lengths, index.shape)
  return np.asarray(scheme.apply(draws, index, lengths=lengths))


def draw(scheme, count=6000, length=12, seed=0):
  lengths = jnp.full((count, length), length)
  draws = jax.jit(scheme.draw)(
    jax.random.key(seed), helpers.rows(count, length), lengths
  )
  return {name: np.asarray(values) for name, values in draws.items()}


@all_skews
def test_given_draws(skew):
  scheme = create('head_tail_warp', skew=skew)
  index = np.arange(512)
  modes = [PLAIN, HEAD, HEAD, TAIL, TAIL, TAIL, TAIL]
  alphas = [0.4, 0.4, 1.0, 0.4, 0.4, 0.4, 0.4]
  lengths = np.array([512, 512, 12, 1, 2, 12, 512])
  got = given(scheme, modes, alphas, helpers.rows(7, 512), lengths[:, None])
  assert got.dtype == np.float32
  np.testing.assert_array_equal(got[0], index)
  np.testing.assert_allclose(got[1], 0.4 * index, rtol=1e-6)
  np.testing.assert_array_equal(got[2], index)
  for row, n in zip(got[3:], lengths[3:], strict=True):
    want = n * SKEWS[skew](index[:n] / n)
    np.testing.assert_allclose(row[:n], want, rtol=1e-5, atol=4e-6 * n)


@all_schemes
def test_every_scheme_takes_every_mode(name):
  """Draws decide, not the class: one formula for all of them."""
  got = given(create(name), [0, 1, 2], [0.5] * 3, helpers.rows(3, 4), 4)
  want = [[0, 1, 2, 3], [0, 0.5, 1, 1.5], 4 * np.sqrt([0, 0.25, 0.5, 0.75])]
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_longest_and_the_last_gaps():
  """Figures of the square root and of Beta(2, 5) at 512 tokens."""
  gaps = {
    skew: np.diff(
      given(
        create('tail_warp', skew=skew), [TAIL], [1], helpers.rows(1, 512), 512
      )[0]
    )
    for skew in ('sqrt', 'beta(2,5)')
  }
  np.testing.assert_allclose(gaps['sqrt'].max(), 22.627, atol=1e-3)
  np.testing.assert_allclose(gaps['sqrt'][-1], 0.5007, atol=1e-4)
  np.testing.assert_allclose(gaps['beta(2,5)'].max(), 2.4576, atol=1e-3)
  assert gaps['beta(2,5)'][-1] < 1e-4


@all_skews
def test_skews(skew):
  f = warped.skew_function(skew)
  x = np.linspace(0, 1, 201)
  values = np.asarray(f(jnp.float32(x)))
  np.testing.assert_allclose(values, SKEWS[skew](x), atol=5e-6)
  assert values[0] == 0
  np.testing.assert_allclose(values[-1], 1, rtol=1e-6)
  # So close to 1 the Beta distribution is flat in float32.
  assert (np.diff(values) >= 0).all()
  assert (np.diff(values[:181]) > 0).all()
  if skew != 'beta(2,5)':
    assert (np.diff(SKEWS[skew](x), 2) < 0).all()
    assert (np.diff(values[::10].astype(np.float64), 2) < 0).all()


@pytest.mark.parametrize('skew', ['beta(2, 5)', 'beta(2.0,5.)', 'beta(2,5)'])
def test_beta_may_be_written_in_several_ways(skew):
  x = jnp.float32([0.1, 0.3, 0.9])
  np.testing.assert_allclose(
    warped.skew_function(skew)(x), SKEWS['beta(2,5)'](np.float64(x)), atol=2e-6
  )


def test_beta_of_other_numbers():
  x = np.linspace(0, 1, 11)
  for skew, want in (
    ('beta(1,3)', 1 - (1 - x) ** 3),
    ('beta(2,1)', x**2),
    ('beta(.5,.5)', 2 / np.pi * np.arcsin(np.sqrt(x))),
  ):
    got = warped.skew_function(skew)(jnp.float32(x))
    np.testing.assert_allclose(got, want, atol=5e-6)


@pytest.mark.parametrize(
  'name, keys, parts',
  [
    ('head_warp', {}, [0.7, 0.3, 0]),
    ('tail_warp', {}, [0.7, 0, 0.3]),
    ('head_tail_warp', {}, [0.7, 0.15, 0.15]),
    ('head_warp', {'fraction': 1.0}, [0, 1, 0]),
    ('tail_warp', {'fraction': 0.5}, [0.5, 0, 0.5]),
    ('head_tail_warp', {'fraction': 0.5}, [0, 0.5, 0.5]),
    ('head_tail_warp', {'fraction': 0.0}, [1, 0, 0]),
  ],
)
def test_how_often_is_warped(name, keys, parts):
  draws = draw(create(name, **keys), length=3)
  mode, alpha = draws['mode'][:, 0], draws['alpha'][:, 0]
  got = np.array([(mode == m).mean() for m in range(3)])
  # Four standard deviations.
  bound = 4 * (np.multiply(parts, np.subtract(1, parts)) / len(mode)) ** 0.5
  assert (abs(got - parts) <= bound).all()
  # One factor is as likely as the other, whatever the mode.
  for m in np.unique(mode):
    found, times = np.unique(alpha[mode == m], return_counts=True)
    np.testing.assert_allclose(found, ALPHAS, rtol=1e-6)
    expected = times.sum() / 5
    assert ((times - expected) ** 2 / expected).sum() < 20


def test_one_factor_or_several():
  one = draw(create('head_warp', alpha=1 / 6), count=50)
  np.testing.assert_array_equal(one['alpha'], np.float32(1 / 6))
  two = draw(create('head_warp', alpha=(0.25, 1.0)), count=50)
  assert set(two['alpha'].ravel()) == {0.25, 1.0}


def test_rows_and_keys_draw_for_themselves():
  scheme = create('head_tail_warp')
  index, lengths = helpers.rows(64, 12), jnp.full((64, 1), 12)
  first, again, other = (
    np.asarray(run(scheme, index, lengths, jax.random.key(n)))
    for n in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()
  # Plain, tail-warped, and head-warped by several factors.
  assert 3 < len(np.unique(first, axis=0)) <= 7
  fewer = run(scheme, index[:5], lengths[:5], jax.random.key(0))
  np.testing.assert_array_equal(fewer, first[:5])


@all_skews
def test_order_and_range(skew):
  scheme = create('head_tail_warp', skew=skew, fraction=0.4)
  lengths = np.resize([1, 2, 17, 64], (200, 1))
  got = np.asarray(
    run(scheme, helpers.rows(200, 64), lengths, jax.random.key(2))
  )
  for row, (n,) in zip(got, lengths, strict=True):
    assert (np.diff(row[:n]) > 0).all()
    assert row[0] == 0 and row[:n].max() <= n
  # Behind its end a segment is finite too.
  assert np.isfinite(got).all()


def test_padded_equals_unpadded():
  scheme = create('head_tail_warp', fraction=0.4)
  lengths = np.resize([5, 9, 12], (48, 1))
  key = jax.random.key(3)
  short = np.asarray(run(scheme, helpers.rows(48, 12), lengths, key))
  for rest in (np.arange(12, 20), np.arange(8), np.zeros(8)):
    index = np.concatenate([helpers.rows(48, 12), np.tile(rest, (48, 1))], 1)
    long = np.asarray(run(scheme, index.astype(np.int32), lengths, key))
    for row, (n,) in enumerate(lengths):
      np.testing.assert_array_equal(long[row, :n], short[row, :n])


@all_schemes
def test_packed_segments(name):
  """Each has its own length and draw; modes follow from the positions."""
  scheme = create(name, fraction=0.5)
  sizes = (6, 9, 1, 6)
  index = np.tile(np.concatenate([np.arange(n) for n in sizes]), (400, 1))
  lengths = np.tile(np.repeat(sizes, sizes), (400, 1))
  key = jax.random.key(5)
  got = np.asarray(run(scheme, index, lengths, key))
  draws = jax.jit(scheme.draw)(key, index, lengths)
  mode, alpha = (np.asarray(draws[name]) for name in ('mode', 'alpha'))
  start = 0
  for n in sizes:
    part = np.s_[:, start : start + n]
    first = np.s_[:, start : start + 1]
    assert (mode[part] == mode[first]).all()
    assert (alpha[part] == alpha[first]).all()
    i = np.arange(n)[None]
    want = np.select(
      [mode[first] == HEAD, mode[first] == TAIL],
      [alpha[first] * i, n * np.sqrt(i / n)],
      i,
    )
    np.testing.assert_allclose(got[part], want, rtol=2e-6)
    start += n
  # Independent: a mode says nothing about that of another segment.
  for a, b in ((0, 6), (0, 16), (6, 15)):
    assert abs(np.corrcoef(mode[:, a], mode[:, b])[0, 1]) < 0.2
    assert abs(np.corrcoef(alpha[:, a], alpha[:, b])[0, 1]) < 0.2


@all_schemes
def test_interpolates_at_test_time(name):
  scheme = create(name, train_length=6)
  assert scheme.interpolates and scheme.fractional and scheme.needs_lengths
  assert scheme.draws(True) and not scheme.draws(False)
  lengths = jnp.array([[12], [4], [6], [24]])
  got = scheme(helpers.rows(4, 24), lengths=lengths)
  assert got.dtype == jnp.float32
  want = np.arange(24) * np.array([[0.5], [1], [1], [0.25]])
  np.testing.assert_allclose(got, want, rtol=1e-6)
  # All of a segment stays within what was seen in training.
  assert got[3].max() < 6
  # By the length of each segment, not of the row or of the batch.
  got = scheme(
    jnp.array([[0, 1, 2, 3, 4, 5, 6, 7, 0, 1]]),
    lengths=jnp.array([[8] * 8 + [2] * 2]),
  )
  want = [[0, 0.75, 1.5, 2.25, 3, 3.75, 4.5, 5.25, 0, 1]]
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_does_not_interpolate_while_training():
  """Not even a segment longer than train_length."""
  scheme = create('head_tail_warp', train_length=4, fraction=0.0)
  got = run(
    scheme, helpers.rows(2, 16), jnp.full((2, 1), 16), jax.random.key(0)
  )
  np.testing.assert_array_equal(got, helpers.rows(2, 16))


@all_schemes
def test_needs_lengths_and_rng(name):
  scheme = create(name)
  for train in (True, False):
    with pytest.raises(errors.LengthError, match='needs lengths'):
      scheme(helpers.rows(1, 4), rng=jax.random.key(0), train=train)
  with pytest.raises(errors.LengthError, match='needs rng'):
    scheme(helpers.rows(1, 4), lengths=jnp.full((1, 4), 4), train=True)


@pytest.mark.parametrize(
  'spec, message',
  [
    ('head_warp', 'train_length of head_warp is None; it must be >= 1'),
    (
      'tail_warp(train_length=0)',
      'train_length of tail_warp is 0; it must be >= 1',
    ),
    (
      'head_tail_warp(train_length=-8)',
      'train_length of head_tail_warp is -8; it must be >= 1',
    ),
    (
      'head_warp(train_length=8, alpha=2.)',
      r'alpha=2.0 must be .* \(0, 1\]',
    ),
    ('head_warp(train_length=8, alpha=0.)', r'alpha=0.0 must be .* \(0, 1\]'),
    ('head_warp(train_length=8, alpha=(.5, -1.))', r'alpha=\(0.5, -1.0\) must'),
    (
      'head_tail_warp(train_length=8, fraction=.6)',
      'fraction=0.6 must be between 0 and 0.5',
    ),
    (
      'head_warp(train_length=8, fraction=1.1)',
      'fraction=1.1 must be between 0 and 1',
    ),
    ('tail_warp(train_length=8, fraction=-.1)', 'fraction=-0.1 must be'),
    (
      "tail_warp(train_length=8, skew='sqr')",
      r"unknown skew 'sqr'; did you mean 'sqrt'\? valid: beta\(a,b\), log, ",
    ),
    ("tail_warp(train_length=8, skew='beta(2)')", "unknown skew 'beta"),
    ("tail_warp(train_length=8, skew='beta(0,5)')", "unknown skew 'beta"),
    ("tail_warp(train_length=8, skew='beta(2,-5)')", "unknown skew 'beta"),
  ],
)
def test_refuses(spec, message):
  with pytest.raises(errors.SpecError, match=message):
    positions.create(spec)


@pytest.mark.parametrize(
  'keys', ['alpha=()', "skew='beta(.,5)'", "skew='beta(1.2.3,5)'"]
)
def test_refuses_what_is_hardly_a_value(keys):
  with pytest.raises(errors.SpecError):
    positions.create(f'head_tail_warp(train_length=8, {keys})')
