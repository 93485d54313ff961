"""Tests `lengen_jax/positions/shifted.py`.

Golden arrays: `golden/encodings/README.json`, files cape and shape.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from tests import helpers

FOLDER = helpers.GOLDEN / 'encodings'
CAPE = np.load(FOLDER / 'cape.npz')
SHAPE = np.load(FOLDER / 'shape.npz')

SPECS = [
  'shape(max_shift=50)',
  'random_padding(max_position=100)',
  'cape',
  'cape(mean_normalize=True)',
]


@functools.partial(jax.jit, static_argnums=(0, 4))
def run(scheme, index, lengths, key, train=True):
  return scheme(index, lengths=lengths, rng=key, train=train)


@functools.partial(jax.jit, static_argnums=0)
def draw(scheme, key, index, lengths):
  return scheme.draw(key, index, lengths)


def draw_rows(spec, count=4000, length=12):
  """The draws of many rows of one length."""
  lengths = jnp.full((count, length), length)
  index = helpers.rows(count, length)
  return draw(positions.create(spec), jax.random.key(0), index, lengths)


@pytest.mark.some(2)
@pytest.mark.parametrize('spec', SPECS)
def test_padded_equals_unpadded(spec):
  scheme = positions.create(spec)
  lengths = jnp.array([[5], [9], [12]])
  short, long = (
    run(scheme, helpers.rows(3, n), lengths, jax.random.key(3))
    for n in (12, 20)
  )
  assert np.isfinite(long).all()
  for row, n in enumerate(lengths[:, 0]):
    np.testing.assert_array_equal(short[row, :n], long[row, :n])


@pytest.mark.some(2)
@pytest.mark.parametrize('spec', SPECS)
def test_packed_segments_have_draws_of_their_own(spec):
  scheme = positions.create(spec)
  key = jax.random.key(5)
  two = jnp.concatenate([helpers.rows(200, 6), helpers.rows(200, 9)], 1)
  lengths = jnp.where(jnp.arange(15)[None] < 6, 6, 9)
  lengths = jnp.broadcast_to(lengths, two.shape)
  packed = run(scheme, two, lengths, key)
  first = run(scheme, helpers.rows(200, 6), lengths[:, :6], key)
  np.testing.assert_allclose(packed[:, :6], first, rtol=2e-6)
  draws = draw(scheme, key, two, lengths)
  for name, values in draws.items():
    assert values.shape == (200, 15)
    if name == 'delta_local':
      continue
    # One number per segment, another one for the other segment.
    assert (values[:, :6] == values[:, :1]).all(), name
    assert (values[:, 6:] == values[:, 6:7]).all(), name
    assert (values[:, 0] != values[:, 6]).any(), name


@pytest.mark.parametrize('spec', SPECS)
def test_train_draws_and_test_does_not(spec):
  scheme = positions.create(spec)
  lengths = jnp.array([[12], [12]])
  plain = scheme(helpers.rows(2, 12), lengths=lengths)
  np.testing.assert_array_equal(plain[0], plain[1])
  if 'mean_normalize' in spec:
    np.testing.assert_allclose(plain[0], np.arange(12) - 5.5)
  else:
    np.testing.assert_array_equal(plain[0], np.arange(12))
  assert plain.dtype == (jnp.float32 if scheme.fractional else jnp.int32)
  drawn = run(scheme, helpers.rows(50, 12), 12, jax.random.key(0))
  assert drawn.dtype == plain.dtype
  assert len(np.unique(np.asarray(drawn), axis=0)) > 1
  with pytest.raises(errors.LengthError, match='needs rng'):
    scheme(helpers.rows(2, 12), lengths=lengths, train=True)
  assert drawn.max() < scheme.extent(12, True) or scheme.fractional


@pytest.mark.parametrize('kind', ['eval', 'train'])
def test_cape_golden(kind):
  if f'text/{kind}/positions' not in CAPE:
    pytest.fail('golden case missing')
  scheme = positions.create('cape')
  want = CAPE[f'text/{kind}/positions']
  if kind == 'eval':
    got = scheme(helpers.rows(*want.shape))
  else:
    draws = {
      name: CAPE[f'text/train/draw_{name}']
      for name in ('delta', 'delta_local', 'log_lambda')
    }
    got = scheme.apply(draws, helpers.rows(*want.shape))
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_shape_golden():
  """Rows of the source's sinusoidal table tell which positions it read."""
  table = SHAPE['K8/table']
  start = SHAPE['K8/train_start'][:, None]
  scheme = positions.create('shape(max_shift=8)')
  got = scheme.apply({'start': jnp.asarray(start)}, helpers.rows(4, 9))
  np.testing.assert_allclose(
    table[np.asarray(got)].swapaxes(0, 1), SHAPE['K8/train'], atol=1e-6
  )
  official = positions.create('shape(max_shift=8, official_compat=True)')
  got = official(helpers.rows(4, 9))
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
  start = draw_rows('shape(max_shift=10)')['start'][:, 0]
  assert uniform_over(start, 10)
  padding = draw_rows('random_padding(max_position=20)')
  assert uniform_over(padding['start'][:, 0], 9)
  cape = draw_rows('cape(global_shift=3., max_scale=2.)')
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
  # None of the three says anything about another.
  related = np.corrcoef([values[:, 0] for values in cape.values()])
  assert np.abs(related - np.eye(3)).max() < 0.08


@pytest.mark.parametrize(
  'spec, train, extent',
  [
    ('shape(max_shift=5)', True, 7),
    ('shape(max_shift=5)', False, 3),
    ('shape(max_shift=5, official_compat=True)', True, 7),
    ('shape(max_shift=5, official_compat=True)', False, 8),
    ('shape(max_shift=0)', True, 3),
    ('shape(max_shift=0)', False, 3),
    ('shape(max_shift=1)', True, 3),
    ('random_padding(max_position=9)', True, 9),
    ('random_padding(max_position=9)', False, 3),
    ('random_padding(max_position=3)', True, 3),
  ],
)
def test_extent(spec, train, extent):
  """All positions are below it, and in training one gets there."""
  scheme = positions.create(spec)
  assert scheme.extent(3, train) == extent
  got = np.asarray(
    run(
      scheme, helpers.rows(400, 3), jnp.array([[3]]), jax.random.key(0), train
    )
  )
  assert 0 <= got.min() and got.max() < extent
  assert got.max() == extent - 1
  np.testing.assert_array_equal(np.diff(got), 1)


def test_random_padding_goes_by_each_segment():
  """A short segment has more room than a long one of the same row."""
  scheme = positions.create('random_padding(max_position=12)')
  index = jnp.concatenate(
    [helpers.rows(3000, 2), helpers.rows(3000, 10), helpers.rows(3000, 12)], 1
  )
  lengths = jnp.repeat(jnp.array([2, 10, 12]), jnp.array([2, 10, 12]))[None]
  call = functools.partial(scheme, lengths=lengths, train=True)
  got = np.asarray(jax.jit(call)(index, rng=jax.random.key(0)))
  for start, n in ((0, 2), (2, 10), (12, 12)):
    part = got[:, start : start + n]
    np.testing.assert_array_equal(np.diff(part), 1)
    assert uniform_over(part[:, 0], 12 - n + 1)


def test_shape_start_of_each_segment():
  scheme = positions.create('shape(max_shift=7)')
  index = jnp.concatenate([helpers.rows(3000, 2), helpers.rows(3000, 3)], 1)
  got = np.asarray(run(scheme, index, None, jax.random.key(0)))
  first, second = got[:, 0], got[:, 2]
  assert uniform_over(first, 7) and uniform_over(second, 7)
  # And of the two together, so that one says nothing about the other.
  assert uniform_over(7 * first + second, 49)


def test_shape_official_evaluation():
  """Every segment starts at max_shift, one token alone as well."""
  scheme = positions.create('shape(max_shift=8, official_compat=True)')
  assert not scheme.draws(False)
  packed = jnp.array([[0, 1, 2, 0, 1]])
  np.testing.assert_array_equal(scheme(packed), [[8, 9, 10, 8, 9]])
  table = SHAPE['K8/table']
  step = np.asarray(scheme(jnp.full((4, 1), 5)))
  np.testing.assert_allclose(
    table[step].swapaxes(0, 1), SHAPE['K8/eval_step5'], atol=1e-6
  )
  plain = positions.create('shape(max_shift=8)')
  np.testing.assert_array_equal(plain(packed), packed)


def test_shape_without_shifts():
  scheme = positions.create('shape(max_shift=0)')
  got = scheme(helpers.rows(5, 4), rng=jax.random.key(0), train=True)
  np.testing.assert_array_equal(got, helpers.rows(5, 4))


@pytest.mark.parametrize('mean_normalize', [False, True])
def test_cape_formula(mean_normalize):
  """Two segments of 3 and 5 tokens and one number per token for each draw."""
  scheme = positions.create(f'cape(mean_normalize={mean_normalize})')
  rng = np.random.default_rng(0)
  index = np.tile([0, 1, 2, 0, 1, 2, 3, 4], (4, 1))
  lengths = np.tile([3] * 3 + [5] * 5, (4, 1))
  draws = {
    name: np.float32(rng.uniform(-bound, bound, (4, 8)))
    for name, bound in (
      ('delta', 5),
      ('delta_local', 0.5),
      ('log_lambda', 0.03),
    )
  }
  got = scheme.apply(draws, jnp.asarray(index), lengths=jnp.asarray(lengths))
  mean = [1] * 3 + [2] * 5 if mean_normalize else [0] * 8
  want = index - np.array(mean) + draws['delta'] + draws['delta_local']
  want = want * np.exp(np.float64(draws['log_lambda']))
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
  plain = scheme(jnp.asarray(index), lengths=jnp.asarray(lengths))
  np.testing.assert_array_equal(plain, index - np.array(mean))


def test_cape_embedding_golden():
  """Sines and cosines of the positions, which the source interleaves."""
  draws = {
    name: CAPE[f'text/train/draw_{name}']
    for name in ('delta', 'delta_local', 'log_lambda')
  }
  index = helpers.rows(3, 11)
  scheme = positions.create('cape')
  frequency = 10000.0 ** (-np.arange(0, 16, 2) / 16)
  for kind, p in (
    ('eval', scheme(index)),
    ('train', scheme.apply(draws, index)),
  ):
    angle = np.asarray(p, np.float64)[..., None] * frequency
    want = CAPE[f'text/{kind}/embedding']
    np.testing.assert_allclose(np.sin(angle), want[..., ::2], atol=1e-5)
    np.testing.assert_allclose(np.cos(angle), want[..., 1::2], atol=1e-5)


def test_cape_keeps_the_order_and_may_leave_parts_out():
  def draw_positions(spec):
    scheme = positions.create(spec)
    return np.asarray(
      run(scheme, helpers.rows(300, 12), None, jax.random.key(1))
    )

  got = draw_positions('cape(max_scale=2.)')
  assert (np.diff(got) > 0).all()
  np.testing.assert_array_equal(
    draw_positions('cape(global_shift=0., local_shift=0., max_scale=1.)'),
    helpers.rows(300, 12),
  )
  shifted = draw_positions('cape(local_shift=0., max_scale=1.)')
  np.testing.assert_allclose(np.diff(shifted), 1, atol=1e-5)
  assert 4 < np.abs(shifted[:, 0]).max() <= 5
  scaled = draw_positions('cape(global_shift=0., local_shift=0., max_scale=2.)')
  gaps = np.diff(scaled)
  np.testing.assert_allclose(gaps, np.repeat(gaps[:, :1], 11, 1), rtol=1e-5)
  assert 0.5 <= gaps.min() < 0.6 and 1.8 < gaps.max() <= 2


def test_facts():
  shape = positions.create('shape(max_shift=5)')
  padding = positions.create('random_padding(max_position=9)')
  cape = positions.create('cape')
  normalized = positions.create('cape(mean_normalize=True)')
  assert shape.contiguous and padding.contiguous and not cape.contiguous
  assert cape.fractional and not shape.fractional and not padding.fractional
  assert normalized.needs_lengths and padding.needs_lengths
  assert not cape.needs_lengths and not shape.needs_lengths
  for scheme in (shape, padding, cape, normalized):
    assert scheme.draws(True) and not scheme.draws(False)
    assert not scheme.interpolates
  for scheme in (padding, normalized):
    with pytest.raises(errors.LengthError, match='needs lengths'):
      scheme(helpers.rows(1, 4))


@pytest.mark.parametrize(
  'spec, message',
  [
    ('shape', 'max_shift of shape is None; it must be >= 0'),
    (
      'random_padding',
      'max_position of random_padding is None; it must be >= 1',
    ),
    (
      'cape(local_shift=.6)',
      'local_shift of cape is 0.6; it must be >= 0 and <= 0.5',
    ),
    ('cape(max_scale=.5)', 'max_scale of cape is 0.5; it must be >= 1'),
    ('shape(max_shift=-1)', 'max_shift of shape is -1'),
    ('random_padding(max_position=0)', 'max_position of random_padding is 0'),
    ('cape(global_shift=-1.)', 'global_shift of cape is -1.0; it must be >= 0'),
    ('cape(local_shift=-.1)', 'local_shift of cape is -0.1'),
  ],
)
def test_bad_keys(spec, message):
  with pytest.raises(errors.SpecError, match=message):
    positions.create(spec)


def test_random_padding_needs_room():
  scheme = positions.create('random_padding(max_position=11)')
  with pytest.raises(errors.LengthError, match='segment of 12'):
    scheme(helpers.rows(1, 12), lengths=12, rng=jax.random.key(0), train=True)


def test_positions_of_cape_at_test():
  assert positions.create('cape').standard_at_test
  assert not positions.create('cape(mean_normalize=True)').standard_at_test


@pytest.mark.parametrize(
  'spec, message',
  [
    ('shape(max_shift=2147483647)', 'must be >= 0 and <= 1073741824'),
    ('randomized(max_position=2147483648)', 'must be <= 2147483647'),
  ],
)
def test_positions_must_fit_32_bits(spec, message):
  with pytest.raises(errors.SpecError, match=message):
    positions.create(spec)
