"""Tests `lengen_jax/models/layers.py`."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors
from lengen_jax import positions as position_schemes
from lengen_jax.attention import call as call_lib
from lengen_jax.attention import scaling, visibility
from lengen_jax.models import config as model_config
from lengen_jax.models import embed, layers, mlp, norms, presets
from tests import helpers

B, L, E, H, D = 2, 6, 16, 2, 4
# Keys without a default.
KEYS = {
  'yarn': 'yarn(scale=4., train_length=8)',
  'longrope': 'longrope(train_length=4, scale=4., short_factors=(1., 1.), '
  'long_factors=(1., 2.))',
}
SPECS = sorted(
  KEYS.get(name, name)
  for name, encoding in encodings.ENCODINGS.items()
  if not encoding.embeds
)
LENGTHS = jnp.array([[L]])
NAMES = ['fire', 'rope', 'function']


def inputs(batch=B, seed=0, length=L):
  return jax.random.normal(jax.random.key(seed), (batch, length, E))


def attention(encoding='nope', **kwargs):
  return layers.Attention(H, D, encoding=encoding, **kwargs)


def init(module, x=None, **kwargs):
  return nn.unbox(
    module.init(jax.random.key(1), inputs() if x is None else x, **kwargs)
  )


def distance(q_positions, k_positions):
  d = q_positions[..., :, None] - k_positions[..., None, :]
  return -jnp.stack([d / 16, d / 256], -3)


@pytest.mark.parametrize('spec', SPECS)
def test_parameters(spec):
  params = jax.eval_shape(lambda: init(attention(spec), lengths=LENGTHS))[
    'params'
  ]
  for name in ('query', 'key', 'value'):
    assert params[name]['kernel'].shape == (E, H, D)
  assert params['out']['kernel'].shape == (H, D, E)
  own = encodings.create(spec, num_heads=H, head_dim=D)
  want = jax.eval_shape(
    lambda: own.init(jax.random.key(0), method='bias_fn')
  ).get('params', {})
  assert jax.tree.structure(nn.unbox(want)) == jax.tree.structure(
    params.get('encoding', {})
  )
  assert set(params) == {'query', 'key', 'value', 'out'} | (
    {'encoding'} if want else set()
  )


def test_logical_axes():
  config = model_config.ModelConfig(**presets.get('tiny'))
  modules = [
    (attention('fire'), inputs()),
    (layers.MLP(8), inputs()),
    (layers.MLP(8, 'swiglu', use_bias=True), inputs()),
    (embed.Embed(9, E), jnp.zeros((1, 1), int)),
    (norms.create(config, None), inputs()),
    (norms.ZeroCenteredRMSNorm(1e-6), inputs()),
    (mlp.Experts(3, 2, 8), inputs()),
  ]
  for module, x in modules:
    boxed = jax.eval_shape(lambda m=module, x=x: m.init(jax.random.key(0), x))
    for leaf in jax.tree.leaves(
      boxed, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
    ):
      assert isinstance(leaf, nn.LogicallyPartitioned)
      assert len(leaf.names) == leaf.unbox().ndim
      assert set(leaf.names) - {None} <= helpers.AXES
      assert len(set(leaf.names)) == len(leaf.names)


def test_a_gate(assert_close):
  module = layers.MLP(24, 'swiglu')
  variables = init(module)
  params = variables['params']
  assert sorted(params) == ['down', 'gate', 'up']
  gate, up, down = (
    np.asarray(params[name]['kernel'], np.float64)
    for name in ('gate', 'up', 'down')
  )
  x = np.asarray(inputs(), np.float64)
  want = (x @ gate / (1 + np.exp(-x @ gate)) * (x @ up)) @ down
  assert_close(module.apply(variables, inputs()), want)


def test_takes_a_spec_an_encoding_or_a_function(assert_close):
  """All three say the same, with ALiBi's slopes for two heads."""
  x = inputs()
  modules = [
    attention('alibi'),
    attention(encodings.create('alibi', num_heads=H, head_dim=D)),
    attention(distance),
  ]
  variables = init(modules[0])
  outputs = [module.apply(variables, x) for module in modules]
  assert jax.tree.structure(init(modules[2])) == jax.tree.structure(variables)
  assert_close(outputs[1], outputs[0], 1e-6)
  assert_close(outputs[2], outputs[0], 1e-6)
  plain = attention().apply(variables, x)
  assert np.abs(plain - outputs[0]).max() > 1e-3


def test_an_encoding_given_as_a_module_keeps_its_path():
  fire = encodings.create('fire', num_heads=H, head_dim=D)
  assert jax.tree.structure(init(attention(fire))) == jax.tree.structure(
    init(attention('fire'))
  )


def test_works_inside_another_module():
  class Outer(nn.Module):
    @nn.compact
    def __call__(self, x):
      x = attention('fire', name='first')(x)
      return attention(distance, name='second')(x)

  variables = init(Outer())
  assert set(variables['params']) == {'first', 'second'}
  assert 'encoding' in variables['params']['first']
  assert np.isfinite(Outer().apply(variables, inputs())).all()


@pytest.mark.parametrize('spec', ['learned(max_position=9)', 'sinusoidal'])
def test_refuses_encodings_of_the_input(spec):
  name = spec.split('(')[0]
  with pytest.raises(
    errors.CombinationError, match=f'{name} acts at the input'
  ):
    attention(spec)
  encoding = encodings.create(spec, num_heads=H, head_dim=D, width=E)
  with pytest.raises(
    errors.CombinationError, match=f'{name} acts at the input'
  ):
    attention(encoding)


def test_refuses_unknown_specs():
  with pytest.raises(errors.SpecError, match="did you mean 'fire'"):
    attention('fier')
  with pytest.raises(errors.SpecError, match="attention scale 'logn'"):
    attention('fire', attention_scale='logn')


@pytest.mark.some(4)
@pytest.mark.parametrize(
  'spec, causal',
  [(spec, True) for spec in SPECS]
  + [(spec, False) for spec in ('fire', 'rope', 'shaw', 't5')],
)
def test_causality_by_gradient(spec, causal):
  module = attention(spec, causal=causal)
  variables = init(module, lengths=LENGTHS)
  jacobian = jax.jit(
    jax.jacrev(lambda x: module.apply(variables, x, lengths=LENGTHS)[0].sum(-1))
  )(inputs(1))
  reach = np.abs(jacobian[:, 0]).sum(-1)
  want = np.tril(np.ones((L, L))) if causal else np.ones((L, L))
  np.testing.assert_array_equal(reach > 1e-6, want.astype(bool))
  assert (reach[want == 0] == 0).all()


def test_encodings_are_told_the_direction():
  seen = []

  class Spy(encodings.Encoding):
    def bias_fn(self, *, bidirectional=False):
      seen.append(bidirectional)

  for causal in (True, False):
    seen.clear()
    module = attention(Spy(H, D), causal=causal)
    jax.eval_shape(lambda m=module: m.init(jax.random.key(0), inputs()))
    assert set(seen) == {not causal}


@pytest.mark.parametrize('spec', ['fire', 'rope', distance], ids=NAMES)
def test_positions_of_every_shape(spec, assert_close):
  module = attention(spec)
  x = inputs()
  variables = init(module)
  want = module.apply(variables, x)
  index = jnp.arange(L)
  for positions in (index[None], jnp.tile(index, (B, 1)), index.astype(float)):
    if positions.ndim == 1 and spec is distance:
      continue
    assert_close(module.apply(variables, x, positions), want, 1e-6)
  other = module.apply(variables, x, jnp.tile(index * 7, (B, 1)))
  assert np.abs(other - want).max() > 1e-4


def test_takes_numpy_positions(assert_close):
  module = attention('rope')
  x = inputs()
  variables = init(module)
  want = module.apply(variables, x)
  for positions in (np.arange(L), np.arange(L).astype(np.float64)):
    assert_close(module.apply(variables, x, positions[None]), want, 1e-6)


@pytest.mark.parametrize('dtype', [jnp.float16, jnp.bfloat16])
def test_refuses_positions_of_16_bits(dtype):
  module = attention('nope')
  variables = init(module)
  with pytest.raises(errors.CombinationError, match=jnp.dtype(dtype).name):
    module.apply(variables, inputs(), jnp.arange(L, dtype=dtype)[None])


@pytest.mark.parametrize('dtype', [jnp.int32, jnp.float32])
def test_positions_survive_a_16_bit_model(dtype):
  seen = []

  def spy(q_positions, k_positions):
    seen.append((q_positions, k_positions))
    return distance(q_positions, k_positions)

  module = attention(spy, dtype=jnp.bfloat16)
  variables = init(module)
  seen.clear()
  positions = (20_000 + jnp.arange(L, dtype=dtype))[None]
  y = module.apply(variables, inputs(), positions)
  assert y.dtype == jnp.bfloat16
  for got in seen[0]:
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, positions[0])


@pytest.mark.some(3)
@pytest.mark.parametrize('spec', ['fire', 'rope', distance], ids=NAMES)
def test_packed_equals_separate(spec, assert_close):
  module = attention(spec)
  x = inputs(1)
  variables = init(module)
  ids = jnp.array([[4, 4, 4, 4, 2, 2]])
  packed = module.apply(variables, x, segment_ids=ids)
  assert_close(packed[:, :4], module.apply(variables, x[:, :4]), 2e-6)
  assert_close(packed[:, 4:], module.apply(variables, x[:, 4:]), 2e-6)


def test_dynamic_lengths(assert_close):
  module = attention('rope(dynamic=True, train_length=4)')
  x = inputs()
  with pytest.raises(errors.LengthError, match='rope depends on the length'):
    module.init(jax.random.key(0), x)
  lengths = jnp.array([[3], [6]])
  variables = init(module, x, lengths=lengths)
  got = module.apply(variables, x, lengths=lengths)
  plain = attention('rope')
  assert_close(got[:1], plain.apply(variables, x[:1]), 1e-6)
  squeezed = jnp.arange(L)[None] * (4 / 6)
  assert_close(got[1:], plain.apply(variables, x[1:], squeezed), 1e-6)


def test_attention_scale(assert_close):
  class Double(scaling.LogitScale):
    def __call__(self, index_in_segment, *, lengths=None):
      return 1.0 + index_in_segment.astype(jnp.float32)

  scaled, plain = attention(attention_scale=Double(H)), attention()
  x = inputs(1)
  variables = init(plain)
  # A factor on the logits is one on the queries, hence here on the kernel.
  for i in (0, 3, 5):
    kernels = dict(variables['params'])
    kernels['query'] = {'kernel': kernels['query']['kernel'] * (1 + i)}
    want = plain.apply({'params': kernels}, x)
    got = scaled.apply(variables, x)
    assert_close(got[:, i], want[:, i], 1e-5)
  # Packed, it is the index within the segment.
  ids = jnp.array([[1, 1, 1, 2, 2, 2]])
  packed = scaled.apply(variables, x, segment_ids=ids)
  assert_close(packed[:, 3:], scaled.apply(variables, x[:, 3:]), 1e-5)


def test_shared_parameters_take_the_place_of_ones_own(assert_close):
  module = attention('fire')
  x = inputs()
  variables = init(module)
  params = variables['params']['encoding']
  without = {k: v for k, v in variables['params'].items() if k != 'encoding'}
  got = module.apply({'params': without}, x, shared=params)
  assert_close(got, module.apply(variables, x), 1e-6)
  assert 'encoding' not in init(module, x, shared=params)['params']


@pytest.mark.parametrize(
  'given, message',
  [
    (
      {'positions': jnp.zeros((B, L - 1))},
      r'positions: got \(2, 5\); 2 rows of 6 tokens require 1 or 2 '
      'rows of 6',
    ),
    ({'positions': jnp.zeros(L + 1)}, r'positions: got \(7,\)'),
    ({'positions': jnp.zeros((3, L))}, r'positions: got \(3, 6\)'),
    ({'positions': jnp.zeros((1, 1, 1, L))}, r'positions: got \(1, 1, 1, 6\)'),
    ({'positions': jnp.zeros((B, L), bool)}, 'positions are bool'),
    (
      {'positions': position_schemes.Distances(jnp.zeros((B, L - 1), int))},
      r'r of Distances: got \(2, 5\)',
    ),
    (
      {'positions': position_schemes.Distances(jnp.zeros((3, L), int))},
      r'r of Distances: got \(3, 6\)',
    ),
    (
      {'positions': position_schemes.Distances(jnp.zeros((B, L)))},
      'r of Distances are float32; they must be integers',
    ),
    (
      {'segment_ids': jnp.ones((1, L), int)},
      r'segment_ids: got \(1, 6\); .* require 2 rows of 6',
    ),
    ({'segment_ids': jnp.ones(L, int)}, r'segment_ids: got \(6,\)'),
    ({'segment_ids': [[1] * L] * B}, 'segment_ids: got list'),
    ({'segment_ids': jnp.ones((B, L))}, 'segment_ids are float32'),
    (
      {'lengths': jnp.array([L] * B)},
      r'lengths: got \(2,\); 2 rows of 6 tokens require 1 or 2 rows of 1 or 6',
    ),
    ({'lengths': jnp.ones((B, 3), int)}, r'lengths: got \(2, 3\)'),
    ({'lengths': jnp.ones((3, 1), int)}, r'lengths: got \(3, 1\)'),
    ({'lengths': L}, 'lengths: got int'),
    (
      {'lengths': jnp.ones((B, 1))},
      'lengths are float32; they must be integers',
    ),
  ],
)
def test_refuses_what_does_not_go_with_the_tokens(given, message):
  with pytest.raises(errors.ConfigError, match=message):
    attention('alibi').apply({}, inputs(), **given)


def test_what_goes_by_the_number_of_keys_cannot_be_packed():
  ids = jnp.ones((B, L), int)
  module = attention('transformer_xl(official_compat=True)')
  with pytest.raises(errors.CombinationError) as caught:
    module.init(jax.random.key(0), inputs(), segment_ids=ids)
  assert 'transformer_xl(official_compat=True)' in str(caught.value)
  assert 'leave out segment_ids' in str(caught.value)
  plain = attention('transformer_xl')
  jax.eval_shape(
    lambda: plain.init(jax.random.key(0), inputs(), segment_ids=ids)
  )


@pytest.mark.parametrize('encoding', ['rope', 'kerple_log'])
def test_positions_per_head_may_be_given(encoding, assert_close):
  """They are those that a contextual scheme would compute."""
  x = inputs()
  contextual = attention(encoding, contextual_positions='forget')
  variables = init(contextual, x)
  scheme = position_schemes.contextual.create('forget', num_heads=H, width=E)
  own = {'params': variables['params']['positions']}
  given = scheme.apply(own, x)
  rest = {k: v for k, v in variables['params'].items() if k != 'positions'}
  got = attention(encoding).apply({'params': rest}, x, given)
  assert_close(got, contextual.apply(variables, x))
  with pytest.raises(errors.ConfigError, match='must be float32'):
    attention(encoding).apply({'params': rest}, x, given[..., :1])


def test_chunks(assert_close):
  module, plain = attention('rope', attention_chunk=4), attention('rope')
  x = inputs()
  variables = init(plain)
  apart = [plain.apply(variables, x[:, part]) for part in np.s_[:4, 4:]]
  assert_close(module.apply(variables, x), jnp.concatenate(apart, 1), 2e-6)
  # Chunks are those of segments; two of the same id do not see each other.
  ids = jnp.broadcast_to(jnp.array([7, 7, 7, 7, 7, 2]), (B, L))
  got = module.apply(variables, x, segment_ids=ids)
  apart = [plain.apply(variables, x[:, part]) for part in np.s_[:4, 4:5, 5:]]
  assert_close(got, jnp.concatenate(apart, 1), 2e-6)


def test_unscaled_norms_commute_with_rotation(assert_close):
  """As in Llama 4, which normalizes rotated queries and keys."""
  module = attention('rope', query_key_norm='unscaled')
  x = inputs()
  variables = init(module)
  assert set(variables['params']) == {'query', 'key', 'value', 'out'}
  scaled = jax.tree.map(lambda leaf: leaf, variables)
  for name in ('query', 'key'):
    kernel = scaled['params'][name]['kernel']
    scaled['params'][name]['kernel'] = 3 * kernel
  assert_close(module.apply(variables, x), module.apply(scaled, x), 1e-4)


def test_zero_centered_norms(assert_close):
  x = inputs()
  module = norms.ZeroCenteredRMSNorm(1e-6)
  scale = jnp.linspace(-1, 1, E)
  got = module.apply({'params': {'scale': scale}}, x)
  want = x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
  assert_close(got, want * (1 + scale[None, None]))


def test_experts(assert_close):
  module = mlp.Experts(count=3, per_token=2, hidden=5, activation='swiglu')
  x = inputs(1)
  params = init(module, x)['params']
  keys = jax.random.split(jax.random.key(5), len(jax.tree.leaves(params)))
  params = jax.tree.unflatten(
    jax.tree.structure(params),
    [
      jax.random.normal(key, leaf.shape)
      for key, leaf in zip(keys, jax.tree.leaves(params), strict=True)
    ],
  )
  got = module.apply({'params': params}, x)
  router = params['router']
  for i in range(L):
    logits = x[0, i] @ router['kernel'] + router['bias']
    best = np.argsort(-logits)[:2]
    want = 0.0
    for n, weight in zip(best, jax.nn.softmax(logits[best]), strict=True):
      up = x[0, i] @ params['up_kernel'][n] + params['up_bias'][n]
      gate = x[0, i] @ params['gate_kernel'][n] + params['gate_bias'][n]
      down = (jax.nn.silu(gate) * up) @ params['down_kernel'][n]
      want += weight * (down + params['down_bias'][n])
    assert_close(got[0, i], want)
  with pytest.raises(errors.ConfigError, match='unknown activation of experts'):
    mlp.Experts(3, 2, 8, 'gelu')


@pytest.mark.parametrize(
  'options',
  [
    {'window': 3},
    {'window': 2, 'sinks': 2},
    {'attention_chunk': 4},
    {'window': 3, 'causal': False},
    {'window': 2, 'sinks': 4, 'causal': False},
    {'attention_chunk': 4, 'window': 2, 'causal': False},
  ],
)
def test_ssmax_counts_the_visible_keys(options):
  module = attention(attention_scale='ssmax', **options)
  x, ids = inputs(2), jnp.array([[1] * L, [1, 2, 2, 2, 2, 2]])
  variables = init(module, x)
  found = []

  def look(next_fun, args, kwargs, context):
    if context.method_name == 'attend':
      found.append(kwargs)
    return next_fun(*args, **kwargs)

  with nn.intercept_methods(look):
    module.apply(variables, x, segment_ids=ids)
  (call,) = found
  mask = visibility.Mask(call['causal'], call['window'], call['sinks'])
  sides = [
    call_lib.Side(
      index=jnp.arange(L)[None], segment_ids=call[f'{name}_segment_ids']
    )
    for name in 'qk'
  ]
  visible = call_lib.visible_pairs(
    mask, sides[0], sides[1].with_sinks(mask.sinks)
  )
  counts = np.exp(np.asarray(call['logit_scale'])[..., 0])
  np.testing.assert_allclose(counts, visible.sum(-1), rtol=1e-6)


@pytest.mark.parametrize('chunk', [None, 3])
@pytest.mark.parametrize('causal', [True, False])
def test_ssmax_counts_the_keys_that_an_encoding_masks(causal, chunk):
  options = {
    'attention_scale': 'ssmax',
    'causal': causal,
    'attention_chunk': chunk,
  }
  module = attention('lm_infinite(window=2, sinks=2)', **options)
  x = inputs(2)
  variables = init(module, x)
  found = []

  def look(next_fun, args, kwargs, context):
    if context.method_name == 'attend':
      found.append(kwargs['logit_scale'])
    return next_fun(*args, **kwargs)

  with nn.intercept_methods(look):
    module.apply(variables, x)
  i, j = np.arange(L)[:, None], np.arange(L)
  visible = (i - j < 2) | (j < 2)
  if causal:
    visible &= j <= i
  if chunk is not None:
    visible &= i // chunk == j // chunk
  counts = np.exp(np.asarray(found[0])[0, :, 0])
  np.testing.assert_allclose(counts, visible.sum(-1), rtol=1e-6)


def test_chunks_of_segments_with_any_ids(assert_close):
  module, x = attention('rope', attention_chunk=L), inputs()
  variables = init(module, x)
  y, want = (
    module.apply(variables, x, segment_ids=np.repeat([ids] * B, L // 2, axis=1))
    for ids in ([2**30, -(2**30)], [1, 2])
  )
  assert_close(y, want, 1e-6)


@pytest.mark.parametrize(
  'options',
  [{'window': 2**63 - 1, 'sinks': 2**63 - 1}, {'attention_chunk': 2**63 - 1}],
)
@pytest.mark.parametrize('causal', [True, False])
def test_a_window_or_chunk_beyond_all_is_none(options, causal):
  x = inputs()
  plain, wide = (
    attention('rope', attention_scale='ssmax', causal=causal, **each)
    for each in ({}, options)
  )
  variables = init(plain, x)
  np.testing.assert_array_equal(
    wide.apply(variables, x), plain.apply(variables, x)
  )


def test_positions_per_head_of_as_many_tokens_and_rows(assert_close):
  module = attention('rope')
  x = inputs(batch=H, length=H)
  variables = init(module, x)
  index = jnp.arange(H, dtype=jnp.float32)
  per_head = jnp.broadcast_to(index[None, :, None], (H, H, H))
  assert_close(module.apply(variables, x, per_head), module.apply(variables, x))


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('attention_chunk', 0, 'attention_chunk must be an integer, at least 1'),
    ('attention_chunk', '4', "at least 1, or None; got '4'"),
    ('key_heads', 0, 'key_heads must be an integer'),
    ('lora_rank', 2.5, 'lora_rank must be an integer'),
    ('norm_epsilon', -1.0, 'norm_epsilon must be positive, got -1.0'),
    ('attention_scale', 0.5, 'attention_scale must be a spec'),
  ],
)
def test_refuses_fields(field, value, message):
  with pytest.raises(errors.LengenError, match=message):
    attention('rope', **{field: value})


@pytest.mark.parametrize('dtype', [jnp.int32, jnp.complex64, bool])
def test_refuses_inputs_that_are_not_floating_point(dtype):
  module = attention('rope')
  with pytest.raises(errors.ConfigError, match='it must be floating-point'):
    module.init(jax.random.key(0), inputs().astype(dtype))


def test_clipped_swiglu():
  gate = jnp.array([-20.0, 3.0, 9.0, 3.0, 3.0])
  up = jnp.array([1.0, 2.0, 2.0, 30.0, -30.0])
  got = mlp.GATED['swiglu_clipped'](gate, up)
  g, u = np.array([-20.0, 3, 7, 3, 3]), np.array([1.0, 2, 2, 7, -7])
  want = g / (1 + np.exp(-1.702 * g)) * (u + 1)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-12)


def test_the_router_is_float32():
  module = mlp.Experts(2, 1, 4, dtype=jnp.bfloat16)
  x = jnp.ones((1, 1, 1), jnp.bfloat16)
  params = nn.unbox(module.init(jax.random.key(0), x))['params']
  params = jax.tree.map(jnp.zeros_like, params)
  # Equal in bfloat16.
  params['router']['kernel'] = jnp.array([[1.0, 1.001]])
  params['down_bias'] = jnp.array([[0.0], [1.0]])
  assert module.apply({'params': params}, x).item() == 1


def test_unscaled_norms_have_no_scales():
  module = norms.of_heads('unscaled', True, 1e-6, jnp.float32, None)
  assert not module.init(jax.random.key(0), jnp.ones((1, 2, 2, 4)))
