"""Tests `lengen_jax/encodings/fire.py`.

Golden arrays: `golden/encodings/README.json`, files fire and fire_two_hidden.
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors
from tests import helpers

GOLDEN = helpers.GOLDEN / 'encodings'
ONE_HIDDEN = np.load(GOLDEN / 'fire.npz')
TWO_HIDDEN = np.load(GOLDEN / 'fire_two_hidden.npz')
CASES = sorted({key.split('/')[0] for key in ONE_HIDDEN if '/' in key})


def from_torch(golden, prefix, hidden_layers):
  """The encoding and parameters that a golden case stands for."""

  def get(name):
    return golden[f'{prefix}param/{name}']

  params = {
    'c': get('c').reshape(1),
    'threshold_multiplier': get('L_multiplier').reshape(1),
  }
  for i in range(hidden_layers + 1):
    params[f'mlp_{i}'] = {
      'kernel': get(f'mlp.{2 * i}.weight').T,
      'bias': get(f'mlp.{2 * i}.bias'),
    }
  width = get('mlp.0.bias').size
  spec = (
    f'fire(mlp_width={width}, hidden_layers={hidden_layers}, '
    f'init_threshold={float(get("init_L"))})'
  )
  num_heads = get(f'mlp.{2 * hidden_layers}.bias').size
  return create(spec, num_heads), params


def create(spec, num_heads=3):
  return encodings.create(spec, num_heads=num_heads, head_dim=8)


def init(encoding):
  """Parameters, moved a little so that none has a round value."""
  params = encoding.init(jax.random.key(0), method='bias_fn')['params']
  return jax.tree.map(
    lambda x: np.asarray(x) + 0.05 * np.float32(np.cos(x.size)),
    nn.unbox(params),
  )


def bias(encoding, params, q_positions, k_positions, bidirectional=False):
  return np.asarray(
    _bias(encoding, params, q_positions, k_positions, bidirectional)
  )


@functools.partial(jax.jit, static_argnums=(0, 4))
def _bias(encoding, params, q_positions, k_positions, bidirectional):
  return encoding.apply(
    {'params': params},
    q_positions,
    k_positions,
    bidirectional=bidirectional,
    method='bias',
  )


def formula(params, init_threshold, i, j, bidirectional=False):
  """One bias, in float64, written as the paper has it."""
  p = jax.tree.map(np.float64, params)
  c = abs(p['c'][0])
  threshold = abs(p['threshold_multiplier'][0] * init_threshold)
  reach = max(i, j, threshold) if bidirectional else max(i, threshold)
  x = np.log(c * abs(i - j) + 1) / (np.log(c * reach + 1) + 1e-6)
  h = np.array([x])
  layers = sum(name.startswith('mlp_') for name in p)
  for n in range(layers):
    h = h @ p[f'mlp_{n}']['kernel'] + p[f'mlp_{n}']['bias']
    if n < layers - 1:
      h = np.maximum(h, 0)
  return h


def loop(params, init_threshold, q, k, **kwargs):
  """Biases `[B, H, Q, K]`, pair by pair."""
  out = [
    [[formula(params, init_threshold, i, j, **kwargs) for j in kb] for i in qb]
    for qb, kb in zip(q.astype(np.float64), k.astype(np.float64), strict=True)
  ]
  return np.moveaxis(np.array(out), -1, 1)


@pytest.mark.parametrize('n', [1, 64])
@pytest.mark.parametrize('case', CASES)
def test_golden_one_hidden_layer(case, n, assert_close):
  encoding, params = from_torch(ONE_HIDDEN, f'{case}/', 1)
  p = jnp.arange(n)
  want = ONE_HIDDEN[f'{case}/f64/n{n}/bias']
  assert_close(np.tril(bias(encoding, params, p, p)), np.tril(want), 2e-6)


@pytest.mark.parametrize('case', CASES)
def test_golden_rows_of_600(case, assert_close):
  encoding, params = from_torch(ONE_HIDDEN, f'{case}/', 1)
  rows = ONE_HIDDEN['rows600']
  visible = np.arange(600) <= rows[:, None]
  want = ONE_HIDDEN[f'{case}/f64/n600/bias_rows']
  got = bias(encoding, params, jnp.asarray(rows), jnp.arange(600))
  assert_close(np.where(visible, got, 0), np.where(visible, want, 0), 2e-6)


@pytest.mark.parametrize('n', [7, 600])
@pytest.mark.parametrize('case', CASES)
def test_golden_gradients(case, n, assert_close):
  encoding, params = from_torch(ONE_HIDDEN, f'{case}/', 1)
  h, i, j = np.ogrid[: encoding.num_heads, :n, :n]
  cotangent = np.float32(np.cos(0.7 * h + 0.013 * i - 0.029 * j) * (j <= i))
  p = jnp.arange(n)

  @jax.jit
  @jax.grad
  def gradient(params):
    out = encoding.apply({'params': params}, p, p, method='bias')
    return jnp.sum(out * cotangent)

  got = gradient(params)

  def want(name):
    return ONE_HIDDEN[f'{case}/f64/n{n}/grad/{name}']

  assert_close(got['c'], want('c').reshape(1), 2e-5)
  # The threshold acts on queries up to it only.
  assert_close(
    got['threshold_multiplier'], want('L_multiplier').reshape(1), 2e-5
  )
  for layer, source in (('mlp_0', 'mlp.0'), ('mlp_1', 'mlp.2')):
    assert_close(got[layer]['kernel'], want(f'{source}.weight').T, 2e-5)
    assert_close(got[layer]['bias'], want(f'{source}.bias'), 2e-5)


@pytest.mark.parametrize('n', [1, 7, 64])
def test_golden_two_hidden_layers(n, assert_close):
  encoding, params = from_torch(TWO_HIDDEN, '', 2)
  p = jnp.arange(n)
  want = TWO_HIDDEN[f'n{n}/bias']
  assert_close(np.tril(bias(encoding, params, p, p)), np.tril(want), 2e-6)


def test_golden_two_hidden_layers_rows_of_600(assert_close):
  encoding, params = from_torch(TWO_HIDDEN, '', 2)
  rows = TWO_HIDDEN['rows600']
  visible = np.arange(600) <= rows[:, None]
  got = bias(encoding, params, jnp.asarray(rows), jnp.arange(600))
  want = TWO_HIDDEN['n600/bias_rows']
  assert_close(np.where(visible, got, 0), np.where(visible, want, 0), 2e-6)


@pytest.mark.parametrize('bidirectional', [False, True])
@pytest.mark.parametrize('hidden_layers', [0, 1, 2])
def test_formula(hidden_layers, bidirectional, assert_close):
  encoding = create(
    f'fire(hidden_layers={hidden_layers}, mlp_width=5, init_threshold=40.)'
  )
  params = init(encoding)
  rng = np.random.default_rng(hidden_layers)
  q = np.float32(rng.uniform(0, 100, (2, 5)))
  k = np.float32(rng.uniform(0, 100, (2, 7)))
  q[:, 0] = k[:, 0]
  want = loop(params, 40.0, q, k, bidirectional=bidirectional)
  got = bias(encoding, params, q, k, bidirectional=bidirectional)
  assert_close(got, want)


def test_formula_with_a_tiny_c(assert_close):
  """There the 1e-6 in the denominator counts."""
  encoding = create('fire(hidden_layers=1, init_threshold=4.)')
  params = init(encoding) | {'c': np.float32([1e-5])}
  p = np.float32([[0.0, 1.0, 3.0, 20.0]])
  want = np.tril(loop(params, 4.0, p, p))
  assert_close(np.tril(bias(encoding, params, p, p)), want)


def test_finite_without_a_threshold():
  encoding = create('fire(init_threshold=0.)')
  params = init(encoding)
  p = jnp.arange(3)
  value, gradient = jax.value_and_grad(
    lambda params: encoding.apply(
      {'params': params}, p, p, method='bias', bidirectional=True
    ).sum()
  )(params)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))


def test_signs_of_c_and_of_the_threshold_are_irrelevant():
  encoding = create('fire(init_threshold=3.)')
  params = init(encoding)
  flipped = {
    **params,
    'c': -params['c'],
    'threshold_multiplier': -params['threshold_multiplier'],
  }
  p = jnp.arange(8)
  np.testing.assert_array_equal(
    bias(encoding, params, p, p), bias(encoding, flipped, p, p)
  )


def test_bidirectional_normalizer_is_symmetric(assert_close):
  encoding = create('fire(init_threshold=2.)')
  params = init(encoding)
  p = jnp.arange(16)
  both = bias(encoding, params, p, p, bidirectional=True)
  assert_close(both, both.swapaxes(1, 2), 1e-6)
  causal = bias(encoding, params, p, p)
  assert_close(np.tril(both), np.tril(causal), 1e-6)
  # Causally the normaliser is the query's own position.
  assert np.abs(causal - causal.swapaxes(1, 2)).max() > 1e-3


def test_mlp_input_stays_in_the_unit_interval():
  # Without hidden layers, kernel 1 and bias 0 the bias is the input itself.
  encoding = create('fire(hidden_layers=0, init_c=2., init_threshold=5.)', 1)
  params = init(encoding)
  params['c'] = np.float32([2.0])
  params['mlp_0'] = {'kernel': np.ones((1, 1)), 'bias': np.zeros(1)}
  p = jnp.array([0, 1, 4, 5, 6, 1000, 100_000])
  causal = bias(encoding, params, p, p)
  x = causal[0][np.tril_indices(len(p))]
  assert x.min() == 0 and 0.99 < x.max() <= 1
  assert causal.max() > 2  # Beyond the diagonal it would leave the interval.
  both = bias(encoding, params, p, p, bidirectional=True)
  assert 0 <= both.min() and both.max() <= 1


@pytest.mark.parametrize('bidirectional', [False, True])
def test_rows_equal_tile(bidirectional, assert_close):
  encoding = create('fire(init_threshold=9.)')
  bias_fn = encoding.apply(
    {'params': init(encoding)}, bidirectional=bidirectional, method='bias_fn'
  )
  fractional = jnp.array([3.0, 8.5, 9.0, 20.0]), jnp.array([-9.0, -0.5, 0, 2.5])
  whole = jnp.array([4, 9, 30]), jnp.array([-2, 0, 1, 4, 3])
  for anchors, d in (fractional, whole):
    rows = encoding.rows(
      bias_fn.params, anchors, d, bidirectional=bidirectional
    )
    assert rows.shape == (len(anchors), 3, len(d))
    tile = bias_fn(anchors[:, None], anchors[:, None] - d[None])
    assert_close(rows, tile[:, :, 0], 2e-6)


def test_rows_below_the_threshold_are_one_strip(assert_close):
  encoding = create('fire(init_threshold=50.)')
  params = init(encoding)
  params['threshold_multiplier'] = np.float32([1.0])
  p = jnp.arange(64)
  rows = bias(encoding, params, p, p)
  assert_close(rows[:, 10, :11], rows[:, 50, 40:51], 1e-6)
  assert np.abs(rows[:, 10, :10] - rows[:, 63, 53:63]).max() > 1e-4


def test_far_positions_are_exact(assert_close):
  encoding = create('fire(init_threshold=512.)')
  params = init(encoding)
  p = np.arange(20_000, 20_065)[None]
  want = loop(params, 512.0, p[:, ::16], p)
  got = bias(encoding, params, jnp.asarray(p[:, ::16]), jnp.asarray(p))
  assert_close(got, want, 2e-6)
  # Sixteen bits would merge neighbours; here all distances differ.
  assert len(np.unique(got[0, 0, -1, :])) == 65


def test_no_strip():
  encoding = create('fire')
  assert not encoding.translation_invariant
  with pytest.raises(NotImplementedError, match='Fire has no strip'):
    encoding.strip({}, jnp.arange(3))


def test_initial_values():
  encoding = create('fire(mlp_width=256, init_c=.3)', 12)
  params = nn.unbox(
    encoding.init(jax.random.key(0), method='bias_fn')['params']
  )
  np.testing.assert_allclose(params['c'], [0.3])
  np.testing.assert_array_equal(params['threshold_multiplier'], [1.0])
  for layer, fan_in in (('mlp_0', 1), ('mlp_1', 256), ('mlp_2', 256)):
    bound = fan_in**-0.5
    values = np.concatenate([x.ravel() for x in params[layer].values()])
    # Uniform over the whole range, biases as well as weights.
    assert values.min() >= -bound and values.max() <= bound
    np.testing.assert_allclose(values.std(), bound / 3**0.5, rtol=0.1)
    assert np.abs(params[layer]['bias']).max() > bound / 2


@pytest.mark.parametrize(
  'keys, value',
  [
    ('hidden_layers=3', 'hidden_layers of fire is 3; it must be >= 0 and <= 2'),
    ('hidden_layers=-1', 'is -1'),
    ('mlp_width=0', 'mlp_width of fire is 0; it must be >= 1'),
    ('init_threshold=-1.', 'init_threshold of fire is -1.0'),
  ],
)
def test_refuses(keys, value):
  with pytest.raises(errors.SpecError, match=value):
    create(f'fire({keys})')
