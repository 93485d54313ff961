"""Tests `shifted.py`, `warped.py` and `equal_mean.py` of `positions`.

Golden arrays: `golden/encodings/README.json`, files cape and shape.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax import positions

FOLDER = pathlib.Path(__file__).parents[1] / 'golden' / 'encodings'
CAPE = np.load(FOLDER / 'cape.npz')
SHAPE = np.load(FOLDER / 'shape.npz')

SPECS = [
  'shape(max_shift=50)',
  'random_padding(max_position=100)',
  'cape',
  'cape(mean_normalize=True)',
  'head_warp(train_length=12)',
  "tail_warp(train_length=12, skew='beta(2,5)')",
  'head_tail_warp(train_length=12, alpha=0.25, fraction=0.5)',
  'equal_mean',
  "equal_mean(distribution='beta', max_position=80)",
]


def rows(count, length):
  return jnp.broadcast_to(jnp.arange(length)[None], (count, length))


def draw(scheme, count=4000, length=12, seed=0):
  """The draws of many rows of one length."""
  lengths = jnp.full((count, length), length)
  return scheme.draw(jax.random.key(seed), rows(count, length), lengths)


@pytest.mark.parametrize('spec', SPECS)
def test_padded_equals_unpadded(spec):
  scheme = positions.create(spec)
  lengths = jnp.array([[5], [9], [12]])
  short, long = (
    scheme(rows(3, n), lengths=lengths, rng=jax.random.key(3), train=True)
    for n in (12, 20)
  )
  assert np.isfinite(long).all()
  for row, n in enumerate(lengths[:, 0]):
    np.testing.assert_array_equal(short[row, :n], long[row, :n])


@pytest.mark.parametrize('spec', SPECS)
def test_packed_segments_have_draws_of_their_own(spec):
  scheme = positions.create(spec)
  key = jax.random.key(5)
  two = jnp.concatenate([rows(200, 6), rows(200, 9)], 1)
  lengths = jnp.where(jnp.arange(15)[None] < 6, 6, 9)
  lengths = jnp.broadcast_to(lengths, two.shape)
  packed = scheme(two, lengths=lengths, rng=key, train=True)
  first = scheme(rows(200, 6), lengths=lengths[:, :6], rng=key, train=True)
  np.testing.assert_allclose(packed[:, :6], first, rtol=2e-6)
  draws = scheme.draw(key, two, lengths)
  for name, values in draws.items():
    assert values.shape == (200, 15)
    if name == 'delta_local':
      continue
    # One number per segment, another one for the other segment.
    assert (values[:, :6] == values[:, :1]).all(), name
    assert (values[:, 6:] == values[:, 6:7]).all(), name
    if 'warp' not in spec or name == 'mode' and 'head_tail' in spec:
      assert (values[:, 0] != values[:, 6]).any(), name


@pytest.mark.parametrize('spec', SPECS)
def test_train_draws_and_test_does_not(spec):
  scheme = positions.create(spec)
  lengths = jnp.array([[12], [12]])
  plain = scheme(rows(2, 12), lengths=lengths)
  np.testing.assert_array_equal(plain[0], plain[1])
  if 'mean_normalize' in spec:
    np.testing.assert_allclose(plain[0], np.arange(12) - 5.5)
  else:
    np.testing.assert_array_equal(plain[0], np.arange(12))
  assert plain.dtype == (jnp.float32 if scheme.fractional else jnp.int32)
  drawn = scheme(rows(50, 12), lengths=12, rng=jax.random.key(0), train=True)
  assert drawn.dtype == plain.dtype
  assert len(np.unique(np.asarray(drawn), axis=0)) > 1
  with pytest.raises(errors.LengthError, match='needs rng'):
    scheme(rows(2, 12), lengths=lengths, train=True)
  assert drawn.max() < scheme.extent(12, True) or scheme.fractional


@pytest.mark.parametrize('kind', ['eval', 'train'])
def test_cape_golden(kind):
  if f'text/{kind}/positions' not in CAPE:
    pytest.fail('golden case missing')
  scheme = positions.create('cape')
  want = CAPE[f'text/{kind}/positions']
  if kind == 'eval':
    got = scheme(rows(*want.shape))
  else:
    draws = {
      name: CAPE[f'text/train/draw_{name}']
      for name in ('delta', 'delta_local', 'log_lambda')
    }
    got = scheme.apply(draws, rows(*want.shape))
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_shape_golden():
  """Rows of the source's sinusoidal table tell which positions it read."""
  table = SHAPE['K8/table']
  start = SHAPE['K8/train_start'][:, None]
  scheme = positions.create('shape(max_shift=8)')
  got = scheme.apply({'start': jnp.asarray(start)}, rows(4, 9))
  np.testing.assert_allclose(
    table[np.asarray(got)].swapaxes(0, 1), SHAPE['K8/train'], atol=1e-6
  )
  official = positions.create('shape(max_shift=8, official_compat=True)')
  got = official(rows(4, 9))
  np.testing.assert_allclose(
    table[np.asarray(got)].swapaxes(0, 1), SHAPE['K8/eval'], atol=1e-6
  )
  assert official.extent(9, train=False) == 17


def uniform_over(values, count):
  """Whether whole numbers are spread evenly over 0 .. count - 1."""
  found, times = np.unique(np.asarray(values), return_counts=True)
  expected = len(values) / count
  chi_square = ((times - expected) ** 2 / expected).sum()
  return found.tolist() == list(range(count)) and chi_square < 3 * count


def test_distributions_of_shifts():
  start = draw(positions.create('shape(max_shift=10)'))['start'][:, 0]
  assert uniform_over(start, 10)
  padding = draw(positions.create('random_padding(max_position=20)'))
  assert uniform_over(padding['start'][:, 0], 9)
  cape = draw(positions.create('cape(global_shift=3., max_scale=2.)'))
  for name, bound in (
    ('delta', 3.0),
    ('delta_local', 0.5),
    ('log_lambda', np.log(2)),
  ):
    values = np.asarray(cape[name][:, 0])
    assert np.abs(values).max() <= bound
    np.testing.assert_allclose(values.mean(), 0, atol=0.06 * bound)
    np.testing.assert_allclose(values.std(), bound / 3**0.5, rtol=0.05)
  assert (cape['delta_local'][:, 0] != cape['delta_local'][:, 1]).all()


def test_warping_formulas():
  index, n = np.arange(8), 8
  lengths = jnp.full((1, 8), n)
  alpha = {'alpha': jnp.full((1, 1), 0.25)}

  def apply(scheme, mode):
    draws = alpha | {'mode': jnp.full((1, 1), mode)}
    return np.asarray(scheme.apply(draws, rows(1, 8), lengths=lengths)[0])

  scheme = positions.create('head_tail_warp(train_length=8)')
  np.testing.assert_allclose(apply(scheme, 0), index)
  np.testing.assert_allclose(apply(scheme, 1), index / 4)
  np.testing.assert_allclose(apply(scheme, 2), n * (index / n) ** 0.5, 1e-6)
  beta = positions.create("tail_warp(train_length=8, skew='beta(2,5)')")
  x = index / n
  want = n * (1 - (1 - x) ** 6 - 6 * x * (1 - x) ** 5)
  np.testing.assert_allclose(apply(beta, 2), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('skew', ['sqrt', 'log', 'sine', 'beta(2,5)'])
def test_skews_lead_from_0_to_1(skew):
  from lengen_jax.positions import warped

  f = warped.skew_function(skew)
  values = np.asarray(f(jnp.linspace(0.0, 1.0, 101)))
  np.testing.assert_allclose(values[[0, -1]], [0, 1], atol=1e-6)
  assert (np.diff(values) >= -1e-6).all()
  if skew != 'beta(2,5)':
    assert (np.diff(values, 2) <= 1e-5).all()


@pytest.mark.parametrize(
  'spec, parts',
  [
    ('head_warp(train_length=12)', [0.7, 0.3, 0]),
    ('tail_warp(train_length=12)', [0.7, 0, 0.3]),
    ('head_tail_warp(train_length=12)', [0.7, 0.15, 0.15]),
  ],
)
def test_how_often_is_warped(spec, parts):
  draws = draw(positions.create(spec))
  modes = np.asarray(draws['mode'][:, 0])
  got = [(modes == mode).mean() for mode in range(3)]
  np.testing.assert_allclose(got, parts, atol=0.03)
  index = np.round(10 * np.asarray(draws['alpha'][:, 0])).astype(int) - 4
  assert uniform_over(index, 5)


def test_warping_interpolates_at_test_time():
  scheme = positions.create('head_warp(train_length=6)')
  got = scheme(rows(2, 12), lengths=jnp.array([[12], [4]]))
  np.testing.assert_allclose(got[0], np.arange(12) / 2)
  np.testing.assert_allclose(got[1], np.arange(12))


@pytest.mark.parametrize(
  'spec, deviation',
  [
    ('equal_mean', 12.0),
    # Beta(1, 3) has mean 1/4 and variance 3/80.
    ("equal_mean(distribution='beta', max_position=48)", 48 * (3 / 80) ** 0.5),
  ],
)
def test_equal_mean(spec, deviation):
  scheme = positions.create(spec)
  last = np.asarray(draw(scheme)['last'][:, 0])
  np.testing.assert_allclose(last.mean(), 12, rtol=0.06)
  np.testing.assert_allclose(last.std(), deviation, rtol=0.06)
  got = scheme.apply(
    {'last': jnp.array([[6.0]])}, rows(1, 5), lengths=jnp.full((1, 5), 5)
  )
  np.testing.assert_allclose(got[0], [0, 1.5, 3, 4.5, 6])


@pytest.mark.parametrize(
  'spec, message',
  [
    ('shape', 'max_shift, 0 or more; got None'),
    ('random_padding', 'needs max_position'),
    ('cape(local_shift=.6)', 'local_shift=0.6'),
    ('cape(max_scale=.5)', 'max_scale is 0.5'),
    ('head_warp', 'needs train_length'),
    ('head_warp(train_length=8, alpha=2.)', 'alpha=2.0'),
    ('head_tail_warp(train_length=8, fraction=.6)', 'fraction=0.6'),
    ("tail_warp(train_length=8, skew='sqr')", "'sqr'; did you mean 'sqrt'"),
    ("equal_mean(distribution='beta')", 'takes max_position with'),
    ('equal_mean(alpha=-1.)', 'must be positive'),
  ],
)
def test_bad_keys(spec, message):
  with pytest.raises(errors.SpecError, match=message):
    positions.create(spec)


def test_random_padding_needs_room():
  scheme = positions.create('random_padding(max_position=11)')
  with pytest.raises(errors.LengthError, match='segment of 12'):
    scheme(rows(1, 12), lengths=12, rng=jax.random.key(0), train=True)
