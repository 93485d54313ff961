"""Tests the ablations of `lengen_jax/encodings/fire.py`.

Every variant is compared with one float64 restatement of the formula.
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors

HEADS = 3
# What the variants change; everything else is as in DEFAULTS.
DEFAULTS = {
  'mlp_width': 5,
  'hidden_layers': 2,
  'init_threshold': 40.0,
  'transform': 'log',
  'threshold': 'learned',
  'normalizer': 'position',
  'max_length': None,
  'activation': 'relu',
  'final_activation': None,
  'sign': False,
}
VARIANTS = {
  'paper': {},
  'identity': {'transform': 'identity'},
  'fixed': {'threshold': 'fixed'},
  'unbounded': {'threshold': 'none'},
  'unnormalized': {'normalizer': 'none'},
  'max_length': {'normalizer': 'max_length', 'max_length': 70},
  'linear': {'hidden_layers': 0},
  'one_hidden': {'hidden_layers': 1},
  'gelu': {'activation': 'gelu'},
  'final_relu': {'final_activation': 'relu'},
  'final_gelu': {'final_activation': 'gelu'},
  'sign': {'sign': True},
  'identity_fixed': {'transform': 'identity', 'threshold': 'fixed'},
  'identity_unbounded': {'transform': 'identity', 'threshold': 'none'},
  'identity_unnormalized': {'transform': 'identity', 'normalizer': 'none'},
  'identity_max_length': {
    'transform': 'identity',
    'normalizer': 'max_length',
    'max_length': 70,
  },
  'sign_max_length_gelu': {
    'sign': True,
    'normalizer': 'max_length',
    'max_length': 70,
    'hidden_layers': 1,
    'activation': 'gelu',
  },
  'sign_unnormalized_linear': {
    'sign': True,
    'normalizer': 'none',
    'hidden_layers': 0,
    'final_activation': 'gelu',
  },
}
INVARIANT = sorted(
  name for name, keys in VARIANTS.items() if 'normalizer' in keys
)
all_variants = pytest.mark.parametrize('name', VARIANTS)
both_directions = pytest.mark.parametrize('bidirectional', [False, True])


def create(name):
  keys = DEFAULTS | VARIANTS[name]
  spec = ', '.join(f'{key}={value!r}' for key, value in keys.items())
  return encodings.create(f'fire({spec})', num_heads=HEADS, head_dim=8)


def tree(keys):
  """Name to shape of every parameter a variant has."""
  shapes = {}
  if keys['transform'] == 'log':
    shapes['c'] = (1,)
  if keys['threshold'] == 'learned' and keys['normalizer'] == 'position':
    shapes['threshold_multiplier'] = (1,)
  fan_in = 2 if keys['sign'] else 1
  for n in range(keys['hidden_layers'] + 1):
    last = n == keys['hidden_layers']
    fan_out = HEADS if last else keys['mlp_width']
    shapes[f'mlp_{n}'] = {'kernel': (fan_in, fan_out), 'bias': (fan_out,)}
    fan_in = fan_out
  return shapes


def parameters(name):
  """Random ones; c and the threshold below zero, to be made positive."""
  rng = np.random.default_rng(sorted(VARIANTS).index(name))
  shapes = tree(DEFAULTS | VARIANTS[name])
  params = jax.tree.map(
    lambda shape: np.float32(rng.normal(size=shape)),
    shapes,
    is_leaf=lambda x: isinstance(x, tuple),
  )
  if 'c' in params:
    params['c'] = np.float32([-0.3])
  if 'threshold_multiplier' in params:
    params['threshold_multiplier'] = np.float32([-0.79])
  return params


def gelu(x):
  return x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def formula(name, params, q, k, bidirectional=False):
  """Biases `[..., H, Q, K]` in float64."""
  keys = DEFAULTS | VARIANTS[name]
  p = jax.tree.map(np.float64, params)
  nonlinear = {'relu': lambda x: np.maximum(x, 0), 'gelu': gelu, None: np.array}
  i = np.asarray(q, np.float64)[..., :, None]
  j = np.asarray(k, np.float64)[..., None, :]

  def psi(x):
    return x if keys['transform'] == 'identity' else np.log(abs(p['c']) * x + 1)

  x = psi(abs(i - j))
  if keys['normalizer'] == 'max_length':
    x = x / psi(np.float64(keys['max_length']))
  elif keys['normalizer'] == 'position':
    reach = np.maximum(i, j) if bidirectional else i
    if keys['threshold'] == 'fixed':
      reach = np.maximum(reach, keys['init_threshold'])
    elif keys['threshold'] == 'learned':
      threshold = p['threshold_multiplier'] * keys['init_threshold']
      reach = np.maximum(reach, abs(threshold))
    x = x / (psi(reach) + 1e-6)
  h = x[..., None]
  if keys['sign']:
    h = np.stack([x, np.sign(i - j)], -1)
  for n in range(keys['hidden_layers']):
    h = h @ p[f'mlp_{n}']['kernel'] + p[f'mlp_{n}']['bias']
    h = nonlinear[keys['activation']](h)
  last = p[f'mlp_{keys["hidden_layers"]}']
  h = nonlinear[keys['final_activation']](h @ last['kernel'] + last['bias'])
  return np.moveaxis(h, -1, -3)


@functools.partial(jax.jit, static_argnums=(0, 4))
def tile(encoding, params, q, k, bidirectional=False):
  return encoding.apply(
    {'params': params}, q, k, bidirectional=bidirectional, method='bias'
  )


@functools.partial(jax.jit, static_argnums=(0, 1, 5))
def part(encoding, method, params, first, second=None, bidirectional=False):
  """What `rows` or `strip` gives for parameters of the module."""
  bias_fn = encoding.apply(
    {'params': params}, bidirectional=bidirectional, method='bias_fn'
  )
  args = (first,) if second is None else (first, second)
  return getattr(encoding, method)(
    bias_fn.params, *args, bidirectional=bidirectional
  )


@pytest.mark.some(6)
@both_directions
@all_variants
def test_formula(name, bidirectional, assert_close):
  rng = np.random.default_rng(0)
  q = np.float32(rng.uniform(1, 100, (2, 5)))
  k = np.float32(rng.uniform(0, 100, (2, 7)))
  q[:, 0] = k[:, 0]
  q[:, 1] = 40
  params = parameters(name)
  got = tile(create(name), params, q, k, bidirectional)
  want = formula(name, params, q, k, bidirectional)
  assert_close(got, want)
  assert want.std() > 0.01


@pytest.mark.parametrize(
  'name', ['unbounded', 'identity_unbounded', 'identity']
)
def test_at_the_start_of_a_sequence(name, assert_close):
  """Without a threshold the first query divides by the 1e-6 alone."""
  params = parameters(name)
  p = jnp.arange(6)
  got = np.tril(tile(create(name), params, p, p))
  assert_close(got, np.tril(formula(name, params, p, p)))
  # A distance of 0 is no distance, whatever it is divided by.
  np.testing.assert_allclose(got[:, 0, 0], got[:, 5, 5], rtol=1e-6)


@pytest.mark.some(6)
@all_variants
def test_parameter_tree(name):
  encoding = create(name)
  variables = encoding.init(jax.random.key(0), method='bias_fn')
  params = nn.unbox(variables['params'])
  assert jax.tree.map(np.shape, params) == tree(DEFAULTS | VARIANTS[name])
  assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype('float32')}
  p = jnp.arange(3)
  again = encoding.init(jax.random.key(0), p, p, method='bias')
  jax.tree.map(np.testing.assert_array_equal, nn.unbox(again['params']), params)


@pytest.mark.parametrize('hidden_layers, fan_in', [(0, 2), (2, 2)])
def test_a_second_input_is_counted_in_the_initial_range(hidden_layers, fan_in):
  encoding = encodings.create(
    f'fire(hidden_layers={hidden_layers}, mlp_width=400, sign=True)',
    num_heads=400,
    head_dim=8,
  )
  variables = encoding.init(jax.random.key(0), method='bias_fn')
  first = nn.unbox(variables['params'])['mlp_0']
  for values in first.values():
    bound = fan_in**-0.5
    assert 0.95 * bound < np.abs(values).max() <= bound


@pytest.mark.some(6)
@both_directions
@all_variants
def test_rows_equal_tile(name, bidirectional, assert_close):
  encoding, params = create(name), parameters(name)
  anchors = jnp.array([9.0, 20.0, 40.5, 90.0])
  distances = jnp.array([-9.0, -0.5, 0.0, 1.0, 2.5, 9.0])
  rows = part(encoding, 'rows', params, anchors, distances, bidirectional)
  assert rows.shape == (4, HEADS, 6)
  q = np.asarray(anchors)[:, None]
  want = formula(name, params, q, q - np.asarray(distances), bidirectional)
  assert_close(rows, want[:, :, 0])


@pytest.mark.some(4)
@both_directions
@pytest.mark.parametrize('name', INVARIANT)
def test_strip_equals_tile(name, bidirectional, assert_close):
  encoding, params = create(name), parameters(name)
  assert encoding.translation_invariant
  q, k = jnp.array([0, 3, 64]), jnp.array([0, 1, 3, 80])
  whole = tile(encoding, params, q, k, bidirectional)
  assert_close(whole, formula(name, params, q, k, bidirectional))
  distances = q[:, None] - k[None]
  for shape in ((3, 4), (12,)):
    strip = part(
      encoding, 'strip', params, distances.reshape(shape), None, bidirectional
    )
    assert_close(strip.reshape(HEADS, 3, 4), whole, 1e-6)
  moved = tile(encoding, params, q + 10_000, k + 10_000, bidirectional)
  np.testing.assert_array_equal(moved, whole)


@pytest.mark.parametrize('name', sorted(set(VARIANTS) - set(INVARIANT)))
def test_no_strip_where_the_query_counts(name):
  encoding, params = create(name), parameters(name)
  assert not encoding.translation_invariant
  with pytest.raises(NotImplementedError, match='Fire has no strip'):
    part(encoding, 'strip', params, jnp.arange(3))
  p = jnp.arange(8)
  near, far = (tile(encoding, params, p + n, p + n) for n in (1, 99))
  assert np.abs(np.tril(near) - np.tril(far)).max() > 1e-3


@pytest.mark.some(6)
@all_variants
def test_sign_alone_makes_direction_visible(name):
  p = jnp.arange(60)
  got = np.asarray(tile(create(name), parameters(name), p, p, True))
  difference = np.abs(got - got.swapaxes(1, 2)).max()
  if (DEFAULTS | VARIANTS[name])['sign']:
    assert difference > 0.1
  else:
    assert difference < 1e-5 * np.abs(got).max()


@functools.partial(jax.jit, static_argnums=(0, 4))
def gradient(encoding, params, positions, cotangent, bidirectional=False):
  return jax.grad(
    lambda params: jnp.sum(
      tile(encoding, params, positions, positions, bidirectional) * cotangent
    )
  )(params)


@pytest.mark.some(3)
@all_variants
def test_gradients(name):
  """Along a direction, against differences of the formula."""
  encoding, params = create(name), parameters(name)
  rng = np.random.default_rng(7)
  visible = np.tri(64, dtype=np.float32)
  cotangent = np.float32(rng.normal(size=(HEADS, 64, 64))) * visible
  direction = jax.tree.map(lambda x: rng.normal(size=x.shape), params)

  def value(step):
    moved = jax.tree.map(
      lambda x, v: np.float64(x) + step * v, params, direction
    )
    p = np.arange(64)
    return np.sum(formula(name, moved, p, p) * cotangent)

  got = gradient(encoding, params, jnp.arange(64), cotangent)
  products = jax.tree.map(lambda g, v: (g * v).sum(), got, direction)
  want = (value(1e-7) - value(-1e-7)) / 2e-7
  parts = np.array(jax.tree.leaves(products))
  assert (parts != 0).all()
  np.testing.assert_allclose(parts.sum(), want, atol=2e-3 * abs(parts).max())
  # The same program, from the first position to far ones.
  far = gradient(encoding, params, jnp.arange(64) ** 3, cotangent)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(far))


@pytest.mark.parametrize(
  'name', ['unbounded', 'sign', 'identity_unbounded', 'sign_max_length_gelu']
)
def test_gradients_are_finite_in_both_directions(name):
  encoding, params = create(name), parameters(name)
  p = jnp.array([0, 1, 40, 1000, 100_000])
  got = gradient(encoding, params, p, np.ones((HEADS, 5, 5)), True)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))


def test_hidden_keys_are_finite_without_a_threshold():
  """There the first query divides by the 1e-6 alone."""
  for name in ('unbounded', 'identity_unbounded'):
    p = jnp.arange(2048)
    got = tile(create(name), parameters(name), p[:1], p)
    assert np.isfinite(got).all()


@pytest.mark.parametrize(
  'keys, message',
  [
    ("transform='lgo'", "transform of fire 'lgo'; did you mean 'log'"),
    ("threshold='fix'", "threshold of fire 'fix'; did you mean 'fixed'"),
    ("normalizer='length'", "'length'; did you mean 'max_length'"),
    ("activation='silu'", "activation of fire 'silu'.* valid: .*gelu.*relu"),
    ('activation=None', 'activation of fire is None; it takes str'),
    (
      "final_activation='tanh'",
      "final_activation of fire 'tanh'.* valid: None, ",
    ),
    ("normalizer='max_length'", "max_length with normalizer='max_length'"),
    ('max_length=64', "max_length with normalizer='max_length' and only then"),
    ("normalizer='none', max_length=64", 'and only then'),
    (
      "normalizer='max_length', max_length=0",
      'max_length of fire is 0; it must be None or >= 1',
    ),
  ],
)
def test_refuses(keys, message):
  with pytest.raises(errors.SpecError, match=message):
    encodings.create(f'fire({keys})', num_heads=HEADS, head_dim=8)
