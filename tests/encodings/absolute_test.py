"""Tests `lengen_jax/encodings/absolute.py`.

Golden arrays: `golden/encodings/README.json`, file ruoss_official.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors
from tests import helpers

GOLDEN = np.load(helpers.GOLDEN / 'encodings' / 'ruoss_official.npz')
SINCOS = sorted(k for k in GOLDEN if k.startswith('sincos/'))


def create(spec, width=8):
  return encodings.create(spec, num_heads=2, head_dim=4, width=width)


def embed(encoding, x, positions, params=None):
  variables = {'params': params} if params else {}
  return encoding.apply(variables, x, positions, method='embed')


@pytest.mark.parametrize('key', SINCOS)
def test_golden_sinusoidal(key, assert_close):
  want = GOLDEN[key]
  n, d = want.shape
  x = jnp.zeros((2, n, d))
  got = embed(create('sinusoidal', d), x, jnp.arange(n))
  assert_close(got, np.stack([want, want]), 1e-6)


def test_sinusoidal_formula(assert_close):
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(2, 5, 8)))
  positions = np.float32(rng.uniform(0, 50, (2, 5)))
  want = np.float64(x)
  for b, n, k in np.ndindex(2, 5, 4):
    angle = np.float64(positions[b, n]) * 300.0 ** (-2 * k / 8)
    want[b, n, k] += np.sin(angle)
    want[b, n, 4 + k] += np.cos(angle)
  assert_close(embed(create('sinusoidal(base=300.)'), x, positions), want)


def test_rows_of_positions_add_their_vectors(assert_close):
  rows = np.int32([[[3, 1, 4, 1, 5]] * 2, [[9, 2, 6, 5, 3]] * 2])
  x = np.float32(np.random.default_rng(0).normal(size=(2, 5, 8)))
  tables = {
    name: jnp.float32(np.random.default_rng(n).normal(size=(10, 8)))
    for n, name in enumerate(('table', 'table_1'))
  }
  got = embed(create('learned(max_position=10, rows=2)'), x, rows, tables)
  want = x + tables['table'][rows[0]] + tables['table_1'][rows[1]]
  assert_close(got, want, 1e-6)
  sinusoidal = create('sinusoidal')
  want = embed(sinusoidal, embed(sinusoidal, x, rows[0]), rows[1])
  assert_close(embed(sinusoidal, x, rows), want, 1e-6)
  with pytest.raises(errors.CombinationError, match='gets 2; give it rows=2'):
    embed(
      create('learned(max_position=10)'), x, rows, {'table': tables['table']}
    )


def test_sinusoidal_needs_an_even_width():
  with pytest.raises(errors.ConfigError, match='got 7'):
    embed(create('sinusoidal', 7), jnp.zeros((1, 2, 7)), jnp.arange(2))


def test_learned_formula():
  rng = np.random.default_rng(0)
  table = jnp.float32(rng.normal(size=(10, 8)))
  x = np.float32(rng.normal(size=(2, 5, 8)))
  positions = np.int32(rng.integers(0, 10, (2, 5)))
  got = embed(
    create('learned(max_position=10)'), x, positions, {'table': table}
  )
  np.testing.assert_array_equal(got, x + table[positions])


@pytest.mark.parametrize('spec', ['sinusoidal', 'learned(max_position=9)'])
def test_sums_in_float32_and_returns_the_dtype(spec):
  """A 16-bit input is rounded once, after the sum."""
  x = jax.random.normal(jax.random.key(0), (2, 5, 8), jnp.bfloat16)
  positions = jnp.arange(5)
  encoding = create(spec)
  variables = encoding.init(jax.random.key(1), x, positions, method='embed')

  def apply(x):
    return encoding.apply(variables, x, positions, method='embed')

  got = apply(x)
  assert got.dtype == jnp.bfloat16
  want = apply(x.astype(jnp.float32)).astype(jnp.bfloat16)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize('spec', ['sinusoidal', 'learned(max_position=9)'])
def test_positions_without_a_batch(spec):
  x = jnp.ones((2, 5, 8))
  encoding = create(spec)
  variables = encoding.init(jax.random.key(1), x, jnp.arange(5), method='embed')
  outputs = [
    encoding.apply(variables, x, positions, method='embed')
    for positions in (
      jnp.arange(5),
      jnp.arange(5)[None],
      jnp.tile(jnp.arange(5), (2, 1)),
    )
  ]
  for y in outputs[1:]:
    np.testing.assert_array_equal(y, outputs[0])


def test_learned_out_of_range_raises_on_the_host():
  encoding = create('learned(max_position=4)')
  params = {'table': jnp.ones((4, 8))}
  x = jnp.zeros((1, 2, 8))
  embed(encoding, x, jnp.array([0, 3]), params)
  with pytest.raises(errors.LengthError, match='position 4') as caught:
    embed(encoding, x, jnp.array([0, 4]), params)
  assert 'max_position=4' in str(caught.value)
  assert 'max_position=5' in str(caught.value)
  with pytest.raises(errors.LengthError, match='-2; positions begin at 0'):
    embed(encoding, x, jnp.array([-2, 3]), params)


@pytest.mark.parametrize('position', [4, 1000, -1, -4])
def test_learned_out_of_range_is_nan_inside_jit(position):
  encoding = create('learned(max_position=4)')
  params = {'table': jnp.ones((4, 8))}
  x = jnp.zeros((1, 2, 8))
  apply = jax.jit(lambda p: embed(encoding, x, p, params))
  got = apply(jnp.array([3, position]))
  np.testing.assert_array_equal(got[0, 0], np.ones(8))
  assert np.isnan(got[0, 1]).all()


def test_learned_takes_positions_that_a_jitted_function_closes_over():
  encoding = create('learned(max_position=4)')
  params = {'table': jnp.ones((4, 8))}
  positions = jnp.array([0, 3])
  apply = jax.jit(lambda x: embed(encoding, x, positions, params))
  np.testing.assert_array_equal(apply(jnp.zeros((1, 2, 8))), np.ones((1, 2, 8)))


def test_learned_refuses_fractions():
  encoding = create('learned(max_position=4)')
  params = {'table': jnp.ones((4, 8))}
  with pytest.raises(errors.CombinationError, match='got float32'):
    embed(encoding, jnp.zeros((1, 2, 8)), jnp.array([0.0, 0.5]), params)


def test_learned_gradient_reaches_used_rows_only():
  encoding = create('learned(max_position=4)')
  x = jnp.zeros((1, 3, 8))
  positions = jnp.array([2, 0, 2])
  gradient = jax.grad(
    lambda table: embed(encoding, x, positions, {'table': table}).sum()
  )(jnp.ones((4, 8)))
  np.testing.assert_array_equal(gradient[:, 0], [1, 0, 2, 0])


def test_learned_initial_values():
  encoding = create('learned(max_position=64)', width=100)
  x = jnp.zeros((1, 1, 100))
  variables = encoding.init(
    jax.random.key(0), x, jnp.zeros(1, int), method='embed'
  )
  table = variables['params']['table'].unbox()
  # That of token embeddings times sqrt(width).
  np.testing.assert_allclose(table.std(), 0.02 * 10, rtol=0.05)


@pytest.mark.parametrize('keys', ['', 'max_position=0', 'max_position=None'])
def test_learned_needs_max_position(keys):
  with pytest.raises(errors.SpecError, match='is (0|None); it must be >= 1'):
    create(f'learned({keys})')


def test_learned_needs_the_width():
  encoding = create('learned(max_position=4)', width=None)
  with pytest.raises(errors.ConfigError, match='width'):
    encoding.init(
      jax.random.key(0), jnp.zeros((1, 1, 8)), jnp.arange(1), method='embed'
    )
