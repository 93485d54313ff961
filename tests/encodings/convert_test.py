"""Tests `lengen_jax/encodings/convert.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors
from lengen_jax.encodings import convert


def create(spec, num_heads=8):
  return encodings.create(spec, num_heads=num_heads, head_dim=8)


@functools.partial(jax.jit, static_argnums=0)
def _bias(encoding, params, q_positions, k_positions):
  return encoding.apply(
    {'params': params}, q_positions, k_positions, method='bias'
  )


def test_sampled_pairs():
  q, k = convert.sample_pairs(jax.random.key(0), 1000)
  d = q[:, None] - k
  assert (q.min(), q.max()) == (0, 999)
  assert (d >= 0).all() and (k >= 0).all()
  # Logarithmically as many are below 31 as above, evenly 31 of 1000 are.
  for near in (q < 31).mean(), (d[q > 900] < 31).mean():
    assert 0.2 < near < 0.35


def brute_force(want, fire, params, max_length):
  """Largest and root mean squared error per head, and scale per head."""
  i, j = np.tril_indices(max_length)
  p = jnp.arange(max_length)
  got = np.asarray(_bias(fire, params, p, p), np.float64)[:, i, j]
  want = np.asarray(want(p, p), np.float64)[:, i, j]
  error = np.abs(got - want)
  return error.max(1), (error**2).mean(1) ** 0.5, np.abs(want).max(1)


@functools.cache
def fitted(spec, fire_spec, max_length, steps=500):
  """A bias, a FIRE and the fit of the latter to the former."""
  encoding, fire = create(spec), create(fire_spec)
  rng = np.random.default_rng(1)
  params = {}
  if spec == 'kerple_log':
    params = {name: np.float32(rng.uniform(0.01, 2, 8)) for name in 'pa'}
  target = encoding.apply({'params': params}, method='bias_fn')
  fit = convert.fit_fire(
    target, fire, max_length=max_length, rng=jax.random.key(0), steps=steps
  )
  return target, fire, fit


@pytest.mark.parametrize('spec', ['alibi', 'kerple_log'])
def test_fit_of_a_default_fire(spec):
  target, fire, fit = fitted(spec, 'fire', 256)
  assert fit.rms_error < 0.01 * fit.scale
  max_error, rms, scale = brute_force(target, fire, fit.params, 256)
  # Heads of small slopes as well as those of large ones.
  assert (rms < 0.03 * scale).all()
  assert (max_error < 0.15 * scale).all()


@pytest.mark.slow
def test_fit_with_a_small_threshold():
  # From its own threshold the error would be 0.06.
  _, _, fit = fitted('alibi', 'fire(init_threshold=8.)', 256)
  assert fit.rms_error < 0.01 * fit.scale


def test_fit_measures_all_pairs():
  # The pairs of this length are in two blocks.
  small = 'fire(mlp_width=3, hidden_layers=0)'
  target, fire, fit = fitted('kerple_log', small, 520, steps=3)
  max_error, rms, scale = brute_force(target, fire, fit.params, 520)
  np.testing.assert_allclose(fit.max_error, max_error.max(), rtol=1e-4)
  np.testing.assert_allclose(fit.rms_error, (rms**2).mean() ** 0.5, rtol=1e-4)
  np.testing.assert_allclose(fit.scale, scale.max(), rtol=1e-6)


def test_fit_is_deterministic_by_its_key(assert_close):
  first, again, other = (
    convert.fit_fire(
      create('alibi', 2).apply({}, method='bias_fn'),
      create('fire(hidden_layers=0)', 2),
      max_length=32,
      rng=jax.random.key(seed),
      steps=3,
    )
    for seed in (0, 0, 1)
  )
  assert_close(first.params, again.params, 0)
  assert first.max_error == again.max_error != other.max_error


@pytest.mark.slow
def test_fit_to_a_bare_function():
  """A bias in numpy of both positions, undefined after the query."""

  def target(q, k):
    i, j = np.ogrid[: len(q), : len(k)]
    i, j = np.asarray(q)[i], np.asarray(k)[j]
    b = np.where(j > i, np.nan, -(i - j) / np.maximum(i, 16))
    return np.stack([b, 0 * b])

  fire = create("fire(transform='identity', init_threshold=16.)", 2)
  fit = convert.fit_fire(
    target, fire, max_length=64, rng=jax.random.key(0), steps=500
  )
  assert fit.scale == 1
  assert fit.rms_error < 0.03


def test_fit_refuses():
  rng = jax.random.key(0)
  with pytest.raises(errors.LengthError, match='got 0'):
    convert.fit_fire(np.zeros, create('fire'), max_length=0, rng=rng)
  three = create('alibi', 3).apply({}, method='bias_fn')
  with pytest.raises(
    errors.CombinationError, match=r'has shape \(3, .*not \(2, '
  ):
    convert.fit_fire(three, create('fire', 2), max_length=8, rng=rng)
  with pytest.raises(errors.CombinationError, match='alibi is not FIRE'):
    convert.fit_fire(three, create('alibi', 3), max_length=8, rng=rng)
