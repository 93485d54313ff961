"""Tests the relatives of RoPE in `lengen_jax/encodings/rotary.py`.

Golden arrays: `golden/encodings/README.json`, files rope_hf and yarn_official.
"""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors, positions
from lengen_jax.encodings import rotary
from tests import helpers

FOLDER = helpers.GOLDEN / 'encodings'
GOLDEN = np.load(FOLDER / 'rope_hf.npz')
META = json.loads((FOLDER / 'rope_meta.json').read_text())
YARN = np.load(FOLDER / 'yarn_official.npz')
LENGTHS = (64, 512, 513, 600, 1024, 2048)
LONGROPE = META['longrope']['rope_parameters']
LONGROPE_SPEC = (
  f'longrope(train_length=512, scale=8., '
  f'short_factors={tuple(LONGROPE["short_factor"])}, '
  f'long_factors={tuple(LONGROPE["long_factor"])})'
)


def create(spec, head_dim):
  return encodings.create(spec, num_heads=1, head_dim=head_dim)


def frequencies(encoding, length=None):
  """Frequencies and magnitude for a sequence of a length."""
  lengths = None if length is None else jnp.full((1, 1), length)
  omega = np.asarray(encoding.frequencies(lengths), np.float64)
  return omega.ravel(), np.asarray(encoding.magnitude(lengths)).item()


def table(encoding, positions, length=None):
  """cos and sin by position: what a vector (1 .. 1, 0 .. 0) turns into."""
  half = encoding.head_dim // 2
  x = np.zeros((1, len(positions), 1, 2 * half), np.float32)
  x[..., :half] = 1
  p = jnp.asarray(positions)[None]
  lengths = None if length is None else jnp.full((1, 1), length)
  y, _ = encoding.apply({}, x, x, p, p, lengths, method='rotate')
  return np.split(np.asarray(y[0, :, 0]), 2, -1)


@pytest.mark.parametrize(
  'variant, spec',
  [
    ('yarn16', 'yarn(scale=16., train_length=2048)'),
    ('llama3_8', 'llama3(base=5e5, scale=8., train_length=8192)'),
  ],
)
def test_static_golden(variant, spec):
  encoding = create(spec, META[variant]['head_dim'])
  omega, magnitude = frequencies(encoding)
  np.testing.assert_allclose(
    omega, GOLDEN[f'{variant}/inv_freq_init'], rtol=2e-6
  )
  assert magnitude == pytest.approx(
    float(GOLDEN[f'{variant}/attention_scaling']), rel=1e-6
  )


@pytest.mark.parametrize('length', LENGTHS)
@pytest.mark.parametrize(
  'variant, spec',
  [
    ('dynamic2', 'ntk(scale=2., train_length=512, dynamic=True)'),
    ('dynamic1', 'ntk(train_length=512, dynamic=True)'),
    ('longrope', LONGROPE_SPEC),
  ],
)
def test_golden_by_length(variant, spec, length):
  encoding = create(spec, META[variant]['head_dim'])
  prefix = f'{variant}/n{length}'
  if f'{prefix}/inv_freq' not in GOLDEN:
    assert variant == 'dynamic1'  # A part of these is kept.
    return
  omega, _ = frequencies(encoding, length)
  np.testing.assert_allclose(omega, GOLDEN[f'{prefix}/inv_freq'], rtol=3e-6)
  rows = GOLDEN[f'{prefix}/rows']
  cos, sin = table(encoding, rows.astype(np.int32), length)
  np.testing.assert_allclose(cos, GOLDEN[f'{prefix}/cos'], atol=1e-3)
  np.testing.assert_allclose(sin, GOLDEN[f'{prefix}/sin'], atol=1e-3)


def test_yarn_official():
  omega, magnitude = frequencies(
    create('yarn(scale=16., train_length=2048)', 64)
  )
  np.testing.assert_allclose(omega, YARN['yarn/d64/s16/inv_freq'], rtol=2e-6)
  assert magnitude == pytest.approx(float(YARN['yarn/d64/s16/mscale']))
  dynamic = create('yarn(train_length=2048, dynamic=True)', 64)
  omega, magnitude = frequencies(dynamic, 4096)
  want = YARN['dynamic_yarn/d64/n4096/inv_freq']
  np.testing.assert_allclose(omega, want, rtol=2e-6)
  assert magnitude == pytest.approx(
    float(YARN['dynamic_yarn/d64/n4096/mscale']), rel=1e-6
  )
  for length in (1, 2048):
    omega, magnitude = frequencies(dynamic, length)
    np.testing.assert_allclose(omega, 1e4 ** (-np.arange(32) / 32), rtol=1e-6)
    assert magnitude == 1


def test_ntk_divides_the_lowest_frequency_and_keeps_the_highest():
  plain, _ = frequencies(create('rope', 64))
  omega, _ = frequencies(create('ntk(scale=8.)', 64))
  np.testing.assert_allclose(omega[0], plain[0])
  np.testing.assert_allclose(omega[-1], plain[-1] / 8)


@pytest.mark.parametrize(
  'spec',
  [
    'rope(train_length=8, dynamic=True)',
    'ntk(train_length=8, dynamic=True)',
    'yarn(train_length=8, dynamic=True)',
    'longrope(train_length=8, scale=2., short_factors=(1., 1., 1., 1.), '
    'long_factors=(1., 2., 3., 4.))',
  ],
)
def test_each_sequence_goes_by_its_own_length(spec, assert_close):
  encoding = create(spec, 8)
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 3, 16, 1, 8)).astype(np.float32)
  p = jnp.arange(16)[None]
  lengths = jnp.array([[5], [8], [16]])
  both = encoding.apply({}, q, k, p, p, lengths, method='rotate')
  for row in range(3):
    one = slice(row, row + 1)
    alone = encoding.apply(
      {}, q[one], k[one], p, p, lengths[one], method='rotate'
    )
    assert_close(alone, tuple(x[one] for x in both), 1e-6)
  # Lengths per token say the same, as in packed rows.
  per_token = jnp.broadcast_to(lengths, (3, 16))
  got = encoding.apply({}, q, k, p, p, per_token, method='rotate')
  assert_close(got, both, 1e-6)
  same = encoding.apply({}, q, k, p, p, jnp.array([[8]] * 3), method='rotate')
  np.testing.assert_array_equal(same[0][1], both[0][1])
  assert np.abs(same[0][2] - both[0][2]).max() > 1e-3
  with pytest.raises(errors.LengthError, match='depends on the length'):
    encoding.apply({}, q, k, p, p, method='rotate')


def test_proportional_turns_the_first_pairs_of_all_dimensions(assert_close):
  encoding = create('rope(fraction=.5, proportional=True)', 16)
  whole = create('rope', 16)
  x = np.random.default_rng(0).normal(size=(1, 9, 1, 16)).astype(np.float32)
  p = 100 * jnp.arange(9)[None]
  got, _ = encoding.apply({}, x, x, p, p, method='rotate')
  want, _ = whole.apply({}, x, x, p, p, method='rotate')
  turned = np.r_[0:4, 8:12]
  assert_close(got[..., turned], want[..., turned])
  np.testing.assert_array_equal(got[..., 4:8], x[..., 4:8])
  np.testing.assert_array_equal(got[..., 12:], x[..., 12:])


@pytest.mark.parametrize(
  'spec, interpolated',
  [
    # All pairs make fewer than beta_slow rotations, or more than beta_fast.
    ('yarn(scale=8., train_length=3)', slice(1, None)),
    ('yarn(scale=4., train_length=4, truncate=False)', slice(1, None)),
    ('yarn(scale=8., train_length=100000, base=10.)', slice(0, 0)),
  ],
)
def test_yarn_without_pairs_in_between(spec, interpolated):
  encoding = create(spec, 16)
  ratio = encoding.frequencies(None) / encoding.plain_frequencies()
  want = np.ones(8)
  want[interpolated] = 1 / encoding.scale
  np.testing.assert_allclose(ratio, want, rtol=1e-12)


def test_a_base_may_be_a_large_integer():
  one, other = (
    rotary.Rope(num_heads=1, head_dim=8, base=base) for base in (10**10, 1e10)
  )
  np.testing.assert_array_equal(
    one.plain_frequencies(), other.plain_frequencies()
  )


def test_a_magnitude_may_be_an_integer():
  x = np.ones((1, 3, 1, 8), np.float32)
  given = {'magnitude_factor': 2, 'scale': 2.0, 'train_length': 8}
  encoding = rotary.Yarn(num_heads=1, head_dim=8, **given)
  q, _ = encoding.apply({}, x, x, np.zeros(3), np.zeros(3), method='rotate')
  np.testing.assert_array_equal(q, 2 * x)


@pytest.mark.parametrize(
  'spec, message',
  [
    (
      'yarn(scale=2., train_length=4294967296)',
      'train_length of yarn is 4294967296; it must be <= 2147483647',
    ),
    ('yarn(scale=4.)', 'train_length of yarn is None; it must be >= 1'),
    ('yarn(scale=.5, train_length=8)', 'scale of yarn is 0.5'),
    ('yarn(scale=2., train_length=8, dynamic=True)', 'excludes scale=2.0'),
    (
      'yarn(scale=2., train_length=8, beta_fast=1.)',
      'beta_fast of yarn is 1.0; it must be > 1.0',
    ),
    (
      'yarn(scale=2., train_length=8, beta_slow=0.)',
      'beta_slow of yarn is 0.0; it must be > 0',
    ),
    ('ntk(dynamic=True)', 'dynamic needs train_length'),
    ('ntk(fraction=.25)', 'at least 4 rotated dimensions, got 2'),
    ('llama3(dynamic=True)', 'no dynamic form'),
    (
      'llama3(low_freq=4., high_freq=4.)',
      'high_freq of llama3 is 4.0; it must be > 4.0',
    ),
    ('llama3(low_freq=-1.)', 'low_freq of llama3 is -1.0; it must be > 0'),
    ('llama3(scale=.5)', 'scale of llama3 is 0.5'),
    (
      'longrope(train_length=8)',
      'short_factors of longrope must be 4 .* got None',
    ),
    (
      'longrope(train_length=8, short_factors=(1., 1., 1., 1.), '
      'long_factors=(1.,))',
      'long_factors of longrope must be 4 .* got .1.0,.',
    ),
    (
      'longrope(train_length=8, short_factors=(1., 1., 0., 1.), '
      'long_factors=(1., 1., 1., 1.))',
      'short_factors .* positive numbers, got .1.0, 1.0, 0.0, 1.0.',
    ),
    (
      'longrope(train_length=8, short_factors=(1., 1., 1., 1.), '
      'long_factors=(1., 1., -1., 1.))',
      'long_factors .* positive numbers',
    ),
    (
      'longrope(train_length=8, short_factors=(1., 1., 1., 1.), '
      'long_factors=(1., 1., None, 1.))',
      'long_factors .* positive numbers, got .1.0, 1.0, None, 1.0.',
    ),
  ],
)
def test_bad_keys(spec, message):
  with pytest.raises(errors.SpecError, match=message):
    create(spec, 8)


def test_longrope_interpolates_by_itself():
  ones = '(1., 1., 1., 1.)'
  spec = f'longrope(train_length=8, short_factors={ones}, long_factors={ones})'
  encoding = create(spec, 8)
  encodings.check_scheme(encoding, positions.create('standard'))
  with pytest.raises(errors.CombinationError, match='so does longrope'):
    encodings.check_scheme(
      encoding, positions.create('interpolated(train_length=8)')
    )
