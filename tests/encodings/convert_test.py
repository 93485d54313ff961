"""Tests `lengen_jax/encodings/convert.py`, and what it needs of `fire.py`."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax.encodings import convert

LENGTH = 2048
# The first queries, some between, those about a power of two, and the last.
ROWS = np.unique(
  np.r_[0:4, np.linspace(4, LENGTH - 4, 24, dtype=int), 1023:1026, 2044:2048]
)


def create(spec, num_heads=8):
  return encodings.create(spec, num_heads=num_heads, head_dim=8)


def random_params(spec, num_heads, rng):
  """Parameters of any trained model, KERPLE's beyond its clamps too."""
  if 'kerple' in spec:
    ends = np.array([-0.5, 0.001, 0.01, 0.05, 2.0, 2.5])
    p = np.r_[ends, rng.uniform(0.01, 2, num_heads - 6)]
    a = np.r_[rng.uniform(0.01, 3, num_heads - 2), 0.001, -1.0]
    return {'p': np.float32(p), 'a': np.float32(a)}
  if 't5' in spec:
    buckets = create(spec).num_buckets
    return {'table': np.float32(rng.normal(size=(buckets, num_heads)))}
  return {}


def alibi(params, num_heads, d):
  del params
  slopes = {
    8: 2.0 ** -np.arange(1, 9),
    12: 2.0 ** -np.r_[1:9, 0.5:4:1],
  }
  return -slopes[num_heads][:, None] * d


def t5(params, num_heads, d, buckets=32, max_distance=128):
  del num_heads
  half = buckets // 2
  # Not on the edges of buckets, where a logarithm may fall on either side.
  log = np.log((np.maximum(d, 1) + 1e-9) / half) / np.log(max_distance / half)
  far = np.minimum(half + np.floor(log * half).astype(int), buckets - 1)
  return params['table'][np.where(d < half, d, far)].T


def kerple_log(params, num_heads, d):
  del num_heads
  p, a = (np.maximum(np.float64(params[k]), 0.01)[:, None] for k in 'pa')
  return -p * np.log(1 + a * d)


def kerple_power(params, num_heads, d):
  del num_heads
  a = np.maximum(np.float64(params['a']), 0.01)[:, None]
  p = np.clip(np.float64(params['p']), 0.01, 2)[:, None]
  return -a * np.float64(d) ** p


def sandwich(params, num_heads, d, dbar=128):
  del params
  ratio = num_heads / (8 * np.arange(1, num_heads + 1))
  k = np.arange(dbar // 2)[:, None]
  return ratio[:, None] * np.cos(d / 10_000 ** (2 * k / dbar)).sum(0)


FORMULAS = {
  'alibi': alibi,
  't5': t5,
  't5(num_buckets=64, max_distance=3000)': functools.partial(
    t5, buckets=64, max_distance=3000
  ),
  'kerple_log': kerple_log,
  'kerple_power': kerple_power,
  'sandwich': sandwich,
  'sandwich(dbar=6)': functools.partial(sandwich, dbar=6),
}


@functools.partial(jax.jit, static_argnums=0)
def _bias(encoding, params, q_positions, k_positions):
  return encoding.apply(
    {'params': params}, q_positions, k_positions, method='bias'
  )


def bias(encoding, params, q_positions, k_positions):
  """Float64, 0 at keys after the query."""
  got = _bias(encoding, params, jnp.asarray(q_positions), k_positions)
  visible = np.asarray(k_positions) <= np.asarray(q_positions)[:, None]
  return np.where(visible, np.asarray(got, np.float64), 0)


@pytest.mark.parametrize('num_heads', [8, 12])
@pytest.mark.parametrize('spec', FORMULAS)
def test_to_fire_equals_the_bias(spec, num_heads):
  rng = np.random.default_rng(num_heads)
  params = random_params(spec, num_heads, rng)
  encoding = create(spec, num_heads)
  fire_spec, fire_params = convert.to_fire(encoding, params, LENGTH)
  fire = create(fire_spec, num_heads)
  got = bias(fire, fire_params, ROWS, jnp.arange(LENGTH))
  d = ROWS[:, None] - np.arange(LENGTH)
  by_distance = FORMULAS[spec](params, num_heads, np.arange(LENGTH))
  want = np.where(d >= 0, by_distance[:, np.abs(d)], 0)
  # Every head to its own scale; of the heads the largest may hide the rest.
  error = np.abs(got - want).max((1, 2)) / np.abs(want).max((1, 2))
  assert error.max() < 1e-5


@pytest.mark.parametrize('spec', FORMULAS)
def test_to_fire_gives_the_parameters_that_fire_has(spec):
  encoding = create(spec)
  params = random_params(spec, 8, np.random.default_rng(0))
  fire_spec, fire_params = convert.to_fire(encoding, params, 10)
  made = create(fire_spec).init(jax.random.key(0), method='bias_fn')
  want = jax.tree.map(lambda x: (x.shape, x.dtype), nn.unbox(made['params']))
  assert jax.tree.map(lambda x: (x.shape, x.dtype), fire_params) == want


@pytest.mark.parametrize('max_length', [1, 2, 31, 33])
def test_to_fire_of_short_lengths(max_length):
  encoding = create('alibi')
  spec, params = convert.to_fire(encoding, {}, max_length)
  p = jnp.arange(max_length)
  want = bias(encoding, {}, p, p)
  # Equal: the threshold is so chosen that the division rounds nothing.
  np.testing.assert_array_equal(bias(create(spec), params, p, p), want)


def test_to_fire_interpolates_beyond_the_length():
  spec, params = convert.to_fire(create('alibi'), {}, 64)
  far = bias(create(spec), params, [128], jnp.arange(129))
  # There the normaliser is twice as large.
  want = bias(create('alibi'), {}, [128], jnp.arange(129)) / 2
  np.testing.assert_allclose(far, want, rtol=1e-6)


def test_to_fire_takes_what_init_gives(assert_close):
  # With the boxes that hold logical axis names.
  encoding = create('kerple_log')
  boxed = encoding.init(jax.random.key(0), method='bias_fn')['params']
  boxed_params = convert.to_fire(encoding, boxed, 64)
  params = convert.to_fire(encoding, nn.unbox(boxed), 64)
  assert boxed_params[0] == params[0]
  assert_close(boxed_params[1], params[1], 0)


def test_to_fire_keeps_shared():
  assert create(convert.to_fire(create('alibi(shared=True)'), {}, 8)[0]).shared
  assert not create(convert.to_fire(create('alibi'), {}, 8)[0]).shared


@pytest.mark.parametrize('spec', ['kerple_log', 'kerple_power', 'sandwich'])
def test_gradients_of_a_converted_fire_are_finite(spec):
  params = random_params(spec, 8, np.random.default_rng(0))
  fire_spec, fire_params = convert.to_fire(create(spec), params, 64)
  fire = create(fire_spec)
  p = jnp.arange(64)

  @jax.jit
  @jax.grad
  def gradient(params):
    # Keys after the query too: attention evaluates them before its mask.
    return jnp.sum(fire.apply({'params': params}, p, p, method='bias'))

  for leaf in jax.tree.leaves(gradient(fire_params)):
    assert np.isfinite(leaf).all()


@pytest.mark.parametrize(
  'spec, message',
  [
    ('fire', 'fire is FIRE already'),
    ('rope', 'rope has no additive bias.*keep rope'),
    ('nope', 'nope has no additive bias'),
    ('shaw(left=4)', 'shaw has no additive bias'),
  ],
)
def test_to_fire_refuses(spec, message):
  with pytest.raises(errors.CombinationError, match=message):
    convert.to_fire(create(spec), {}, 8)


def test_to_fire_refuses_what_it_does_not_know():
  encoding = encodings.FromFunction(num_heads=8, head_dim=8, function=alibi)
  with pytest.raises(errors.CombinationError, match='from_function.*fit_fire'):
    convert.to_fire(encoding, {}, 8)

  class Steeper(type(create('alibi'))):
    """Derived, so that its bias may be another."""

  with pytest.raises(errors.CombinationError, match='steeper.*fit_fire'):
    convert.to_fire(Steeper(num_heads=8, head_dim=8), {}, 8)


def test_refuses_a_length_below_one():
  with pytest.raises(errors.LengthError, match='got 0'):
    convert.to_fire(create('alibi'), {}, 0)
  with pytest.raises(errors.LengthError, match='got 0'):
    convert.fit_fire(alibi, create('fire'), max_length=0, rng=jax.random.key(0))


def unit(settings):
  """A FIRE of one head that is its activation or transform, and its bias."""
  fire = create(f"fire(normalizer='none', {settings})", 1)
  one = {'kernel': jnp.ones((1, 1)), 'bias': jnp.zeros(1)}
  params = {f'mlp_{n}': one for n in range(fire.hidden_layers + 1)}

  def value(d, shift=0.0):
    params['mlp_0'] = {**one, 'bias': jnp.full(1, shift)}
    return _bias(fire, params, d, jnp.zeros(1))[0, :, 0]

  return value


@pytest.mark.parametrize(
  'activation, function',
  [
    ('step', lambda x: np.where(x > 0, 1.0, 0.0)),
    ('cosine', np.cos),
    ('log1p', lambda x: np.sign(x) * np.log1p(np.abs(x))),
    ('exp', lambda x: np.exp(np.minimum(x, 60.0))),
  ],
)
def test_activations(activation, function, assert_close):
  value = unit(
    f"transform='identity', hidden_layers=1, mlp_width=1, "
    f"activation='{activation}'"
  )
  # Steps of a half, of both signs: the input is distance - 3.
  d = np.arange(0, 8, 0.5, dtype=np.float32)
  assert_close(value(d, -3.0), function(d - 3.0), 1e-6)
  assert_close(value(np.float32([1e4]), 0.0), function(np.float64([1e4])))


@pytest.mark.parametrize('activation, slope', [('log1p', 1.0), ('exp', 1.0)])
def test_activations_have_their_slope_at_zero(activation, slope):
  value = unit(
    f"transform='identity', hidden_layers=1, mlp_width=1, "
    f"activation='{activation}'"
  )
  at_zero = jax.grad(lambda shift: value(jnp.zeros(1), shift)[0])(0.0)
  assert at_zero == slope


def test_transform_ln(assert_close):
  value = unit("transform='ln', hidden_layers=0")
  d = np.float32([0.25, 1, 2, 3, 1000])
  assert_close(value(d), np.log(np.float64(d)), 1e-6)
  zero = value(np.float32([0]))[0]
  # The least exponent of KERPLE makes nothing of it.
  assert np.isfinite(zero) and np.exp(np.float32(0.01) * zero) == 0
  gradient = jax.grad(lambda d: value(d)[0])(np.float32([0]))
  np.testing.assert_array_equal(gradient, 0)


def test_sampled_pairs():
  q, k = convert._sample_pairs(jax.random.key(0), 1000)
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
  params = random_params(spec, 8, np.random.default_rng(1))
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


def test_fit_with_a_small_threshold():
  # From its own threshold the error would be 0.06.
  _, _, fit = fitted('alibi', 'fire(init_threshold=8.)', 256)
  assert fit.rms_error < 0.01 * fit.scale


def test_fit_measures_all_pairs():
  # The pairs of this length are in two blocks.
  small = 'fire(mlp_width=3, hidden_layers=1)'
  target, fire, fit = fitted('kerple_log', small, 520, steps=3)
  max_error, rms, scale = brute_force(target, fire, fit.params, 520)
  np.testing.assert_allclose(fit.max_error, max_error.max(), rtol=1e-4)
  np.testing.assert_allclose(fit.rms_error, (rms**2).mean() ** 0.5, rtol=1e-4)
  np.testing.assert_allclose(fit.scale, scale.max(), rtol=1e-6)


def test_fit_is_deterministic_by_its_key(assert_close):
  def fit(seed):
    return convert.fit_fire(
      create('alibi', 2).apply({}, method='bias_fn'),
      create('fire', 2),
      max_length=32,
      rng=jax.random.key(seed),
      steps=3,
    )

  assert_close(fit(0).params, fit(0).params, 0)
  assert fit(0).max_error == fit(0).max_error != fit(1).max_error


def test_fit_to_a_bare_function():
  """Of numpy, of both positions, and undefined after the query."""

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
  three = create('alibi', 3).apply({}, method='bias_fn')
  with pytest.raises(
    errors.CombinationError, match=r'has shape \(3, .*not \(2, '
  ):
    convert.fit_fire(three, create('fire', 2), max_length=8, rng=rng)
  with pytest.raises(errors.CombinationError, match='alibi is no FIRE'):
    convert.fit_fire(three, create('alibi', 3), max_length=8, rng=rng)
