"""Encodings inside a network shaped like T5X's."""

import functools

from flax import linen as nn
from flax.linen import partitioning
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lengen_jax import encodings, errors
from lengen_jax import positions as position_schemes
from lengen_jax.interop import t5x
from lengen_jax.interop.t5x import biases as biases_lib
from tests import helpers
from tests.interop import network

ADDITIVE = {
  'alibi': 'alibi',
  'fire': 'fire(init_threshold=1.)',
  'kerple_log': 'kerple_log',
  'kerple_power': 'kerple_power',
  't5': 't5',
  'sandwich': 'sandwich',
}
# How a network holds its biases, for those that T5X's own would be.
WAYS = {
  'shared': {},
  'each': {'shared': False},
  'scan': {'shared': False, 'scan': True, 'remat': True},
}
NETWORKS = {
  f'{name}-{way}': dict(biases={'encoding': spec}, **kwargs)
  for name, spec in ADDITIVE.items()
  for way, kwargs in WAYS.items()
}
# And inside attention.
NETWORKS |= {
  f'{name}-attention': dict(
    attention={'encoding': spec},
    scan=name != 'fire',
    remat=name == 'kerple_log',
  )
  for name, spec in ADDITIVE.items()
}
NETWORKS |= {
  f'rotary-{way}': dict(attention={'rotary': 'rope(scale=2.)'}, **kwargs)
  for way, kwargs in WAYS.items()
  if way != 'shared'
}


# The default suite covers properties and kinds of networks pairwise.
SHARED, SCAN = 'alibi-shared', 'fire-scan'
INSIDE, ROTARY = 'kerple_log-attention', 'rotary-each'
# Networks of the slow tests: with the others, every encoding and every kind.
SLOW = (
  'kerple_power-shared',
  't5-each',
  'sandwich-scan',
  'fire-attention',
  'rotary-scan',
)


def of_networks(*quick):
  return pytest.mark.parametrize(
    'name', [*quick, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]
  )


# The axes of a parameter as T5X's Adafactor sees them.
FACTORS = {
  'vocab': 'column',
  'embed': 'row',
  'mlp': 'column',
  'heads': 'column',
  'kv': 'column',
  'joined_kv': 'column',
  'relpos_buckets': 'none',
  'layers': 'none',
  'stack': 'none',
}


@functools.cache
def make(name, dtype='float32'):
  """Returns config, random parameters, and the shapes of all variables."""
  cfg = network.Config(dtype=jnp.dtype(dtype), **NETWORKS[name])
  shapes = jax.eval_shape(lambda: network.init(cfg))

  def louder(path, leaf):
    names = [key.key for key in path]
    encodes = {'relpos_bias', 'encoding'} & set(names)
    linear = names[-1] in ('kernel', 'bias')
    return abs(leaf) * 3 if encodes and not linear else leaf

  params = helpers.random_params(lambda: shapes['params'])
  return cfg, jax.tree_util.tree_map_with_path(louder, params), shapes


def attention(x, y=None, **fields):
  """Returns attention of 4 heads and random parameters for it."""
  module = t5x.MultiHeadDotProductAttention(
    **{'num_heads': 4, 'head_dim': 8, **fields}
  )
  key = jax.random.key(0)
  return module, helpers.random_params(
    lambda: module.init(key, x, x if y is None else y)['params']
  )


def compiled_apply(module, params, *args, **kwargs):
  """Applies a module by one compiled program."""
  apply = functools.partial(module.apply, **kwargs)
  return jax.jit(apply)({'params': params}, *args)


LENGTH = 8


def some_tokens(rows, length, seed=0):
  """Random tokens; 0 is padding."""
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.integers(1, 16, (rows, length)), jnp.float32)


@functools.cache
def compiled(name, dtype):
  """Applies a network, compiled once per structure of the arguments."""
  return jax.jit(network.Decoder(make(name, dtype)[0]).apply)


def apply(name, tokens, positions=None, segment_ids=None, dtype='float32'):
  _, params, _ = make(name, dtype)
  return compiled(name, dtype)(
    {'params': params}, tokens, positions, segment_ids
  )


@functools.cache
def compiled_decode(name):
  cfg = make(name)[0]

  @jax.jit
  def run(params, tokens, positions):
    def one(cache, token):
      logits, cache = network.step(
        cfg, params, cache, token, tokens.shape[1], positions
      )
      return cache, logits

    cache = network.empty_cache(cfg, params, tokens, positions)
    return jax.lax.scan(one, cache, tokens.T)[1]

  return run


def decode(name, tokens, positions=None):
  """Logits of all tokens, one step at a time."""
  logits = compiled_decode(name)(make(name)[1], tokens, positions)
  return jnp.moveaxis(logits, 0, 1)


@of_networks(SHARED, SCAN, INSIDE, ROTARY)
def test_parameters_are_what_t5x_takes(name):
  _, _, variables = make(name)
  params = variables['params']
  names = jax.tree.map(
    lambda leaf: leaf.names,
    variables['params_axes'],
    is_leaf=lambda x: isinstance(x, partitioning.AxisMetadata),
  )
  flat = jax.tree_util.tree_leaves_with_path(params)
  assert len(flat) > 5
  for path, leaf in flat:
    of_leaf = names
    for key in path[:-1]:
      of_leaf = of_leaf[key.key]
    of_leaf = of_leaf[f'{path[-1].key}_axes']
    assert leaf.ndim == len(of_leaf) > 0, path
    assert leaf.dtype == jnp.float32
    assert len(set(of_leaf)) == len(of_leaf)
    factors = {FACTORS[axis] for axis in of_leaf}
    # T5X refuses to factor a matrix that has an axis beside.
    assert 'layers' in of_leaf or factors != {'row', 'column', 'none'}, path
    assert ('layers' in of_leaf) == ('layers' in str(path[0])[2:-2].split())


@of_networks(SCAN)
def test_trains(name):
  cfg, params, _ = make(name)
  tokens = jnp.tile(some_tokens(4, 3), (1, 2))
  optimizer = optax.adafactor(0.05)

  @jax.jit
  def train(params, state):
    def loss(params):
      logits = network.Decoder(cfg).apply({'params': params}, tokens)[:, :-1]
      targets = tokens[:, 1:].astype(jnp.int32)
      return optax.softmax_cross_entropy_with_integer_labels(
        logits, targets
      ).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value, gradients

  state = optimizer.init(params)
  losses = []
  for _ in range(30):
    params, state, value, gradients = train(params, state)
    losses.append(float(value))
  assert np.isfinite(losses).all()
  assert losses[-1] < 0.7 * losses[0]
  for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
    assert np.isfinite(leaf).all(), path


@of_networks(SHARED, SCAN, INSIDE, ROTARY)
def test_decoding_is_teacher_forcing(name, assert_close):
  tokens = some_tokens(2, LENGTH)
  assert_close(decode(name, tokens), apply(name, tokens))


@of_networks(SCAN, ROTARY)
def test_packed_is_separate(name, assert_close):
  tokens = some_tokens(2, LENGTH)
  # Outputs of the first tokens depend on no later ones.
  whole = apply(name, tokens)
  separate = jnp.concatenate([whole[:1, :4], whole[1:, :3]], 1)
  row = jnp.concatenate([tokens[0, :4], tokens[1, :3], jnp.zeros(1)])[None]
  ids = jnp.asarray([[1] * 4 + [2] * 3 + [0]])
  index = jnp.asarray([[*range(4), *range(3), 0]])
  packed = apply(name, row, index, ids)[:, :7]
  assert_close(packed, separate)
  # Controls: without the mask segments see each other.
  leaking = apply(name, row, index, jnp.ones_like(ids))[:, :7]
  assert jnp.abs(leaking - separate).max() > 1e-2
  # Positions in the row are wrong for a bias of more than distance.
  withheld = apply(name, row, jnp.arange(8)[None], ids)[:, :7]
  if name.startswith('fire'):
    assert jnp.abs(withheld - separate)[:, 4:].max() > 1e-3
  else:
    assert_close(withheld, separate)


@of_networks(SHARED, INSIDE)
def test_positions_are_data(name, assert_close):
  tokens = some_tokens(2, LENGTH)
  stretched = 3 * jnp.arange(LENGTH)
  shifted = jnp.stack([stretched, stretched + 11])
  plain, given, moved = (
    apply(name, tokens, positions) for positions in (None, stretched, shifted)
  )
  assert jnp.abs(given - plain).max() > 1e-3
  assert_close(given[0], moved[0])
  if name.startswith('fire'):
    assert jnp.abs(given[1] - moved[1]).max() > 1e-4
  else:
    assert_close(given[1], moved[1])
  # Decoding takes those of all slots, at each step.
  assert_close(decode(name, tokens, stretched), given)
  if name.endswith('-shared'):
    with pytest.raises(errors.ConfigError, match='one bias for all rows'):
      decode(name, tokens, shifted)
  else:
    assert_close(decode(name, tokens, shifted), moved)


@of_networks(SCAN, INSIDE)
def test_beams_after_prefill(name, assert_close):
  """Two beams of two rows, swapped on their way, score as they would alone."""
  cfg, params, _ = make(name)
  prompts, length, beams = (3, 5), LENGTH, 2
  tokens = some_tokens(4, length)
  prompt = tokens[::beams]
  # What a beam says after its prompt; that of the row's first comes first.
  tokens = tokens.at[1::beams, :5].set(tokens[::beams, :5])
  model = network.Decoder(cfg)

  @jax.jit
  def start(params):
    cache = network.empty_cache(cfg, params, prompt)
    _, variables = model.apply(
      {'params': params, 'cache': cache},
      prompt,
      prefill=True,
      prefill_lengths=jnp.asarray(prompts),
      mutable=['cache'],
    )
    return variables['cache']

  @jax.jit
  def step(params, cache, token):
    return network.step(cfg, params, cache, token, length)

  cache = start(params)
  cache = network.over_beams(
    lambda leaf: jnp.repeat(leaf, beams, axis=cfg.scan), cache, True
  )
  at = np.repeat(prompts, beams)
  order = jnp.asarray([1, 0, 3, 2])
  got = []
  for i in range(length - max(prompts)):
    logits, cache = step(params, cache, tokens[jnp.arange(4), at + i])
    got.append(logits)
    # The search goes on with the beams in another order.
    cache = network.over_beams(
      lambda leaf: jnp.take(leaf, order, axis=int(cfg.scan)), cache, True
    )
    tokens = tokens[order]
    got = [logits[order] for logits in got]
  full = apply(name, tokens)
  for i, logits in enumerate(got):
    assert_close(logits, full[jnp.arange(4), at + i])


@of_networks(ROTARY)
def test_bfloat16_far_out(name):
  """Positions above 8192, where bfloat16 numbers are 64 apart, stay exact."""
  tokens = some_tokens(2, LENGTH)
  far = jnp.arange(LENGTH) + 8192
  want = apply(name, tokens, far)
  got = apply(name, tokens, far, dtype='bfloat16')
  scale = jnp.abs(want).max()
  assert jnp.abs(got - want).max() < 0.05 * scale
  if not name.startswith('fire'):
    near = apply(name, tokens, jnp.arange(LENGTH), dtype='bfloat16')
    # Angles differ in float32's last bits, and so do the turned queries.
    tolerance = 0.02 if name.startswith('rotary') else 1e-5
    assert jnp.abs(got - near).max() < tolerance * scale
  if not name.startswith('fire'):
    # Control: positions that went through 16 bits are all one.
    rounded = far.astype(jnp.bfloat16).astype(jnp.int32)
    lost = apply(name, tokens, rounded, dtype='bfloat16')
    assert jnp.abs(lost - want).max() > 2 * jnp.abs(got - want).max()


def plain_attention(params, x, mask, bias, heads=4):
  """T5X's attention, written out."""
  shape = (*x.shape[:2], heads, -1)
  q, k, v = (
    (x @ params[name]['kernel']).reshape(shape)
    for name in ('query', 'key', 'value')
  )
  logits = jnp.einsum('bqhd,bkhd->bhqk', q, k) + bias
  weights = jax.nn.softmax(jnp.where(mask > 0, logits, -1e10))
  y = jnp.einsum('bhqk,bkhd->bqhd', weights, v)
  return y.reshape(*x.shape[:2], -1) @ params['out']['kernel']


def test_attention_is_that_of_t5x(assert_close):
  module = t5x.MultiHeadDotProductAttention(num_heads=4, head_dim=8)
  x = jax.random.normal(jax.random.key(0), (2, 6, 16))
  mask = network.make_mask((2, 6), None)
  bias = jax.random.normal(jax.random.key(1), (1, 4, 6, 6))
  params = jax.jit(module.init)(jax.random.key(2), x, x)['params']
  assert jax.tree.map(jnp.shape, params) == {
    name: {'kernel': (32, 16) if name == 'out' else (16, 32)}
    for name in ('query', 'key', 'value', 'out')
  }
  # Logits are not divided: queries start smaller.
  ratio = params['key']['kernel'].std() / params['query']['kernel'].std()
  assert abs(ratio / 8**0.5 - 1) < 0.1
  arguments = params, x, x, mask, bias
  got = compiled_apply(module, *arguments, deterministic=True)
  assert_close(got, jax.jit(plain_attention)(params, x, mask, bias))
  same = module.clone(float32_logits=True)
  again = compiled_apply(same, *arguments, deterministic=True)
  np.testing.assert_array_equal(again, got)


def test_kernels_by_head(assert_close):
  """As scalable_t5 has them: the same numbers, in other shapes."""
  x = jax.random.normal(jax.random.key(0), (2, 6, 16))
  outputs = []
  for joined in (True, False):
    module = t5x.MultiHeadDotProductAttention(
      num_heads=4, head_dim=8, joined_kv=joined
    )
    variables = jax.jit(module.init)(jax.random.key(2), x, x)
    params = variables['params']
    outputs.append(compiled_apply(module, params, x, x, deterministic=True))
  assert_close(*outputs)
  assert variables['params']['query']['kernel'].shape == (16, 4, 8)
  assert variables['params']['out']['kernel'].shape == (4, 8, 16)
  axes = variables['params_axes']
  assert axes['query']['kernel_axes'].names == ('embed', 'heads', 'kv')
  assert axes['out']['kernel_axes'].names == ('heads', 'kv', 'embed')


def test_attention_to_an_encoder(assert_close):
  x, encoded = np.ones((2, 3, 16)), np.ones((2, 7, 16))
  module, params = attention(x, encoded)
  mask = np.ones((2, 1, 3, 7))
  mask[0, :, :, 4:] = 0
  encoded[0, 4:] = 100
  got = compiled_apply(module, params, x, encoded, mask, deterministic=True)
  assert_close(got[0], got[1])


def test_dropout_is_alike_for_all_queries(assert_close):
  x = jax.random.normal(jax.random.key(0), (2, 6, 16))
  module, params = attention(x)
  module = module.clone(dropout_rate=0.5)
  # All queries weigh all keys alike.
  params['query']['kernel'] *= 0
  y = compiled_apply(module, params, x, x, rngs={'dropout': jax.random.key(1)})
  assert_close(y, jnp.broadcast_to(y[:, :1], y.shape))
  plain = compiled_apply(module, params, x, x, deterministic=True)
  assert jnp.abs(y - plain).min() > 1e-4


def test_the_table_of_t5_is_where_t5x_has_it(assert_close):
  def init(key, shape, dtype):
    assert shape == (4, 8)
    return jnp.arange(32.0, dtype=dtype).reshape(shape)

  module = t5x.RelativePositionBiases(
    encoding='t5',
    num_heads=4,
    num_buckets=8,
    max_distance=16,
    embedding_init=init,
  )
  variables = jax.jit(lambda: module.init(jax.random.key(0), 9, 9))()
  table = variables['params']['rel_embedding']
  assert (table == np.arange(32.0).reshape(4, 8)).all()
  ours = encodings.create(
    't5(num_buckets=8, max_distance=16)', num_heads=4, head_dim=1
  )
  index = jnp.arange(9)

  @jax.jit
  def both(variables):
    table = variables['params']['rel_embedding']
    return [
      (
        module.apply(variables, 9, 9, bidirectional),
        ours.apply(
          {'params': {'table': table.T}},
          index,
          index,
          bidirectional=bidirectional,
          method='bias',
        )[None],
      )
      for bidirectional in (True, False)
    ]

  for bias, want in both(variables):
    assert_close(bias, want)
  # Bucket 0 is the token itself, bucket 1 its predecessor.
  assert bias[0, 2, 5, 5] == table[2, 0] and bias[0, 2, 5, 4] == table[2, 1]


def test_fields_of_t5_feed_t5_alone():
  def shapes(encoding):
    module = t5x.RelativePositionBiases(
      encoding=encoding, num_heads=4, num_buckets=12
    )
    made = jax.eval_shape(lambda: module.init(jax.random.key(0), 3, 3))
    return jax.tree.map(jnp.shape, made.get('params', {}))

  assert shapes('t5') == {'rel_embedding': (4, 12)}
  assert shapes('t5(num_buckets=6)') == {'rel_embedding': (4, 6)}
  assert shapes('kerple_log') == {'a': (4,), 'p': (4,)}
  assert shapes('alibi') == {}
  assert set(shapes('fire(hidden_layers=1)')) == {
    'c',
    'threshold_multiplier',
    'mlp_0',
    'mlp_1',
  }


@pytest.mark.parametrize('encoding', ['fire', 't5'])
def test_both_ways(encoding, assert_close):
  module = t5x.RelativePositionBiases(encoding=encoding, num_heads=4)
  x = jax.random.normal(jax.random.key(0), (2, 5, 16))
  ours, made = attention(x, encoding=encoding, bidirectional=True)
  plain, _ = attention(x)
  inside = made['encoding']
  if encoding == 't5':
    inside = {'rel_embedding': inside['table'].T}
  bias = jax.jit(lambda params: module.apply({'params': params}, 5, 5))(inside)
  params = {name: made[name] for name in made if name != 'encoding'}
  want = compiled_apply(plain, params, x, x, None, bias, deterministic=True)
  assert_close(compiled_apply(ours, made, x, x, deterministic=True), want)


def test_no_bias():
  module = t5x.RelativePositionBiases(encoding='nope', num_heads=4)
  assert module.apply({}, 5, 5) is None


def test_distances_of_pairs(assert_close):
  """Drawn distances, of each row its own."""
  r = np.asarray([[0, 2, 5, 6], [0, 1, 4, 9]])
  distances = position_schemes.Distances(jnp.asarray(r))
  module = t5x.RelativePositionBiases(
    encoding='alibi', num_heads=4, positions=distances
  )
  bias = np.asarray(jax.jit(lambda: module.apply({}, 4, 4, False))())
  slopes = bias[:, :, 1, 0] / -r[:, 1:2]
  assert_close(bias[:, :, 3, 1], -slopes * r[:, 2:3])
  assert_close(bias[:, :, 3, 0], -slopes * r[:, 3:4])


def test_one_row_of_the_bias_while_decoding():
  """No array over all pairs of slots, where T5X's way has three."""
  slots = 256

  def arrays(way):
    cfg = network.Config(**NETWORKS[way])
    params = jax.eval_shape(lambda: network.init(cfg))['params']
    tokens = jax.ShapeDtypeStruct((2, slots), jnp.float32)
    cache = jax.eval_shape(
      lambda params, tokens: network.empty_cache(cfg, params, tokens),
      params,
      tokens,
    )
    token = jax.ShapeDtypeStruct((2,), jnp.float32)

    def step(params, cache, token):
      return network.step(cfg, params, cache, token, slots)[0]

    text = jax.jit(step).lower(params, cache, token).as_text()
    return text.count(f'{slots}x{slots}x')

  assert arrays('fire-attention') == 0
  assert arrays('fire-shared') > 0


@pytest.mark.parametrize('way', ['handed in', 'encoding'])
def test_rows_that_are_full_go_on(way):
  """As in T5X's sampling, where short rows wait for long ones."""
  fields = {
    'handed in': {},
    'encoding': {
      'encoding': 'alibi',
      'rotary': 'rope',
      'positions': jnp.arange(5.0),
    },
  }[way]
  x = jax.random.normal(jax.random.key(0), (2, 5, 16))
  module, params = attention(x, **fields)
  bias = jnp.ones((1, 4, 5, 5)) if way == 'handed in' else None
  kwargs = dict(deterministic=True, mutable=['cache'])

  @jax.jit
  def run(params):
    params = {'params': params}
    _, cache = module.apply(params, x, x, decode=True, **kwargs)
    _, cache = module.apply(
      {**params, **cache},
      x,
      x,
      network.make_mask((2, 5), None),
      prefill=True,
      prefill_lengths=jnp.asarray([5, 2]),
      **kwargs,
    )

    def step(cache, _):
      token = x[:, :1]
      y, after = module.apply(
        {**params, 'cache': cache},
        *(token, token, None, bias),
        decode=True,
        **kwargs,
      )
      return after['cache'], y

    return cache['cache'], jax.lax.scan(step, cache['cache'], length=3)

  before, (after, y) = run(params)
  assert np.isfinite(y).all()
  # The cache of the full row is unchanged.
  np.testing.assert_array_equal(after['cached_key'][0], before['cached_key'][0])


def test_positions_per_head(assert_close):
  positions = 9 * jax.random.uniform(jax.random.key(0), (2, 5, 4))
  x = jax.random.normal(jax.random.key(1), (2, 5, 8))

  def bias(positions):
    return t5x.RelativePositionBiases(
      encoding='alibi', num_heads=4, positions=positions
    ).apply({}, 5, 5, False)

  def attend(positions, variables=None, **encodings):
    layer = t5x.MultiHeadDotProductAttention(
      num_heads=4, head_dim=2, positions=positions, **encodings
    )
    variables = variables or layer.init(jax.random.key(2), x, x)
    return variables, layer.apply(variables, x, x, deterministic=True)

  found = bias(positions)
  variables, rotated = attend(positions, rotary='rope')
  for head in range(4):
    alone = bias(positions[:, :, head])
    assert_close(found[:, head], alone[:, head])
  assert jnp.abs(found - bias(positions[:, :, 0])).max() > 0.1
  same = jnp.repeat(positions[:, :, :1], 4, -1)
  assert_close(
    attend(same, variables, rotary='rope')[1],
    attend(positions[:, :, 0], variables, rotary='rope')[1],
  )
  other = attend(positions[:, :, 0], variables, rotary='rope')[1]
  assert jnp.abs(rotated - other).max() > 1e-3


@pytest.mark.parametrize(
  'name', [pytest.param('fire-attention', marks=pytest.mark.slow), ROTARY]
)
def test_beams_have_the_positions_of_their_row(name, assert_close):
  cfg, params, _ = make(name)
  tokens = some_tokens(2, LENGTH)
  positions = jnp.stack([jnp.arange(LENGTH), 3 + 4 * jnp.arange(LENGTH)])
  want = apply(name, tokens, positions)
  assert jnp.abs(want - apply(name, tokens, positions[::-1])).max() > 1e-3
  cache = network.empty_cache(cfg, params, tokens, positions)
  cache = network.over_beams(
    lambda leaf: jnp.repeat(leaf, 3, axis=cfg.scan), cache, False
  )
  step = jax.jit(functools.partial(network.step, cfg), static_argnums=3)
  for i in range(LENGTH):
    logits, cache = step(
      params, cache, jnp.repeat(tokens[:, i], 3), LENGTH, positions
    )
    assert_close(logits, jnp.repeat(want[:, i], 3, axis=0))


def test_beams_of_distances_whose_starts_have_one_row():
  r = jnp.cumsum(jnp.ones((2, 5), jnp.int32), 1)
  given = position_schemes.Distances(r=r, start=jnp.zeros((1, 5), jnp.int32))
  alibi = encodings.create('alibi', num_heads=4, head_dim=8, width=32)
  got = biases_lib.positions_of(given, 4, 5, alibi, beams=True)
  assert (got.r.shape, got.start.shape) == ((4, 5), (1, 5))
  np.testing.assert_array_equal(got.r, jnp.repeat(r, 2, 0))


def test_a_bias_handed_in_is_added(assert_close):
  """Beside an encoding, in training and while decoding."""
  x = jax.random.normal(jax.random.key(0), (2, 5, 16))
  module, params = attention(x, encoding='alibi')
  plain, _ = attention(x)
  variables = {'params': params}
  bias = jax.random.normal(jax.random.key(2), (1, 4, 5, 5))
  alibi = t5x.RelativePositionBiases(encoding='alibi', num_heads=4)
  both = bias + alibi.apply({}, 5, 5, False)
  mask = network.make_mask((2, 5), None)
  got = compiled_apply(module, params, x, x, mask, bias, deterministic=True)
  hiding = mask.at[1, :, :, 0].set(0)
  attend = jax.jit(functools.partial(plain.apply, deterministic=True))
  want = attend(variables, x, x, mask, both)
  assert_close(got, want)
  kwargs = dict(deterministic=True, decode=True, mutable=['cache'])
  step = jax.jit(functools.partial(module.apply, **kwargs))
  _, cache = step(variables, x, x)
  # A mask of its own hides the first slot from the second row.
  hidden = jnp.ones((2, 1, 1, 5)).at[1, :, :, 0].set(0)
  for i in range(5):
    token = x[:, i : i + 1]
    y, cache = step({**variables, **cache}, token, token, hidden, bias)
    assert_close(y[0, 0], want[0, i])
  want = attend(variables, x, x, hiding, both)
  assert_close(y[1, 0], want[1, 4])


def test_prefill_counts_what_the_first_query_sees(assert_close):
  x = jax.random.normal(jax.random.key(0), (2, 5, 16))
  module, params = attention(x)
  variables = {'params': params}
  kwargs = dict(deterministic=True, mutable=['cache'])
  _, cache = compiled_apply(module, params, x, x, decode=True, **kwargs)
  # A prefix of 3 and of 4 tokens, all of which see each other.
  prefix = jnp.arange(5)[None] < jnp.asarray([[3], [4]])
  mask = prefix[:, None, :, None] & prefix[:, None, None, :]
  prefill = functools.partial(module.apply, prefill=True, **kwargs)
  _, cache = jax.jit(prefill)({**variables, **cache}, x, x, mask)
  cache = cache['cache']
  assert cache['cache_index'].tolist() == [3, 4]
  filled = jnp.abs(cache['cached_key']).max((1, 2)) > 0
  assert (filled == prefix).all()


def test_axes_of_joined_kernels():
  x = jnp.ones((2, 5, 16))
  module = t5x.MultiHeadDotProductAttention(num_heads=4, head_dim=8)
  variables = jax.eval_shape(
    lambda: module.init(jax.random.key(0), x, x, deterministic=True)
  )
  names = {
    name: leaf['kernel_axes'].names
    for name, leaf in variables['params_axes'].items()
  }
  inwards = ('embed', 'joined_kv')
  assert names == {
    'query': inwards,
    'key': inwards,
    'value': inwards,
    'out': ('joined_kv', 'embed'),
  }


def test_dtype_of_the_bias():
  for dtype in (jnp.float32, jnp.bfloat16):
    bias, _ = jax.eval_shape(lambda dtype=dtype: biases(dtype=dtype))
    assert bias.dtype == dtype
    bias, cache = jax.eval_shape(
      lambda dtype=dtype: biases(dtype=dtype, decode=True)
    )
    assert bias.dtype == dtype
    assert cache['cache']['cached_bias'].dtype == dtype


def test_queries_keys_and_values_are_laid_out(monkeypatch):
  """By T5X's names; on a CPU flax does nothing with them."""
  seen = []

  def constrain(x, names):
    if x.ndim == 4:
      seen.append((x.shape, names))
    return x

  monkeypatch.setattr(partitioning, 'with_sharding_constraint', constrain)
  jax.eval_shape(attend)
  names = ('batch', 'length', 'heads', 'kv')
  assert seen == [((2, 5, 4, 8), names)] * 3


def attend(mask=None, bias=None, length=5, slots=None, **fields):
  """One call of attention, a step where there are slots."""
  module = t5x.MultiHeadDotProductAttention(num_heads=4, head_dim=8, **fields)
  x = jnp.ones((2, length, 16))
  kwargs = dict(deterministic=True)
  if slots is None:
    return module.init(jax.random.key(0), x, x, mask, bias, **kwargs)
  new = jnp.ones((2, slots, 16))
  variables = module.init(jax.random.key(0), new, new, decode=True, **kwargs)
  return module.apply(
    variables, x, x, mask, bias, decode=True, mutable=['cache'], **kwargs
  )


def biases(qlen=5, klen=5, bidirectional=False, decode=False, **fields):
  """One call of a bias, with parameters."""
  module = t5x.RelativePositionBiases(**{'num_heads': 4, **fields})
  made = module.init(jax.random.key(0), 5, 5)
  variables = {'params': made.get('params', {})}
  return module.apply(
    variables, qlen, klen, bidirectional, decode=decode, mutable=['cache']
  )


def resized():
  made = t5x.RelativePositionBiases(num_heads=4).init(jax.random.key(0), 3, 3)
  return t5x.RelativePositionBiases(num_heads=8).apply(made, 3, 3)


def across(**fields):
  module = t5x.MultiHeadDotProductAttention(num_heads=4, head_dim=8, **fields)
  x, encoded = jnp.ones((2, 5, 16)), jnp.ones((2, 7, 16))
  return module.init(jax.random.key(0), x, encoded)


def prefill_of_unknown_length():
  module = t5x.MultiHeadDotProductAttention(num_heads=4, head_dim=8)
  x = jnp.ones((2, 5, 16))
  variables = module.init(jax.random.key(0), x, x, decode=True)
  return module.apply(variables, x, x, prefill=True, mutable=['cache'])


def another_cache():
  module = t5x.RelativePositionBiases(encoding='alibi', num_heads=4)
  _, cache = module.apply({}, 5, 5, False, decode=True, mutable=['cache'])
  return module.apply(cache, 6, 6, False, decode=True)


class Odd(encodings.Encoding):
  """Somebody's encoding with an axis that T5X does not know."""

  def tile_params(self):
    init = nn.initializers.zeros
    w = self.make_param(self, 'w', init, (3,), ('hidden',))
    return {'w': (w, ('hidden',))}


@pytest.mark.parametrize(
  ('mistake', 'message'),
  [
    (lambda: biases(encoding='fier'), "did you mean 'fire'"),
    (lambda: biases(encoding='rope'), r"rotary='rope'\)"),
    (lambda: biases(encoding='sinusoidal'), 'add its embed'),
    (lambda: biases(encoding='shaw(left=2, right=2)'), 'layers.Attention'),
    (lambda: biases(num_heads=0), 'num_heads=0'),
    (lambda: biases(bidirectional=True, decode=True), 'bidirectional=False'),
    (lambda: biases(positions=jnp.arange(4)), 'rows of 5'),
    (lambda: biases(positions=jnp.ones((2, 5), jnp.int16)), 'int32 or float32'),
    (lambda: biases(positions='randomized'), 'is a scheme or its spec'),
    (lambda: biases(positions=jnp.ones((2, 2, 5))), 'some for each layer'),
    (lambda: biases(klen=6, positions=jnp.arange(5)), '5 queries and 6 keys'),
    (
      lambda: biases(decode=True, positions=jnp.ones((2, 5))),
      r'give \[1, L\], or give them to MultiHeadDotProductAttention',
    ),
    (
      lambda: t5x.RelativePositionBiases(num_heads=4).init(
        jax.random.key(0), 5, 5, False, decode=True
      ),
      'apply',
    ),
    (resized, 'num_heads and the other fields'),
    (another_cache, '6 x 6 pairs'),
    (lambda: attend(rotary='alibi'), "encoding='alibi'"),
    (lambda: attend(encoding='rope'), "rotary='rope'"),
    (
      lambda: attend(rotary='rope(train_length=4, dynamic=True)'),
      'fixed scale',
    ),
    (lambda: attend(bias=jnp.ones((1, 2, 5, 5))), 'num_heads=4'),
    (lambda: attend(bias=jnp.ones((4, 5, 5))), 'num_heads=4'),
    (lambda: attend(mask=jnp.ones((2, 1, 5, 4))), 'mask has shape'),
    (lambda: attend(rotary='rope', positions=jnp.arange(4)), 'rows of 5'),
    (lambda: attend(rotary='rope', positions=jnp.ones((3, 5))), 'rows of 5'),
    (lambda: attend(slots=9), 'one token for each row'),
    (
      lambda: attend(length=1, slots=9, bias=jnp.ones((1, 4, 1, 9))),
      r'\[1 or B, H, 9, 9\]',
    ),
    (
      lambda: attend(length=1, slots=9, bias=jnp.ones((4, 9, 9))),
      'max_decode_length',
    ),
    (lambda: attend(rotary='learned(max_position=9)'), 'does not rotate'),
    (lambda: across(rotary='rope'), '5 queries and 7 keys'),
    (lambda: across(encoding='alibi'), '5 queries and 7 keys'),
    (lambda: biases(encoding=encodings.ENCODINGS['alibi'](4, 8)), 'the spec'),
    (prefill_of_unknown_length, 'prefill_lengths, or a mask'),
    (
      lambda: attend(length=1, slots=9, bidirectional=True),
      'leave out bidirectional',
    ),
    (lambda: attend(encoding='odd'), "'hidden',.; T5X needs at least one axis"),
  ],
)
def test_mistakes(mistake, message, monkeypatch):
  monkeypatch.setitem(encodings.ENCODINGS, 'odd', Odd)
  with pytest.raises(errors.LengenError, match=message):
    jax.eval_shape(mistake)


@pytest.mark.parametrize('rows, length', [(2, 8), (3, 9)])
def test_prefill_takes_rows_of_the_cache(rows, length):
  module = t5x.MultiHeadDotProductAttention(num_heads=4, head_dim=8)

  def prefill():
    x = jnp.ones((2, 9, 16))
    variables = module.init(jax.random.key(0), x, x, decode=True)
    x = jnp.ones((rows, length, 16))
    lengths = jnp.full(rows, 3)
    return module.apply(
      variables, x, x, prefill=True, prefill_lengths=lengths, mutable=['cache']
    )

  with pytest.raises(errors.ConfigError, match='rows as long as the cache'):
    jax.eval_shape(prefill)


def test_positions_under_scan(assert_close):
  """A scanned block closes over them; the networks pass them as arguments."""
  positions = jnp.asarray([[0, 1, 2, 0, 1], [4, 6, 8, 10, 12]])

  class Net(nn.Module):
    @nn.compact
    def __call__(self, x, positions):
      class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
          bias = t5x.RelativePositionBiases(
            encoding='fire(init_threshold=1.)',
            num_heads=2,
            positions=positions,
          )
          return x * 0.5 + bias(5, 5, False), None

      new = self.is_mutable_collection('params')
      return partitioning.scan_with_axes(
        partitioning.remat(Block, prevent_cse=False),
        variable_axes={'params': 1 if new else partitioning.ScanIn(1)},
        split_rngs={'params': True},
        in_axes=(nn.broadcast,),
        length=3,
        axis_name='layers',
      )(name='layers')(x, None)[0]

  x = jnp.zeros((2, 2, 5, 5))
  params = helpers.random_params(
    lambda: Net().init(jax.random.key(0), x, positions)['params']
  )
  params = jax.tree.map(abs, params)
  got = compiled_apply(Net(), params, x, positions)
  module = t5x.RelativePositionBiases(
    encoding='fire(init_threshold=1.)', num_heads=2, positions=positions
  )
  bias = jax.jit(lambda layer: module.apply({'params': layer}, 5, 5, False))
  want = x
  for i in range(3):
    layer = jax.tree.map(
      lambda leaf, i=i: leaf[:, i],
      params['layers']['RelativePositionBiases_0'],
    )
    want = want * 0.5 + bias(layer)
  assert_close(got, want)
