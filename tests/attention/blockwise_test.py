"""Tests `lengen_jax/attention/blockwise.py` against the reference."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings, errors, positions, testing
from lengen_jax.attention import bands, blockwise, call

B, H, D, L = 2, 4, 8, 21
BLOCK = 8
SEGMENTS = jnp.asarray(
  [np.repeat([3, 1, 2], [7, 10, 4]), np.repeat([5, 5, 0], [9, 4, 8])]
)
# Increasing, but no longer evenly spaced.
POSITIONS = np.cumsum(
  np.random.default_rng(0).integers(1, 5, (B, L)), axis=1
).astype(np.int32)
IN_SEGMENT = positions.base.segment_positions(SEGMENTS)
ANYWHERE = np.arange(L, dtype=np.int32)[None] + np.array([[0], [5]], np.int32)
OPTIONS = {
  'causal, grouped heads': {'causal': True, 'k_heads': 2},
  'both directions, given positions': {
    'causal': False,
    'q_positions': POSITIONS,
    'k_positions': POSITIONS,
    'logit_scale': True,
  },
  'packed, window, sinks': {
    'causal': True,
    'q_segment_ids': SEGMENTS,
    'k_segment_ids': SEGMENTS,
    'window': 5,
    'sinks': 2,
  },
  'cross, padded keys': {
    'causal': False,
    'q_length': 11,
    'k_lengths': jnp.array([13, 0]),
    'k_heads': 1,
  },
  'later queries': {'causal': True, 'q_length': 9, 'q_offset': 12},
  'packed, window, their own positions': {
    'causal': True,
    'q_positions': IN_SEGMENT,
    'k_positions': IN_SEGMENT,
    'q_segment_ids': SEGMENTS,
    'k_segment_ids': SEGMENTS,
    'window': 4,
    'contiguous': True,
  },
  'both directions, grouped heads, rows begin anywhere': {
    'causal': False,
    'k_heads': 2,
    'q_positions': ANYWHERE,
    'k_positions': ANYWHERE,
    'contiguous': True,
  },
  'decoding': {
    'causal': True,
    'q_length': 3,
    'q_offset': jnp.array([4, 17]),
    'logit_scale': True,
  },
}
SPECS = [
  spec
  for spec in (*testing.encoding_specs(), 'fire(sign=True, hidden_layers=1)')
  if spec.split('(')[0]
  in ('nope', 'shaw', 'transformer_xl', 't5', 'alibi', 'kerple_log')
  + ('kerple_power', 'sandwich', 'fire')
]
# Every encoding and every option at least once.
QUICK = [
  ('nope', 'causal, grouped heads'),
  ('shaw', 'packed, window, sinks'),
  ('transformer_xl', 'both directions, given positions'),
  ('t5', 'packed, window, sinks'),
  ('alibi', 'cross, padded keys'),
  ('kerple_log', 'both directions, grouped heads, rows begin anywhere'),
  ('kerple_power', 'decoding'),
  ('sandwich', 'later queries'),
  ('fire', 'packed, window, their own positions'),
  ('fire', 'both directions, given positions'),
]


def quick(spec, name):
  family = spec.split('(')[0]
  first = next(s for s in SPECS if s.split('(')[0] == family)
  return spec == first and (family, name) in QUICK


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  monkeypatch.setattr(blockwise, 'block_size', lambda *_: BLOCK)


def arrays(q_length=L, k_heads=H, dtype=np.float32, k_length=L):
  rng = np.random.default_rng(1)
  shapes = (B, q_length, H, D), *[(B, k_length, k_heads, D)] * 2
  return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def make(spec):
  """Returns an encoding and its initial parameters."""
  encoding = encodings.create(spec, num_heads=H, head_dim=D)
  return encoding, encoding.init(jax.random.key(0), method='bias_fn')


def value_and_grads(spec, implementation, *, dtype=np.float32, **options):
  """Output, and gradients to q, k, v, parameters, logit scale and sinks."""
  options = dict(options)
  q, k, v = arrays(options.pop('q_length', L), options.pop('k_heads', H), dtype)
  encoding, variables = make(spec)
  rng = np.random.default_rng(2)
  scale = None
  if options.pop('logit_scale', False):
    scale = (1 + 0.2 * rng.normal(size=(*q.shape[:2], H))).astype(np.float32)
  sinks = None
  if options.pop('sink_logits', False):
    sinks = np.float32([0.5, -1.0, 2.0, 0.0])
  cotangent = rng.normal(size=q.shape).astype(np.float32)

  def loss(q, k, v, variables, scale, sinks):
    y = attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(
        variables, method='bias_fn', bidirectional=not options['causal']
      ),
      content=encoding.apply(variables, method='content_fn'),
      logit_scale=scale,
      sink_logits=sinks,
      implementation=implementation,
      **options,
    )
    return jnp.sum(y.astype(jnp.float32) * cotangent), y

  inputs = dict(zip('qkvpsl', (q, k, v, variables, scale, sinks), strict=True))
  argnums = [n for n, x in enumerate(inputs.values()) if x is not None]
  grad = jax.jit(jax.grad(loss, argnums, has_aux=True))
  grads, y = grad(*inputs.values())
  names = [[*inputs][n] for n in argnums]
  return {'y': y, **dict(zip(names, grads, strict=True))}


def assert_equal(got, want, tolerance):
  """Compares arrays relative to their largest entry, parameters as one array.

  The bias of FIRE's last layer has gradient 0, which is noise in both.
  """
  for name in want:
    leaves = [
      (np.asarray(a, np.float64), np.asarray(b, np.float64))
      for a, b in zip(
        jax.tree.leaves(got[name]), jax.tree.leaves(want[name]), strict=True
      )
    ]
    scale = max((np.abs(b).max(initial=0) for _, b in leaves), default=1)
    for a, b in leaves:
      assert np.isfinite(a).all()
      assert np.abs(a - b).max(initial=0) <= tolerance * scale, name


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'spec, name',
  [
    pytest.param(
      spec, name, marks=() if quick(spec, name) else pytest.mark.slow
    )
    for i, spec in enumerate(SPECS)
    for j, name in enumerate(OPTIONS)
    # Each encoding with half of the options.
    if (i + j) % 2 == 0 or quick(spec, name)
  ],
)
def test_equals_the_reference(spec, name):
  options = OPTIONS[name]
  if spec.startswith('shaw') and 'q_positions' in options:
    options = {**options, 'q_positions': POSITIONS, 'k_positions': POSITIONS}
  want = value_and_grads(spec, 'reference', **options)
  got = value_and_grads(spec, 'blockwise', **options)
  assert_equal(got, want, 1e-5)
  for name in 'qkv':
    assert np.abs(want[name]).max() > 1e-3


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'spec', ['alibi', 'transformer_xl', 'shaw(left=4, right=4)', 't5']
)
def test_distances(spec):
  drawn = positions.create("randomized(max_position=64, mode='distances')")
  ids = SEGMENTS[:1].repeat(B, 0)
  index = positions.segment_positions(ids)
  lengths = jnp.asarray(np.repeat([7, 10, 4], [7, 10, 4]))[None]
  given = drawn(index, lengths=lengths, rng=jax.random.key(3))
  options = {
    'causal': False,
    'q_positions': given,
    'k_positions': given,
    'q_segment_ids': ids,
    'k_segment_ids': ids,
  }
  want = value_and_grads(spec, 'reference', **options)
  assert_equal(value_and_grads(spec, 'blockwise', **options), want, 1e-5)


@pytest.mark.parametrize('spec', ['fire', 'transformer_xl'])
def test_fractional_positions(spec):
  given = (POSITIONS * 0.37).astype(np.float32)
  options = {'causal': True, 'q_positions': given, 'k_positions': given}
  want = value_and_grads(spec, 'reference', **options)
  assert_equal(value_and_grads(spec, 'blockwise', **options), want, 1e-5)


@pytest.mark.some(2)
@pytest.mark.parametrize('spec', ['fire', 'shaw(left=4, right=4)'])
def test_bfloat16(spec):
  exact = value_and_grads(spec, 'reference', causal=True)
  errors_of = {
    implementation: value_and_grads(
      spec, implementation, causal=True, dtype=jnp.bfloat16
    )
    for implementation in ('reference', 'blockwise')
  }
  for got in errors_of.values():
    assert got['y'].dtype == got['q'].dtype == jnp.bfloat16
    assert_equal(got, exact, 0.1)


@pytest.mark.parametrize('spec', ['t5', 'fire', 'shaw(left=4, right=4)'])
def test_parameters_in_bfloat16(spec):
  """Their gradients are sums over tiles, rounded once."""
  q, k, v = arrays()
  encoding, variables = make(spec)
  variables = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)

  def loss(variables, dtype):
    variables = jax.tree.map(lambda x: x.astype(dtype), variables)
    y = attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(variables, method='bias_fn'),
      content=encoding.apply(variables, method='content_fn'),
      causal=True,
      implementation='blockwise',
    )
    return jnp.sum(y * v)

  got, want = (
    jax.grad(loss)(variables, dtype) for dtype in (jnp.bfloat16, jnp.float32)
  )
  jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize('implementation', ['reference', 'blockwise'])
def test_keys_of_fewer_bits_do_not_round_queries(implementation, assert_close):
  q, k, v = arrays()
  q *= 20
  k = jnp.asarray(k, jnp.bfloat16)
  want, got = (
    attention.dot_product_attention(
      q, keys, v, causal=True, implementation=implementation
    )
    for keys in (k.astype(np.float32), k)
  )
  assert_close(got, want, 1e-6)


@pytest.mark.parametrize('q_length, k_length', [(1, 1), (8, 8), (1, 19)])
def test_lengths_of_all_kinds(q_length, k_length, assert_close):
  q, k, v = arrays(q_length, k_length=k_length)
  offset = k_length - q_length
  want, got = (
    attention.dot_product_attention(
      q, k, v, causal=True, q_offset=offset, implementation=implementation
    )
    for implementation in ('reference', 'blockwise')
  )
  assert_close(got, want, 1e-6)


PER_HEAD = np.random.default_rng(5).uniform(0, 9, (B, L, H)).astype(np.float32)


def with_positions(spec, implementation, given, *, key_heads=H, **options):
  """Output, and gradients to q, k, v, parameters and positions per head.

  `given` are values and errors, or None, of all tokens; queries have the
  positions of keys.
  """
  q, k, v = arrays(k_heads=key_heads)
  encoding, variables = make(spec)
  value, error = given
  cotangent = np.random.default_rng(2).normal(size=q.shape).astype(np.float32)

  def loss(q, k, v, variables, i, j):
    i, j = (positions.PerHead(p, error) for p in (i, j))
    y = attention.with_encoding(
      encoding.bind(variables),
      *(q, k, v),
      q_positions=i,
      k_positions=j,
      implementation=implementation,
      **{'causal': True} | options,
    )
    return jnp.vdot(y, cotangent), y

  grad = jax.jit(jax.grad(loss, range(6), has_aux=True))
  grads, y = grad(q, k, v, variables, value, value)
  return {'y': y, **dict(zip('qkvpij', grads, strict=True))}


PACKED = {'q_segment_ids': SEGMENTS, 'k_segment_ids': SEGMENTS}


@pytest.mark.parametrize(
  'spec, options',
  [
    # Without sink logits, the gradient to positions of queries is 0.
    (
      'linear(learned=True)',
      {'key_heads': 2, 'window': 5, 'sink_logits': np.zeros(H, np.float32)},
    ),
    ('transformer_xl', PACKED),
    pytest.param('transformer_xl', {'key_heads': 2}, marks=pytest.mark.slow),
    ('kerple_log', {'batch': 1, 'causal': False}),
    pytest.param(
      'fire(init_threshold=8.)',
      {'key_heads': 2, **PACKED},
      marks=pytest.mark.slow,
    ),
    pytest.param('transformer_xl', {'batch': 1}, marks=pytest.mark.slow),
    pytest.param('pope', {'key_heads': 2}, marks=pytest.mark.slow),
    pytest.param('rope', PACKED, marks=pytest.mark.slow),
    pytest.param('kerple_power', {'window': 5}, marks=pytest.mark.slow),
    pytest.param(
      'fire(init_threshold=8.)', {'batch': 1}, marks=pytest.mark.slow
    ),
  ],
)
def test_positions_per_head(spec, options):
  options = dict(options)
  value = PER_HEAD[: options.pop('batch', B)]
  given = value, 1e-4 * value
  want, got = (
    with_positions(spec, one, given, **options)
    for one in ('reference', 'blockwise')
  )
  assert want['i'].shape == value.shape
  assert_equal(got, want, 1e-5)
  assert min(np.abs(want[side]).max() for side in 'ij') > 1e-3


def test_gradients_to_positions_per_head_are_differences(assert_close):
  """By central differences of the reference."""
  value = PER_HEAD
  at, step = (1, 13, 2), 1e-2
  found = with_positions('kerple_log', 'blockwise', (value, None))
  moved = np.zeros_like(value)
  moved[at] = step
  cotangent = np.random.default_rng(2).normal(size=found['y'].shape)
  above, below = (
    with_positions('kerple_log', 'reference', (value + sign * moved, None))
    for sign in (1, -1)
  )
  want = np.vdot(np.float64(above['y']) - below['y'], cotangent) / (2 * step)
  assert_close(found['i'][at] + found['j'][at], want, 1e-2)


@pytest.mark.parametrize(
  'spec, options',
  [
    ('alibi', {'causal': True, 'k_heads': 2, 'window': 5}),
    pytest.param('nope', OPTIONS['cross, padded keys'], marks=pytest.mark.slow),
    pytest.param('nope', OPTIONS['decoding'], marks=pytest.mark.slow),
    pytest.param(
      'transformer_xl', OPTIONS['packed, window, sinks'], marks=pytest.mark.slow
    ),
  ],
)
def test_sink_logits(spec, options):
  options = {**options, 'sink_logits': True}
  want, got = (
    value_and_grads(spec, one, **options) for one in ('reference', 'blockwise')
  )
  assert_equal(got, want, 1e-5)
  assert np.abs(want['l']).min() > 1e-4
  if 'k_lengths' in options:
    # A query without keys attends to the sink alone.
    np.testing.assert_array_equal(got['y'][1], 0)


def test_a_sink_logit_is_a_key_of_value_zero(assert_close):
  q, k, v = arrays()
  sinks = np.float32([0.5, -1, 2, -30])
  none, got, want = (
    attention.dot_product_attention(q, k, v, causal=True, **options)
    for options in (
      {},
      {'sink_logits': jnp.asarray(sinks)},
      {'sink_logits': jnp.full(H, -jnp.inf)},
    )
  )
  logits = D**-0.5 * np.einsum('bqhd,bkhd->bhqk', q, k)
  exponents = np.exp(logits) * np.tril(np.ones((L, L)))
  total = exponents.sum(-1) + np.exp(sinks)[None, :, None]
  weights = exponents / total[..., None]
  assert_close(got, np.einsum('bhqk,bkhd->bqhd', weights, v))
  assert_close(want, none, 1e-6)


@pytest.mark.parametrize(
  'spec, options',
  [
    ('alibi', {**OPTIONS['decoding'], 'k_heads': 2}),
    pytest.param('transformer_xl', {'causal': True}, marks=pytest.mark.slow),
    pytest.param('kerple_log', {'causal': False}, marks=pytest.mark.slow),
    pytest.param(
      'nope', {'causal': True, 'sink_logits': True}, marks=pytest.mark.slow
    ),
  ],
)
def test_logit_cap(spec, options):
  """A cap at which tanh is far from linear."""
  options = {**options, 'logit_cap': 0.8}
  want, got = (
    value_and_grads(spec, one, **options) for one in ('reference', 'blockwise')
  )
  assert_equal(got, want, 1e-5)
  plain = value_and_grads(spec, 'reference', **{**options, 'logit_cap': None})
  assert np.abs(want['y'] - plain['y']).max() > 1e-2


@pytest.mark.parametrize('implementation', ['reference', 'blockwise'])
def test_logit_cap_is_before_the_bias(implementation, assert_close):
  q, k, v = arrays()
  encoding, variables = make('alibi')
  factor = 1 + PER_HEAD / 9
  got = attention.dot_product_attention(
    *(q, k, v),
    bias=encoding.apply(variables, method='bias_fn'),
    causal=False,
    logit_scale=factor,
    logit_cap=0.8,
    implementation=implementation,
  )
  logits = D**-0.5 * np.einsum('bqhd,bkhd->bhqk', q, k)
  logits = 0.8 * np.tanh(logits * np.moveaxis(factor, 2, 1)[..., None] / 0.8)
  index = jnp.arange(L)
  logits += np.asarray(encoding.apply(variables, index, index, method='bias'))
  weights = np.asarray(jax.nn.softmax(logits))
  assert_close(got, np.einsum('bhqk,bkhd->bqhd', weights, v))


def test_values_may_have_another_size(assert_close):
  q, k, v = arrays()
  v = v[..., :3]
  want, got = (
    jax.value_and_grad(
      lambda v, one=one: attention.dot_product_attention(
        q, k, v, causal=True, implementation=one
      ).sum()
    )(v)
    for one in ('reference', 'blockwise')
  )
  assert_close(got, want, 1e-5)


def test_a_query_without_visible_keys_gets_nothing():
  options = OPTIONS['cross, padded keys']
  for implementation in ('reference', 'blockwise'):
    got = value_and_grads('alibi', implementation, **options)
    np.testing.assert_array_equal(got['y'][1], 0)
    assert np.abs(got['y'][0]).min(-1).max() > 0


@pytest.mark.parametrize('implementation', ['reference', 'blockwise'])
def test_a_query_far_behind_all_keys_gets_nothing(implementation):
  q, k, v = arrays(3, k_length=5)
  y = attention.dot_product_attention(
    q, k, v, causal=True, window=4, q_offset=7, implementation=implementation
  )
  np.testing.assert_array_equal(
    np.abs(y).max((0, 2, 3)) > 0, [True, False, False]
  )


@pytest.mark.some(3)
@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('sinks', [0, 2**63 - 1])
@pytest.mark.parametrize(
  'implementation, size',
  [
    ('blockwise', 2**31 - 1),
    ('blockwise', 2**63 - 1),
    ('reference', 2**63 - 1),
  ],
)
def test_a_window_beyond_all_is_none(
  causal, sinks, implementation, size, assert_close
):
  kwargs = {'causal': causal, 'implementation': implementation}
  want = value_and_grads('nope', **kwargs)
  got = value_and_grads('nope', window=size, sinks=sinks, **kwargs)
  assert_close(got, want, 1e-6)


def visited(monkeypatch, **options):
  """Tiles that the forward pass computes."""
  seen = []
  visible_pairs = call.visible_pairs

  def noted(mask, queries, keys):
    jax.debug.callback(
      lambda i, j: seen.append((int(i.ravel()[0]), int(j.ravel()[0]))),
      queries.index,
      keys.index,
    )
    return visible_pairs(mask, queries, keys)

  monkeypatch.setattr(call, 'visible_pairs', noted)
  q, k, v = arrays(32, k_length=32)
  jax.block_until_ready(
    attention.dot_product_attention(
      q, k, v, implementation='blockwise', **options
    )
  )
  jax.effects_barrier()
  return {(i // BLOCK, j // BLOCK) for i, j in seen}


@pytest.mark.parametrize(
  'options, want',
  [
    ({'causal': False}, {(i, j) for i in range(4) for j in range(4)}),
    ({'causal': True}, {(i, j) for i in range(4) for j in range(i + 1)}),
    (
      {'causal': True, 'window': 4},
      {(i, j) for i in range(4) for j in (i - 1, i) if j >= 0},
    ),
    (
      {'causal': False, 'window': 4},
      {(i, j) for i in range(4) for j in range(4) if abs(i - j) <= 1},
    ),
    (
      {'causal': True, 'window': 4, 'sinks': 1},
      {(i, j) for i in range(4) for j in (0, i - 1, i) if j >= 0},
    ),
    ({'causal': True, 'packed': [16, 16]}, {(0, 0), (1, 0), (1, 1)}),
  ],
)
def test_masked_tiles_are_skipped(traced_anew, monkeypatch, options, want):
  options = dict(options)
  if 'packed' in options:
    ids = jnp.asarray(np.repeat([1, 2], options.pop('packed')))[None]
    ids = ids.repeat(B, 0)
    options |= {'q_segment_ids': ids, 'k_segment_ids': ids}
    want = want | {(i + 2, j + 2) for i, j in want}
  assert visited(monkeypatch, **options) == want


@functools.cache
def compiled(length, implementation):
  """Gradients of FIRE attention, compiled for `length` tokens."""
  encoding, variables = make('fire')
  x = jax.ShapeDtypeStruct((1, length, H, D), jnp.float32)

  def loss(q, k, v, variables):
    return attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(variables, method='bias_fn'),
      causal=True,
      implementation=implementation,
    ).sum()

  return (
    jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(x, x, x, variables).compile()
  )


def largest(compiled):
  """Most entries of an array in the compiled program."""
  shapes = re.findall(
    r'[fsu]\d+\[([\d,]+)\]|pred\[([\d,]+)\]', compiled.as_text()
  )
  return max(np.prod([int(n) for n in (a or b).split(',')]) for a, b in shapes)


def test_no_array_over_all_pairs():
  length = 1024
  assert largest(compiled(length, 'reference')) >= length * length
  assert largest(compiled(length, 'blockwise')) < length * length / 4


def test_memory_grows_with_the_length_and_not_with_its_square():
  sizes = [
    compiled(n, 'blockwise').memory_analysis().temp_size_in_bytes
    for n in (1024, 2048)
  ]
  assert sizes[1] < 2.2 * sizes[0]
  quadratic = compiled(1024, 'reference').memory_analysis().temp_size_in_bytes
  assert sizes[0] < quadratic / 10


def test_auto_is_blockwise_for_many_pairs(monkeypatch):
  taken = []
  attend = blockwise.attend
  implementations = attention.dot_product.IMPLEMENTATIONS
  monkeypatch.setitem(
    implementations,
    'blockwise',
    lambda *args, **kwargs: taken.append(1) or attend(*args, **kwargs),
  )
  for length, want in ((511, 0), (512, 1)):
    x = jnp.zeros((1, length, 1, 2))
    attention.dot_product_attention(x, x, x, causal=True)
    assert len(taken) == want
  bias = jnp.zeros((1, 512, 512))
  attention.dot_product_attention(x, x, x, causal=True, bias=bias)
  assert len(taken) == 1


@pytest.mark.parametrize(
  'bias, message',
  [
    (jnp.zeros((H, L, L)), 'takes a bias as a BiasFn only'),
    (lambda q, k: jnp.zeros((H, L, L)), 'takes a bias as a BiasFn only'),
  ],
)
def test_refuses_what_has_no_tiles(bias, message):
  q, k, v = arrays()
  with pytest.raises(errors.ConfigError, match=message):
    attention.dot_product_attention(
      q, k, v, causal=True, bias=bias, implementation='blockwise'
    )


def test_refuses_the_official_quirk_by_name():
  message = r'cannot compute transformer_xl\(official_compat=True\)'
  with pytest.raises(errors.ConfigError, match=message):
    value_and_grads(
      'transformer_xl(official_compat=True)', 'blockwise', causal=True
    )


def both(*inputs, **options):
  return [
    attention.dot_product_attention(*inputs, implementation=one, **options)
    for one in ('reference', 'blockwise')
  ]


def test_k_lengths_beyond_the_keys(assert_close):
  q, k, v = arrays(q_length=5)
  lengths = np.array([L + 9, L + 4])
  want, got = both(q, k, v, causal=False, k_lengths=lengths)
  assert_close(got, want)


def test_sinks_beside_a_window_that_ends_at_a_block(assert_close):
  q, k, v = arrays(q_length=24, k_length=24)
  want, got = both(q, k, v, causal=True, window=2, sinks=1)
  assert_close(got, want)


@pytest.mark.parametrize('side', 'qk')
def test_given_positions_of_one_side_are_not_contiguous(side, assert_close):
  encoding, variables = make('alibi')
  given = {f'{side}_positions': 3 * jnp.arange(L)}
  bias = encoding.apply(variables, method='bias_fn')
  want, got = both(*arrays(), causal=True, bias=bias, **given)
  assert_close(got, want)


def test_gradients_of_several_blocks_at_offsets_of_rows(assert_close):
  q, k, v = arrays(q_length=12, k_length=24)

  def loss(k, v, implementation):
    y = attention.dot_product_attention(
      *(q, k, v),
      causal=True,
      q_offset=jnp.array([0, 9]),
      implementation=implementation,
    )
    return jnp.vdot(y, q)

  want, got = (
    jax.grad(loss, (0, 1))(k, v, one) for one in ('reference', 'blockwise')
  )
  assert_close(got, want)


def test_gradients_to_queries_are_summed_in_float32():
  """The terms of early and late keys are large, and cancel."""
  q, k, v = arrays(q_length=8, k_length=512)
  k = 0.1 * k + 1
  v += np.float32(40 * np.sign(np.arange(512) - 255.5)[:, None, None])

  def gradient(q):
    def loss(q):
      y = attention.dot_product_attention(
        q, k, v, causal=False, implementation='blockwise'
      )
      return y.astype(jnp.float32).sum()

    return np.asarray(jax.grad(loss)(q), np.float32)

  half = jnp.asarray(0.01 * q, jnp.bfloat16)
  want = gradient(half.astype(jnp.float32))
  assert np.abs(gradient(half) - want).max() < 0.01 * np.abs(want).max()


def test_bands_are_merged_in_float32(monkeypatch):
  found, merged = [], bands.merged

  def noted(parts, sink_logits=None):
    found.extend(y.dtype for y, _ in parts)
    return merged(parts, sink_logits)

  monkeypatch.setattr(bands, 'merged', noted)
  q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in arrays())
  encoding = encodings.create('rerope(window=4)', num_heads=H, head_dim=D)
  y = attention.with_encoding(
    encoding.bind({}), q, k, v, causal=True, implementation='blockwise'
  )
  assert found == [jnp.float32] * 2 and y.dtype == jnp.bfloat16
