"""Tests `lengen_jax/encodings/kerple.py`.

Golden arrays: `golden/encodings/README.json`, file kerple.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings
from tests import helpers

GOLDEN = np.load(helpers.GOLDEN / 'encodings' / 'kerple.npz')
KINDS = {'kerple_log': 'kerple_log', 'kerple_power_ap_': 'kerple_power'}
CASES = sorted({'/'.join(key.split('/')[:2]) for key in GOLDEN if '/' in key})


def from_golden(case):
  """The encoding and (unclamped) parameters of a golden case."""
  params = {k: GOLDEN[f'{case}/param/bias_{k}'] for k in 'pa'}
  num_heads = params['p'].size
  return create(KINDS[case.split('/')[1]], num_heads), params


def create(name, num_heads=3):
  return encodings.create(name, num_heads=num_heads, head_dim=8)


def bias(encoding, params, q_positions, k_positions, **kwargs):
  return encoding.apply(
    {'params': params}, q_positions, k_positions, method='bias', **kwargs
  )


def formula(name, p, a, d):
  """Biases of all heads at a distance, in float64."""
  p, a = np.float64(p), np.float64(a)
  if name == 'kerple_log':
    return -np.maximum(p, 0.01) * np.log(1 + np.maximum(a, 0.01) * abs(d))
  return -np.maximum(a, 0.01) * abs(d) ** np.clip(p, 0.01, 2)


def close_entries(got, want, tolerance=1e-5):
  """Compares each entry by its own size; powers span six decades."""
  np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize('n', [1, 7, 64])
@pytest.mark.parametrize('case', CASES)
def test_golden(case, n):
  encoding, params = from_golden(case)
  # Clamps are at work in the first heads.
  assert params['p'][0] < 0.01 and params['a'][0] < 0.01 and params['p'][1] > 2
  p = jnp.arange(n)
  want = GOLDEN[f'{case}/f32/n{n}/bias']
  close_entries(np.tril(bias(encoding, params, p, p)), np.tril(want))


@pytest.mark.parametrize('case', CASES)
def test_golden_rows_of_600(case):
  encoding, params = from_golden(case)
  rows = GOLDEN['rows600']
  visible = np.arange(600) <= rows[:, None]
  got = bias(encoding, params, jnp.asarray(rows), jnp.arange(600))
  want = GOLDEN[f'{case}/f32/n600/bias_rows']
  close_entries(np.where(visible, got, 0), np.where(visible, want, 0))


@pytest.mark.parametrize('case', CASES)
def test_golden_decoding_step(case):
  encoding, params = from_golden(case)
  got = bias(encoding, params, jnp.array([63]), jnp.arange(64))
  close_entries(got, GOLDEN[f'{case}/f32/decode64'])


@pytest.mark.parametrize('case', CASES)
def test_golden_gradients(case):
  """The clamp is straight through: the raw parameter has a full gradient."""
  encoding, params = from_golden(case)
  h, i, j = np.ogrid[: encoding.num_heads, :64, :64]
  cotangent = np.float32(np.cos(0.7 * h + 0.013 * i - 0.029 * j) * (j <= i))
  p = jnp.arange(64)

  @jax.jit
  @jax.grad
  def gradient(params):
    return jnp.sum(bias(encoding, params, p, p) * cotangent)

  got = gradient(params)
  for name in 'pa':
    want = GOLDEN[f'{case}/f64/n64/grad/bias_{name}']
    np.testing.assert_allclose(got[name], want, rtol=5e-6)
    assert np.abs(got[name][:2]).min() > 0


@pytest.mark.parametrize('case', CASES)
def test_golden_project(case):
  encoding, params = from_golden(case)
  projected = encoding.project(params)
  for name in 'pa':
    want = GOLDEN[f'{case}/f64/n64/param_clamped/bias_{name}']
    np.testing.assert_allclose(projected[name], want, rtol=1e-6)
    assert projected[name].dtype == np.float32
  again = encoding.project(projected)
  jax.tree.map(np.testing.assert_array_equal, again, projected)
  # The bias uses projected values already before any projection.
  p = jnp.arange(9)
  np.testing.assert_array_equal(
    bias(encoding, params, p, p), bias(encoding, projected, p, p)
  )


@pytest.mark.parametrize('bidirectional', [False, True])
@pytest.mark.parametrize('name', ['kerple_log', 'kerple_power'])
def test_formula(name, bidirectional):
  encoding = create(name)
  params = {
    'p': np.float32([0.7, -0.3, 2.7]),
    'a': np.float32([1.3, 0.6, 0.001]),
  }
  rng = np.random.default_rng(0)
  q = np.float32(rng.uniform(0, 300, (2, 5)))
  k = np.float32(rng.uniform(0, 300, (2, 7)))
  q[:, 0] = k[:, 0]
  want = np.zeros((2, 3, 5, 7))
  for b, i, j in np.ndindex(2, 5, 7):
    d = np.float64(q[b, i]) - np.float64(k[b, j])
    want[b, :, i, j] = formula(name, params['p'], params['a'], d)
  got = bias(encoding, params, q, k, bidirectional=bidirectional)
  close_entries(got, want)


@pytest.mark.parametrize('name', ['kerple_log', 'kerple_power'])
def test_gradients_are_finite_at_distance_zero(name):
  encoding = create(name)
  params = {k: jnp.array([0.01, 0.5, 1.0]) for k in 'pa'}
  p = jnp.arange(3)
  gradient = jax.grad(lambda x: bias(encoding, x, p, p).sum())(params)
  assert all(np.isfinite(x).all() for x in gradient.values())


@pytest.mark.parametrize(
  'name, want', [('kerple_log', -0.125), ('kerple_power', -(2**-2.5))]
)
def test_gradients_to_positions(name, want):
  """They are finite at distance 0, where the slope of d^p is infinite."""
  encoding = create(name)
  params = {k: jnp.array([0.01, 0.5, 1.0]) for k in 'pa'}

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1))
  def gradient(q, k):
    return bias(encoding, params, q[None], k[None])[1].sum()

  two = jnp.float32(2)
  np.testing.assert_allclose(gradient(two, two - 2), [want, -want], rtol=1e-6)
  for head in gradient(two, two):
    assert np.isfinite(head)


@pytest.mark.parametrize('name', ['kerple_log', 'kerple_power'])
def test_initial_values(name):
  encoding = create(name, num_heads=2000)
  params = encoding.init(jax.random.key(0), method='bias_fn')['params']
  for key, upper in (('p', 2), ('a', 1)):
    x = np.asarray(params[key].unbox())
    assert 0 <= x.min() < 0.01 * upper and 0.99 * upper < x.max() < upper
    np.testing.assert_allclose(x.mean(), upper / 2, rtol=0.05)


def test_project_keeps_other_parameters():
  extra = {'p': jnp.zeros(3), 'a': jnp.zeros(3), 'other': jnp.array([-5.0])}
  projected = create('kerple_log').project(extra)
  np.testing.assert_array_equal(projected['other'], [-5.0])
  np.testing.assert_allclose(projected['p'], 0.01)
