"""Tests `lengen_jax/encodings/t5.py`.

Golden arrays: `golden/encodings/README.json`, file t5_hf.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors
from lengen_jax.encodings import t5
from tests import helpers

GOLDEN = np.load(helpers.GOLDEN / 'encodings' / 't5_hf.npz')
BUCKETS = sorted(key for key in GOLDEN if key.startswith('bucket/'))


def create(num_buckets=32, max_distance=128, num_heads=6):
  return encodings.create(
    f't5(num_buckets={num_buckets}, max_distance={max_distance})',
    num_heads=num_heads,
    head_dim=8,
  )


def buckets(encoding, distances, bidirectional):
  """Bucket of each distance, read through a table that holds row numbers."""
  table = jnp.arange(encoding.num_buckets, dtype=jnp.float32)[:, None]
  return np.asarray(
    encoding.strip(
      {'table': table}, jnp.asarray(distances), bidirectional=bidirectional
    )
  )[0]


def formula(d, num_buckets, max_distance, bidirectional):
  """Bucket of one distance; logarithms rounded, hence edges exact."""
  bucket = 0
  if bidirectional:
    num_buckets //= 2
    bucket = num_buckets if d < 0 else 0
    d = abs(d)
  d = math.floor(max(d, 0))
  exact = num_buckets // 2
  if d < exact:
    return bucket + d
  steps = math.log(d / exact) / math.log(max_distance / exact)
  large = exact + math.floor(round(steps * (num_buckets - exact), 9))
  return bucket + min(large, num_buckets - 1)


@pytest.mark.parametrize('key', BUCKETS)
def test_golden_buckets(key):
  _, direction, num_buckets, max_distance = key.split('/')
  encoding = create(int(num_buckets[2:]), int(max_distance[2:]))
  got = buckets(encoding, -GOLDEN['rel_memory_minus_query'], direction == 'bi')
  np.testing.assert_array_equal(got, GOLDEN[key])


@pytest.mark.parametrize('size', ['q64_k64', 'q7_k200', 'q1_k301_past300'])
@pytest.mark.parametrize('direction', ['bi', 'causal'])
def test_golden_bias(direction, size):
  table = GOLDEN[f'bias/{direction}_nb32/table']
  want = GOLDEN[f'bias/{direction}_nb32/{size}']
  q_positions = jnp.arange(want.shape[1])
  if 'past' in size:
    q_positions += 300
  got = create(num_heads=table.shape[1]).apply(
    {'params': {'table': table}},
    q_positions,
    jnp.arange(want.shape[2]),
    bidirectional=direction == 'bi',
    method='bias',
  )
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize('bidirectional', [False, True])
@pytest.mark.parametrize(
  'num_buckets, max_distance',
  [(4, 3), (4, 128), (16, 128), (32, 128), (64, 128), (32, 20), (32, 100_000)],
)
def test_buckets(num_buckets, max_distance, bidirectional):
  encoding = create(num_buckets, max_distance)
  distances = np.arange(-300, 3000)
  want = [
    formula(d, num_buckets, max_distance, bidirectional) for d in distances
  ]
  got = buckets(encoding, distances, bidirectional)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize('bidirectional', [False, True])
def test_formula(bidirectional):
  encoding = create(8, 20, num_heads=3)
  rng = np.random.default_rng(0)
  table = np.float32(rng.normal(size=(8, 3)))
  q = np.float32(rng.uniform(0, 50, (2, 5)))
  k = np.float32(rng.uniform(0, 50, (2, 7)))
  q[:, 0] = k[:, 0]
  want = np.zeros((2, 3, 5, 7))
  for b, i, j in np.ndindex(2, 5, 7):
    d = np.float64(q[b, i]) - np.float64(k[b, j])
    want[b, :, i, j] = table[formula(d, 8, 20, bidirectional)]
  got = encoding.apply(
    {'params': {'table': table}},
    q,
    k,
    bidirectional=bidirectional,
    method='bias',
  )
  np.testing.assert_array_equal(got, want)


def test_thresholds_of_the_default():
  far = [19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
  assert t5.thresholds(32, 128) == [*range(1, 17), *far]


def test_thresholds_are_exact_at_whole_powers():
  # (X / e)^(step / spread) is a whole number here: 8, 16, 32, 64 and so on.
  assert t5.thresholds(16, 8 * 2**8) == [
    *range(1, 9),
    *(8 * 2**step for step in range(1, 8)),
  ]


def test_table_gradient_is_a_histogram():
  encoding = create(8, 20, num_heads=1)
  p = jnp.arange(12)
  gradient = jax.grad(
    lambda table: encoding.apply(
      {'params': {'table': table}}, p, p, method='bias'
    ).sum()
  )(jnp.ones((8, 1)))
  d = np.arange(12)[:, None] - np.arange(12)
  want = np.bincount([formula(x, 8, 20, False) for x in d.ravel()], minlength=8)
  np.testing.assert_array_equal(gradient[:, 0], want)


def test_initial_values():
  encoding = create(64, num_heads=64)
  table = encoding.init(jax.random.key(0), method='bias_fn')['params']['table']
  np.testing.assert_allclose(table.unbox().std(), 0.02, rtol=0.1)


@pytest.mark.parametrize(
  'num_buckets, max_distance, value',
  [
    (2, 128, 'is 2; it must be even and >= 4'),
    (33, 128, 'is 33; it must be even'),
    (32, 16, 'max_distance=16 must exceed num_buckets / 2 = 16'),
  ],
)
def test_refuses(num_buckets, max_distance, value):
  with pytest.raises(errors.SpecError, match=value):
    create(num_buckets, max_distance)
