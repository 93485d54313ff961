"""Tests `lengen_jax/models/transformer.py`."""

import dataclasses
import functools

import flax
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors, models
from lengen_jax import positions as position_schemes
from lengen_jax.models import blocks, stacking, transformer
from lengen_jax.models import cache as cache_lib
from lengen_jax.positions.tokens import Tokens
from tests import helpers

V, E, H, D, L = 13, 16, 2, 8, 8
DOWN_BIAS = ['down', 'bias']
# Keys without a default.
SPECS = {
  'learned': 'learned(max_position=8)',
  'yarn': 'yarn(scale=4., train_length=8)',
  'longrope': 'longrope(train_length=4, scale=4., '
  'short_factors=(1., 1., 1., 1.), long_factors=(1., 2., 3., 4.))',
  'rerope': 'rerope(window=2)',
  'self_extend': 'self_extend(window=1, group=3)',
  'dual_chunk': 'dual_chunk(chunk=4, window=1)',
  'lm_infinite': 'lm_infinite(window=2)',
}
ALL = [SPECS.get(name, name) for name in sorted(encodings.ENCODINGS)]
# Those whose reach is some setting of theirs; what has none is far-reaching.
REACHING = ('fire', 'rope', 't5')
# Those that say the same of shifts and stretches as another one does.
ALIKE = ('kerple_power', 'llama3', SPECS['longrope'], 'ntk', 'sandwich')
WITHOUT_TABLE = [
  pytest.param(spec, marks=() if spec in REACHING else pytest.mark.slow)
  for spec in ALL
  if spec != SPECS['learned']
]


def create(encoding='nope', num_layers=1, **kwargs):
  return models.ModelConfig(
    vocab_size=V,
    num_layers=num_layers,
    num_heads=H,
    head_dim=D,
    width=E,
    mlp_width=E,
    encoding=encoding,
    **kwargs,
  )


def tokens(batch=2, length=L, seed=0):
  return jax.random.randint(jax.random.key(seed), (batch, length), 0, V)


@functools.partial(jax.jit, static_argnums=0)
def logits(config, params, inputs, positions=None, **kwargs):
  return models.DecoderLM(config).apply(
    {'params': params}, inputs, positions, **kwargs
  )


def run(config, inputs, positions=None, **kwargs):
  return logits(config, helpers.params_of(config), inputs, positions, **kwargs)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(config, params, inputs):
  def loss(params):
    x = models.DecoderLM(config).apply({'params': params}, inputs)
    picked = jnp.take_along_axis(
      jax.nn.log_softmax(x[:, :-1]), inputs[:, 1:, None], -1
    )
    return -picked.mean()

  return jax.value_and_grad(loss)(params)


def block_paths(i):
  attention, mlp = f'layer_{i}/attention', f'layer_{i}/mlp'
  return {
    f'{attention}/query/kernel': (E, H, D),
    f'{attention}/key/kernel': (E, H, D),
    f'{attention}/value/kernel': (E, H, D),
    f'{attention}/out/kernel': (H, D, E),
    f'{attention}_norm/scale': (E,),
    f'{attention}_norm/bias': (E,),
    f'{mlp}/up/kernel': (E, E),
    f'{mlp}/down/kernel': (E, E),
    f'{mlp}_norm/scale': (E,),
    f'{mlp}_norm/bias': (E,),
  }


MODEL_PATHS = {
  'embed/table': (V, E),
  'final_norm/scale': (E,),
  'final_norm/bias': (E,),
  **block_paths(0),
  **block_paths(1),
}
FIRE_PATHS = {
  'c': (1,),
  'threshold_multiplier': (1,),
  'mlp_0/kernel': (1, 3),
  'mlp_0/bias': (3,),
  'mlp_1/kernel': (3, H),
  'mlp_1/bias': (H,),
}
KERPLE_PATHS = {'p': (H,), 'a': (H,)}


def under(prefix, tree):
  return {f'{prefix}/{name}': shape for name, shape in tree.items()}


@pytest.mark.parametrize(
  'encoding, own',
  [
    ('nope', {}),
    ('rope', {}),
    ('learned(max_position=8)', {'encoding/table': (8, E)}),
    ('sinusoidal', {}),
    (
      'kerple_log',
      under('layer_0/attention/encoding', KERPLE_PATHS)
      | under('layer_1/attention/encoding', KERPLE_PATHS),
    ),
    ('kerple_log(shared=True)', under('encoding', KERPLE_PATHS)),
    ('rope, kerple_log', under('layer_1/attention/encoding', KERPLE_PATHS)),
    (
      'fire(mlp_width=3, hidden_layers=1, shared=True)',
      under('encoding', FIRE_PATHS),
    ),
    (
      'fire(mlp_width=3, hidden_layers=1)',
      under('layer_0/attention/encoding', FIRE_PATHS)
      | under('layer_1/attention/encoding', FIRE_PATHS),
    ),
    (
      'learned(max_position=8), kerple_log',
      {'encoding/table': (8, E)}
      | under('layer_1/attention/encoding', KERPLE_PATHS),
    ),
  ],
)
def test_parameter_paths(encoding, own):
  shapes = jax.eval_shape(
    lambda: stacking.init(create(encoding, 2), jax.random.key(0))
  )
  assert helpers.shapes(shapes) == MODEL_PATHS | own
  for leaf in jax.tree.leaves(shapes):
    assert leaf.dtype == jnp.float32 and leaf.shape != ()


@pytest.mark.parametrize('scan_layers', [False, True])
@pytest.mark.parametrize('encoding', ['fire', 'kerple_log(shared=True)'])
def test_logical_axes(encoding, scan_layers):
  config = create(encoding, scan_layers=scan_layers)
  boxed = jax.eval_shape(
    lambda: models.DecoderLM(config).init(jax.random.key(0), tokens())
  )
  leaves = jax.tree.leaves_with_path(
    boxed['params'], is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
  )
  for path, leaf in leaves:
    assert isinstance(leaf, nn.LogicallyPartitioned), path
    assert len(leaf.names) == leaf.unbox().ndim
    names = list(leaf.names)
    if path[0].key == 'layers':
      assert names.pop(0) == 'layers'
    assert set(names) <= helpers.AXES and len(set(names)) == len(names)


def moved_row(inputs, place):
  """Inputs with one token of its own at `place`, and its row's direction.

  Embeddings and output head share a table: the logit of that token is to be
  left out where its row is moved.
  """
  own = V - 1
  inputs = (inputs % own).at[:, place].set(own)
  row = jax.random.normal(jax.random.key(1), (E,))
  return inputs, jnp.zeros((V, E)).at[own].set(row)


def test_causality_by_gradient():
  config = create('sinusoidal')
  params = helpers.params_of(config)
  inputs, direction = moved_row(tokens(), 3)

  @jax.jit
  def moved(params):
    """How much each output changes as the embedding of token 3 does."""
    logits, pull_back = jax.vjp(
      lambda p: models.DecoderLM(config).apply({'params': p}, inputs), params
    )
    weights = jax.random.normal(jax.random.key(5), logits.shape)
    weights = weights.at[..., -1].set(0)
    rows = jnp.eye(logits.shape[1])[:, None, :, None] * weights[None]
    gradients = jax.vmap(lambda row: pull_back(row)[0]['embed']['table'])(rows)
    return jnp.abs(jnp.einsum('lve,ve->l', gradients, direction))

  reach = np.asarray(moved(params))
  assert (reach[:3] < 1e-6).all()
  assert (reach[3:] > 1e-4).all()


@pytest.mark.parametrize('encoding', ['fire', 'rope', 'sinusoidal'])
def test_packed_equals_separate(encoding, assert_close):
  config = create(encoding)
  inputs = tokens(1)
  ids, lengths = jnp.array([[7] * 4 + [2] * 4]), jnp.array([[4]])
  packed = run(config, inputs, segment_ids=ids, lengths=lengths)
  for part in (slice(0, 4), slice(4, 8)):
    alone = run(config, inputs[:, part], lengths=lengths)
    assert_close(packed[:, part], alone, 1e-5)


def test_packing_hides_other_segments():
  inputs = tokens(1)
  packed = run(create(), inputs, segment_ids=jnp.array([[7] * 4 + [2] * 4]))
  assert np.abs(packed - run(create(), inputs))[:, 4:].max() > 1e-3


@pytest.mark.parametrize('encoding', ['fire', 'learned(max_position=8)'])
def test_packed_with_positions_given(encoding, assert_close):
  config = create(encoding)
  ids = jnp.array([[1] * 5 + [2] * 3] * 2)
  index = jnp.array([[0, 1, 2, 3, 4, 0, 1, 2]])
  got = run(config, tokens(), index, segment_ids=ids)
  assert_close(got, run(config, tokens(), segment_ids=ids), 1e-6)


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'encoding',
  [
    pytest.param(spec, marks=pytest.mark.slow if spec in ALIKE else ())
    for spec in ALL
  ],
)
def test_positions_decide(encoding, assert_close):
  """A shift changes the logits of absolute encodings only."""
  config = create(encoding)
  inputs, lengths = tokens(1, 4), jnp.array([[4]])
  index = jnp.arange(4)[None]
  want = run(config, inputs, index, lengths=lengths)
  shifted = run(config, inputs, index + 4, lengths=lengths)
  made = blocks.create_encodings(config)[0]
  if made.translation_invariant:
    assert_close(shifted, want, 2e-5)
  elif encoding not in ('fire', SPECS['dual_chunk']):
    # FIRE has a threshold; a few tokens reach no third chunk.
    assert np.abs(shifted - want).max() > 1e-3
  stretch = 2 if encoding == SPECS['learned'] else 50
  stretched = run(config, inputs, index * stretch, lengths=lengths)
  assert (np.abs(stretched - want).max() > 1e-5) == (encoding != 'nope')


def test_positions_may_differ_between_rows(assert_close):
  config = create('alibi')
  index = jnp.tile(jnp.arange(L)[None], (2, 1))
  both = run(config, tokens(), index * jnp.array([[1], [3]]))
  standard = run(config, tokens(), index)
  assert_close(both[:1], standard[:1], 1e-6)
  assert_close(both[1:], run(config, tokens(), index * 3)[1:], 1e-6)
  assert_close(run(config, tokens()), standard, 1e-6)


def test_fire_tells_shifted_positions_beyond_its_threshold(assert_close):
  config = create('fire(init_threshold=8.)')
  inputs = tokens(length=4)
  index = jnp.arange(4)[None]
  want = run(config, inputs, index)
  assert_close(run(config, inputs, index + 3), want, 1e-5)
  assert np.abs(run(config, inputs, index + 500) - want).max() > 1e-4


@pytest.mark.parametrize('encoding', WITHOUT_TABLE)
def test_far_longer_inputs(encoding):
  """No encoding but a table of positions has a longest length."""
  # T5's last bucket starts at 113, FIRE's threshold is 512.
  config = create(encoding)
  y = run(config, tokens(1, 600), lengths=jnp.array([[600]]))
  assert y.shape == (1, 600, V) and np.isfinite(y).all()


def test_learned_raises_at_its_length():
  config = create(SPECS['learned'])
  assert np.isfinite(run(config, tokens(1, 8))).all()
  with pytest.raises(errors.LengthError) as caught:
    run(config, tokens(1, 9))
  assert 'learned(max_position=8)' in str(caught.value)
  assert 'position 8' in str(caught.value)
  with pytest.raises(errors.LengthError, match='position 31'):
    models.DecoderLM(config).apply(
      {'params': helpers.params_of(config)}, tokens(1, 32)
    )


def test_learned_takes_packed_rows_longer_than_its_table(assert_close):
  config = create(SPECS['learned'])
  inputs = tokens(1, 12)
  ids = jnp.array([[1] * 6 + [2] * 6])
  got = run(config, inputs, segment_ids=ids)
  assert_close(got[:, 6:], run(config, inputs[:, 6:]), 1e-5)


def test_positions_out_of_the_table():
  config = create(SPECS['learned'])
  inputs = tokens(1, 3)
  # Inside jit nothing can raise: that token and all that see it are NaN.
  y = run(config, inputs, jnp.array([[0, 8, 2]]))
  assert np.isnan(y[:, 1:]).all()
  with pytest.raises(errors.LengthError, match='position 8'):
    models.DecoderLM(config).apply(
      {'params': helpers.params_of(config)}, inputs, jnp.array([[0, 8, 2]])
    )


@pytest.mark.parametrize('scan_layers', [False, True])
def test_positions_that_a_jitted_function_closes_over(scan_layers):
  config = create(SPECS['learned'], scan_layers=scan_layers)
  positions = jnp.arange(L)[None] // 2
  apply = jax.jit(
    lambda params: models.DecoderLM(config).apply(
      {'params': params}, tokens(), positions
    )
  )
  assert np.isfinite(apply(helpers.params_of(config))).all()


@pytest.mark.parametrize('dtype', [jnp.float16, jnp.bfloat16])
def test_refuses_positions_of_16_bits(dtype):
  config = create('rope')
  with pytest.raises(errors.CombinationError) as caught:
    run(config, tokens(), jnp.arange(L, dtype=dtype)[None])
  assert f'positions are {jnp.dtype(dtype)}' in str(caught.value)


def test_refuses_fractions_where_rows_are_read():
  positions = jnp.arange(L)[None] / 2
  assert np.isfinite(run(create('t5'), tokens(), positions)).all()
  with pytest.raises(errors.CombinationError, match='learned .*float32'):
    run(create(SPECS['learned']), tokens(), positions)
  with pytest.raises(errors.CombinationError, match='learned .*float32'):
    run(create('rope, ' + SPECS['learned'], 2), tokens(), positions)


def assert_same_gradients(got, want, tolerance=1e-5):
  """By each leaf's size; what is tiny beside all others is rounding."""
  largest = max(np.abs(w).max() for w in jax.tree.leaves(want))
  for (path, g), w in zip(
    jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True
  ):
    bound = tolerance * max(np.abs(w).max(), 1e-3 * largest)
    assert np.abs(g - w).max() <= bound, path


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'encoding, num_layers, kwargs',
  [
    ('fire(init_threshold=4.)', 2, {}),
    pytest.param(
      'learned(max_position=8), kerple_log(shared=True)',
      4,
      {},
      marks=pytest.mark.slow,
    ),
    # Periods of 2 and 3.
    (
      'rope, kerple_log',
      6,
      {
        **{'window': (3, None, 2), 'sinks': (1, 0, 0)},
        'attention_scale': 'none, ssmax',
      },
    ),
    pytest.param(
      'linear',
      4,
      {
        **{'contextual_positions': 'forget, repo', 'output_gate': 'head'},
        **{'sink_logits': (True, False), 'query_key_norm': 'all'},
      },
      marks=pytest.mark.slow,
    ),
  ],
)
def test_scanned_equals_unrolled(encoding, num_layers, kwargs, assert_close):
  unrolled = create(encoding, num_layers, **kwargs)
  scanned = create(encoding, num_layers, scan_layers=True, **kwargs)
  params = helpers.params_of(unrolled)
  stacked = stacking.stack(params, scanned)
  want, want_gradient = loss_and_gradient(unrolled, params, tokens())
  got, got_gradient = loss_and_gradient(scanned, stacked, tokens())
  assert_close(got, want, 1e-6)
  assert_same_gradients(stacking.unstack(got_gradient), want_gradient, 2e-4)
  for gradient in jax.tree.leaves(got_gradient):
    assert np.abs(gradient).max() > 0


def per_layer(kind, num_layers=4):
  """Positions or distances that every layer has of its own, `[layers, B, L]`.

  Distances are of packed rows, whose segments start alike in all layers.
  """
  gaps = np.random.default_rng(5).integers(1, 9, (num_layers, 2, L))
  if kind == 'positions':
    return jnp.asarray(np.cumsum(gaps, -1)), {}
  ids = jnp.array([[1] * 5 + [2] * 3, [4] * 2 + [1] * 6])
  index = np.asarray(position_schemes.segment_positions(ids))
  start = np.arange(L)[None] - index
  ends = np.cumsum(gaps * (index > 0)[None], -1)
  r = ends - np.take_along_axis(ends, np.stack([start] * num_layers), -1)
  given = position_schemes.Distances(jnp.asarray(r), start=jnp.asarray(start))
  return given, {'segment_ids': ids}


@pytest.mark.some(2)
@pytest.mark.parametrize('kind', ['positions', 'distances'])
def test_scanned_layers_take_the_positions_of_their_own(kind, assert_close):
  """Each of four layers with two encodings gets its own positions."""
  encoding = 'alibi, kerple_log'
  unrolled = create(encoding, num_layers=4)
  scanned = create(encoding, num_layers=4, scan_layers=True)
  given, kwargs = per_layer(kind)
  want = run(unrolled, tokens(), given, **kwargs)
  stacked = stacking.stack(helpers.params_of(unrolled), scanned)
  assert_close(logits(scanned, stacked, tokens(), given, **kwargs), want)
  # Every layer's matter: those of two exchanged give something else.
  for i, j in ((0, 1), (0, 2), (1, 3)):
    order = jnp.arange(4).at[jnp.array([i, j])].set(jnp.array([j, i]))
    other = jax.tree.map(lambda x, o=order: x[o] if x.ndim > 2 else x, given)
    moved = np.abs(run(unrolled, tokens(), other, **kwargs) - want).max()
    assert moved > 1e-4 * np.abs(want).max()


@pytest.mark.some(2)
@pytest.mark.parametrize('encoding', ['sinusoidal', SPECS['learned']])
@pytest.mark.parametrize('scan_layers', [False, True])
def test_an_input_encoding_takes_the_first_layers_positions(
  encoding, scan_layers
):
  config = create(encoding, 2, scan_layers=scan_layers)
  given = jax.random.randint(jax.random.key(6), (2, 2, L), 0, 8)
  got = run(config, tokens(), given)
  np.testing.assert_array_equal(got, run(config, tokens(), given[0]))
  assert np.abs(got - run(config, tokens(), given[1])).max() > 1e-3


@pytest.mark.parametrize(
  'remat, scan_layers, contextual',
  [
    ('full', True, 'none'),
    pytest.param('dots', True, 'forget', marks=pytest.mark.slow),
    pytest.param('full', False, 'repo', marks=pytest.mark.slow),
  ],
)
def test_remat_changes_no_number(remat, scan_layers, contextual, assert_close):
  encoding = 'kerple_log(shared=True)'
  kwargs = {'scan_layers': scan_layers, 'contextual_positions': contextual}
  plain = create(encoding, 2, **kwargs)
  params = helpers.params_of(plain)
  want, want_gradient = loss_and_gradient(plain, params, tokens())
  config = create(encoding, 2, remat=remat, **kwargs)
  got, got_gradient = loss_and_gradient(config, params, tokens())
  assert_close(got, want, 1e-6)
  assert_same_gradients(got_gradient, want_gradient)


@pytest.mark.parametrize('scan_layers', [False, True])
def test_remat_computes_again(scan_layers):
  """The backward pass has more matrix products the more is thrown away."""

  def products(remat):
    config = create('nope', scan_layers=scan_layers, remat=remat)
    params = helpers.params_of(create('nope', scan_layers=scan_layers))
    text = str(
      jax.make_jaxpr(functools.partial(loss_and_gradient, config))(
        params, tokens()
      )
    )
    return text.count('dot_general')

  none, dots, full = (products(remat) for remat in ('none', 'dots', 'full'))
  assert none < full
  assert none <= dots < full


def test_scanning_compiles_one_block():
  def products(num_layers):
    config = create('fire', num_layers=num_layers, scan_layers=True)
    jaxpr = jax.make_jaxpr(
      lambda p: models.DecoderLM(config).apply({'params': p}, tokens())
    )(jax.eval_shape(lambda: stacking.init(config, jax.random.key(0))))
    return str(jaxpr).count('dot_general')

  assert products(2) == products(6)


def without_attention(params, i):
  """Parameters of a model whose layer i attends to nothing."""
  layer = dict(params[f'layer_{i}'])
  layer['attention'] = dict(layer['attention'])
  layer['attention']['out'] = {'kernel': jnp.zeros((H, D, E))}
  return {**params, f'layer_{i}': layer}


def test_layers_take_encodings_in_turn():
  """'rope, nope' is rope in layer 0 and none in layer 1."""
  mixed = create('rope, nope', 2)
  params = helpers.params_of(mixed)
  # Positions reach layer 0 alone: without its output they are not seen.
  index = jnp.arange(L)[None]

  def moves(params):
    near = logits(mixed, params, tokens(), index)
    far = logits(mixed, params, tokens(), index * 3)
    return float(np.abs(near - far).max())

  assert moves(params) > 1e-3
  assert moves(without_attention(params, 1)) > 1e-3
  assert moves(without_attention(params, 0)) == 0


@pytest.mark.parametrize(
  'options',
  [
    {'window': (2, None)},
    {'window': 2, 'sinks': (1, 0)},
    {'attention_scale': ('log_n(train_length=2)', 'none')},
  ],
  ids=lambda options: list(options)[-1],
)
def test_layers_take_options_in_turn(options, assert_close):
  """Each layer has its own option.

  With the other layer disabled, outputs are those of a model with that option.
  """
  field, values = list(options.items())[-1]
  params = helpers.params_of(create('alibi', 2))
  both = []
  for i, value in enumerate(values):
    alone = without_attention(params, 1 - i)
    got, want = (
      logits(create('alibi', 2, **options | {field: x}), alone, tokens())
      for x in (values, value)
    )
    assert_close(got, want)
    other = create('alibi', 2, **options | {field: values[1 - i]})
    both.append(np.abs(logits(other, alone, tokens()) - want).max())
  assert min(both) > 1e-3


@pytest.mark.parametrize(
  'name, contextual',
  [
    ('fire', 'none'),
    ('pope', 'selective'),
    pytest.param('fire', 'forget', marks=pytest.mark.slow),
    pytest.param('transformer_xl', 'forget', marks=pytest.mark.slow),
  ],
)
def test_shared_encoding_is_one_for_all_layers(name, contextual, assert_close):
  shared, separate = (
    create(spec, 2, contextual_positions=contextual)
    for spec in (f'{name}(shared=True)', name)
  )
  params = helpers.params_of(shared)
  copied = {k: v for k, v in params.items() if k != 'encoding'}
  for i in range(2):
    layer = dict(copied[f'layer_{i}'])
    layer['attention'] = {
      **layer['attention'],
      'encoding': params['encoding'],
    }
    copied[f'layer_{i}'] = layer
  want = logits(separate, copied, tokens())
  assert_close(logits(shared, params, tokens()), want, 1e-6)


def test_several_encodings_at_the_root():
  config = create('fire(shared=True), kerple_log(shared=True)', num_layers=4)
  owned = blocks.owned_encodings(config)
  assert list(owned) == ['encoding', 'encoding_1']
  assert [type(e).__name__ for e in owned.values()] == ['Fire', 'KerpleLog']
  params = helpers.params_of(config)
  assert set(params['encoding_1']) == {'p', 'a'}
  assert 'c' in params['encoding']
  for i in range(4):
    assert 'encoding' not in params[f'layer_{i}']['attention']


def test_an_input_encoding_counts_once(assert_close):
  once, twice = create('sinusoidal', 2), create('sinusoidal, sinusoidal', 2)
  params = helpers.params_of(once)
  want = logits(once, params, tokens())
  assert_close(logits(twice, params, tokens()), want, 1e-6)
  owned = blocks.owned_encodings(twice)
  assert list(owned) == ['encoding']


def test_shared_means_nothing_where_there_is_no_parameter(assert_close):
  params = helpers.params_of(create('rope'))
  want = logits(create('rope'), params, tokens())
  assert_close(logits(create('rope(shared=True)'), params, tokens()), want, 0)


@pytest.mark.parametrize('scan_layers', [False, True])
def test_dropout(scan_layers):
  config = create('rope', dropout_rate=0.5, scan_layers=scan_layers)
  model, params = models.DecoderLM(config), helpers.params_of(config)

  @jax.jit
  def drop(key):
    return model.apply(
      {'params': params},
      tokens(),
      deterministic=False,
      rngs={'dropout': jax.random.key(key)},
    )

  plain = run(config, tokens())
  assert np.abs(drop(0) - plain).max() > 1e-2
  assert np.abs(drop(0) - drop(1)).max() > 1e-2
  np.testing.assert_array_equal(drop(0), drop(0))
  with pytest.raises(flax.errors.InvalidRngError, match='dropout'):
    model.apply({'params': params}, tokens(), deterministic=False)
  # None at rate 0, and none unless asked for.
  np.testing.assert_array_equal(
    plain, run(create('rope', scan_layers=scan_layers), tokens())
  )


@pytest.mark.parametrize('scan_layers', [False, True])
def test_layers_drop_differently(scan_layers):
  """Every layer adds 1, and drops half: sums show whether all drop the same."""
  config = create(
    'nope',
    num_layers=3,
    dropout_rate=0.5,
    mlp_bias=True,
    norm='rms',
    scan_layers=scan_layers,
  )
  params = dict(helpers.params_of(config))
  params.pop('embed')

  def adds_one(path, leaf):
    names = [entry.key for entry in path]
    return jnp.full_like(leaf, names[-1] == 'scale' or names[-2:] == DOWN_BIAS)

  params = jax.tree_util.tree_map_with_path(adds_one, params)

  @jax.jit
  def drop(x):
    y, _ = blocks.Stack(config, causal=True).apply(
      {'params': params},
      x,
      Tokens.create(x.shape[:2]),
      deterministic=False,
      rngs={'dropout': jax.random.key(0)},
    )
    return y

  # The final norm scales each token: by how much does not matter.
  y = np.asarray(drop(jnp.zeros((1, 32, E))))[0]
  y = y / np.maximum(y.max(-1, keepdims=True), 1e-6)
  assert set(np.unique(np.round(y * 6))) >= {0, 2, 4, 6}


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'architecture, num_layers, placement, scale',
  [
    ('decoder', 3, 'pre', 1 / 6),
    ('decoder', 2, 'post', 1),
    ('encoder_decoder', 1, 'pre', 1 / 2),
    pytest.param('encoder_decoder', 1, 'post', 1, marks=pytest.mark.slow),
  ],
)
def test_initial_scale_of_residual_branches(
  architecture, num_layers, placement, scale
):
  """Those of a pre-norm model of N layers start smaller by 2 N."""
  config = models.ModelConfig(
    vocab_size=V,
    num_layers=num_layers,
    num_heads=4,
    head_dim=8,
    width=64,
    mlp_width=128,
    architecture=architecture,
    norm_placement=placement,
  )
  params = jax.jit(lambda: stacking.init(config, jax.random.key(0)))()
  checked = set()
  for path, leaf in jax.tree.leaves_with_path(params):
    *_, module, name, kind = ['', *(entry.key for entry in path)]
    if kind != 'kernel':
      continue
    # Numbers of heads and their dimensions, of hidden units, or the width.
    fan_in = {'out': 32, 'down': 128}.get(name, 64)
    want = scale if name in ('out', 'down') else 1
    np.testing.assert_allclose(leaf.std() * fan_in**0.5, want, rtol=0.06)
    checked.add((module, name))
  assert {('attention', 'out'), ('mlp', 'down')} <= checked
  across = ('cross_attention', 'out') in checked
  assert across == (architecture == 'encoder_decoder')


def test_lengths_are_those_of_rows_or_segments(assert_close):
  config = create('rope(dynamic=True, train_length=4)')
  inputs = tokens()
  full = jnp.full((len(inputs), 1), inputs.shape[1])
  assert_close(run(config, inputs), run(config, inputs, lengths=full))
  ids = jnp.broadcast_to(jnp.arange(inputs.shape[1]) // 5, inputs.shape)
  found = run(config, inputs, segment_ids=ids)
  assert_close(found[:, :5], run(config, inputs[:, :5]))


@pytest.mark.parametrize('scan_layers', [False, True])
def test_dynamic_rope_goes_by_each_row(scan_layers, assert_close):
  config = create('rope(dynamic=True, train_length=4)', scan_layers=scan_layers)
  lengths = jnp.array([[3], [8]])
  together = run(config, tokens(), lengths=lengths)
  for b in range(2):
    alike = run(config, tokens(), lengths=jnp.tile(lengths[b:][:1], (2, 1)))
    assert_close(together[b], alike[b], 1e-5)
  plain = logits(
    create('rope', scan_layers=scan_layers), helpers.params_of(config), tokens()
  )
  assert_close(together[:1], plain[:1], 1e-5)
  assert np.abs(together[1] - plain[1]).max() > 1e-3


def test_dynamic_rope_in_packed_rows(assert_close):
  config = create('rope(dynamic=True, train_length=4)')
  inputs = tokens(1)
  ids = jnp.array([[1] * 5 + [2] * 3])
  lengths = jnp.array([[5] * 5 + [3] * 3])
  packed = run(config, inputs, segment_ids=ids, lengths=lengths)
  for start, n in ((0, 5), (5, 3)):
    # Later tokens are not seen.
    alone = run(config, jnp.roll(inputs, -start, 1), lengths=jnp.array([[n]]))
    assert_close(packed[:, start : start + n], alone[:, :n], 1e-5)


@pytest.mark.parametrize('encoding', ['fire', 'rope', 'sinusoidal'])
def test_bfloat16(encoding, assert_close):
  config = create(encoding, dtype='bfloat16')
  params = helpers.params_of(create(encoding))
  half = logits(config, params, tokens())
  assert half.dtype == jnp.float32
  assert_close(half, logits(create(encoding), params, tokens()), 0.05)


@pytest.mark.parametrize('encoding', ['alibi', 'kerple_log', 't5'])
def test_far_positions_in_bfloat16(encoding):
  """A 16-bit model tells 20001 from 20002."""
  config = create(encoding, dtype='bfloat16')
  index = jnp.arange(L)[None]
  want = run(config, tokens(), index)
  far = run(config, tokens(), index + 20_000)
  np.testing.assert_array_equal(far, want)


@pytest.mark.parametrize('token', [V, -1])
def test_tokens_outside_the_vocabulary_are_nan(token):
  y = run(create(), tokens().at[0, 5].set(token))
  assert np.isnan(y[0, 5:]).all()
  assert np.isfinite(y[1]).all()


@pytest.mark.parametrize(
  'inputs, message',
  [
    (jnp.zeros((2, L)), r'integers \[B, L\]; got float32 \(2, 8\)'),
    (jnp.zeros(L, int), r'got int32 \(8,\)'),
    (jnp.zeros((1, 2, L), int), r'got int32 \(1, 2, 8\)'),
    (np.zeros((2, L), bool), 'got bool'),
  ],
)
@pytest.mark.parametrize(
  'architecture', ['decoder', 'encoder', 'encoder_decoder']
)
def test_refuses_what_are_no_tokens(architecture, inputs, message):
  model = models.create(create(architecture=architecture))
  both = architecture == 'encoder_decoder'
  with pytest.raises(errors.ConfigError, match=message):
    model.apply({}, *(inputs,) * (1 + both))
  if both:
    with pytest.raises(errors.ConfigError, match=message):
      model.apply({}, inputs, method='encode')


@pytest.mark.parametrize(
  'given, message',
  [
    ({'positions': jnp.zeros((2, 3), int)}, r'positions: got \(2, 3\)'),
    ({'positions': jnp.zeros((3, L), int)}, 'require 1 or 2 rows of 8'),
    ({'positions': jnp.zeros((3, 2, L), int)}, '3 layers, the model has 2'),
    ({'positions': jnp.zeros((1, 2, L), int)}, 'as positions.Parts'),
    ({'targets': tokens()[:, -1:]}, r'targets have shape \(2, 1\)'),
    ({'targets': tokens()[:1]}, r'targets have shape \(1, 8\)'),
    ({'targets': tokens() / 2}, 'targets must be token ids'),
    ({'targets': [[1]]}, 'targets must be an array of token ids'),
    ({'lengths': jnp.array([L, L])}, r'lengths: got \(2,\)'),
    ({'segment_ids': jnp.ones((1, L), int)}, r'segment_ids: got \(1, 8\)'),
  ],
)
def test_refuses_what_does_not_go_with_the_tokens(given, message):
  config = create('alibi', 2)
  with pytest.raises(errors.ConfigError, match=message):
    run(config, tokens(), **given)


@pytest.mark.parametrize(
  'kwargs, inputs, new_lengths, message',
  [
    ({}, tokens(3, 1), None, r'shape \(3, 1\); the cache has 2 rows'),
    ({}, tokens(2, 0), None, 'at least one token'),
    ({}, tokens(2, 1) / 2, None, 'must be token ids'),
    ({'num_layers': 3}, tokens(2, 1), None, 'the cache does not fit the model'),
    ({'key_heads': 1}, tokens(2, 1), None, 'does not fit the model'),
    ({}, tokens(2, 3), jnp.array([1]), r'integers, shape \(2,\)'),
    ({}, tokens(2, 3), 2, r'integers, shape \(2,\)'),
    (
      {},
      tokens(2, 3),
      np.array([0, 4]),
      'between 0 and 4; they must be between 0 and 3',
    ),
    ({}, tokens(2, 3), np.array([-1, 3]), 'between -1 and 3'),
    ({}, tokens(2, 3), np.array([1.0, 2.5]), 'must be integers'),
    ({}, [[1], [2]], None, 'an array of token ids, got list'),
  ],
)
def test_decoding_refuses(kwargs, inputs, new_lengths, message):
  cache = cache_lib.create(create(**kwargs), 2, L)
  with pytest.raises(errors.ConfigError, match=message):
    models.DecoderLM(create()).apply(
      {}, inputs, cache, new_lengths=new_lengths, method='decode'
    )


def test_a_cache_of_other_heads_is_of_another_model():
  other = dataclasses.replace(create(), head_dim=4)
  with pytest.raises(errors.ConfigError, match='does not fit the model'):
    models.DecoderLM(create()).apply(
      {}, tokens(2, 1), cache_lib.create(other, 2, L), method='decode'
    )


def test_a_spec_is_no_positions():
  with pytest.raises(
    errors.ConfigError, match="'randomized' is a scheme or its spec"
  ):
    models.DecoderLM(create()).init(jax.random.key(0), tokens(), 'randomized')


@pytest.mark.parametrize('encoding', ['fier', 'rope, fire(mlp=3)'])
def test_refuses_unknown_specs(encoding):
  with pytest.raises(errors.SpecError, match='unknown'):
    models.DecoderLM(create(encoding)).init(jax.random.key(0), tokens())


def test_an_encoding_of_ones_own():
  class Mine(encodings.Encoding):
    translation_invariant = True

    def tile_params(self):
      return {'zero': (jnp.zeros(self.num_heads), ('heads',))}

    @nn.nowrap
    def strip(self, params, distances, *, bidirectional=False):
      return jnp.broadcast_to(
        params['zero'].reshape((-1,) + (1,) * distances.ndim),
        (params['zero'].size, *distances.shape),
      )

  try:
    encodings.register('mine', Mine)
    got = run(create('mine'), tokens())
    np.testing.assert_array_equal(
      got, logits(create('nope'), helpers.params_of(create('mine')), tokens())
    )
  finally:
    encodings.ENCODINGS.pop('mine')


def test_a_window_hides_what_is_far():
  config = create('alibi', num_layers=1, window=3, sinks=1)
  inputs = tokens()
  other = inputs.at[:, 2].set((inputs[:, 2] + 1) % 7)
  before, after = (run(config, x) for x in (inputs, other))
  moved = np.abs(np.asarray(before - after)).max((0, 2)) > 0
  assert moved.tolist() == [2 <= t < 5 for t in range(inputs.shape[1])]
  sink = inputs.at[:, 0].set((inputs[:, 0] + 1) % 7)
  assert (np.abs(np.asarray(before - run(config, sink))).max((0, 2)) > 0).all()


def test_key_heads_are_read_by_groups(assert_close):
  """As heads of their own that are alike."""
  grouped = create('rope', num_layers=1, key_heads=1)
  params = helpers.params_of(grouped)
  whole = dict(params['layer_0']['attention'])
  for name in ('key', 'value'):
    kernel = whole[name]['kernel']
    assert kernel.shape[1] == 1
    heads = grouped.num_heads
    whole[name] = {'kernel': jnp.repeat(kernel, heads, axis=1)}
  same = {**params, 'layer_0': {**params['layer_0'], 'attention': whole}}
  got, want = (
    logits(create('rope', num_layers=1, key_heads=g), p, tokens())
    for g, p in ((1, params), (None, same))
  )
  assert_close(got, want)


def test_an_output_head_of_ones_own(assert_close):
  config = create('alibi', output_size=5)
  params = helpers.params_of(config)
  assert params['head']['output']['kernel'].shape[1] == 5
  y = logits(config, params, tokens())
  assert y.shape == (*tokens().shape, 5)
  targets = tokens() % 5
  losses = logits(config, params, tokens(), targets=targets)
  want = -np.take_along_axis(
    np.asarray(jax.nn.log_softmax(y)), np.asarray(targets)[..., None], -1
  )[..., 0]
  assert_close(losses, want)
  # Also of a model in bfloat16, logits are float32, and may be bounded.
  low = create('alibi', output_size=5, dtype='bfloat16', output_logit_cap=0.5)
  capped = logits(low, params, tokens())
  assert np.abs(capped).max() <= 0.5
  assert_close(capped, 0.5 * np.tanh(y / 0.5), 0.05)
  assert len(np.unique(capped)) > 0.9 * capped.size


@pytest.mark.some(5)
@pytest.mark.parametrize(
  'fields',
  [
    {'attention_chunk': (3, None), 'query_key_norm': ('unscaled', None)},
    {'parallel_residual': True, 'attention_bias': 'all', 'mlp_bias': True},
    {'norm': 'rms_zero_centered', 'norm_placement': 'both'},
    {'norm': 'rms', 'norm_placement': 'output', 'query_key_norm': 'all'},
    {
      'num_experts': 3,
      'experts_per_token': 2,
      'activation': 'swiglu_clipped',
      'output_logit_cap': 2.0,
    },
  ],
  ids=lambda fields: next(iter(fields)),
)
def test_options_of_other_families(fields, assert_close):
  """Scanned, packed and decoded, they are the same model."""
  config = create('rope, nope', num_layers=4, **fields)
  params, inputs = helpers.params_of(config), tokens()
  want = run(config, inputs)
  scanned = dataclasses.replace(
    config, scan_layers=True, remat='full', implementation='blockwise'
  )
  got = logits(scanned, stacking.stack(params, config), inputs)
  assert_close(got, want)
  ids = jnp.broadcast_to(jnp.arange(L) // 5, inputs.shape)
  packed = run(config, inputs, segment_ids=ids)
  assert_close(packed[:, 5:10], run(config, inputs[:, 5:10]))
  cache = cache_lib.create(config, *inputs.shape)
  decode = functools.partial(
    models.DecoderLM(config).apply, {'params': params}, method='decode'
  )
  first, cache = jax.jit(decode)(inputs[:, :5], cache)
  second, _ = jax.jit(decode)(inputs[:, 5:], cache)
  assert_close(jnp.concatenate([first, second], 1), want)


def test_embedded_tokens_are_dropped():
  config = helpers.tiny_model(dropout_rate=0.5, num_layers=1, norm='rms')
  params = jax.tree_util.tree_map_with_path(
    lambda path, leaf: jnp.full(leaf.shape, float(path[-1].key == 'scale')),
    helpers.params_of(config),
  )
  params.pop('embed')
  # Branches return 0.
  y, _ = blocks.Stack(config, causal=True).apply(
    {'params': params},
    jnp.ones((1, 6, config.width)),
    Tokens.create((1, 6)),
    deterministic=False,
    rngs={'dropout': jax.random.key(0)},
  )
  assert 0.2 < (np.asarray(y) == 0).mean() < 0.8


def calls(config, *inputs, **options):
  """Modules that are called by a model, and arguments of their calls."""
  found = []

  def look(function, args, kwargs, context):
    if context.method_name == '__call__':
      found.append((context.module, kwargs))
    return function(*args, **kwargs)

  rngs = {'params': jax.random.key(0), 'dropout': jax.random.key(1)}
  with nn.intercept_methods(look):
    jax.eval_shape(lambda: models.create(config).init(rngs, *inputs, **options))
  return found


def test_both_stacks_of_an_encoder_decoder_drop():
  config = helpers.tiny_model(
    architecture='encoder_decoder', dropout_rate=0.5, num_layers=1
  )
  tokens = jnp.zeros((1, 4), int)
  found = [
    named['deterministic']
    for module, named in calls(config, tokens, tokens, deterministic=False)
    if isinstance(module, blocks.Stack)
  ]
  assert found == [False, False]


def test_norms_of_queries_have_the_epsilon_of_the_model():
  config = helpers.tiny_model(query_key_norm='head', norm_epsilon=0.25)
  found = {
    module.name: module.epsilon
    for module, _ in calls(config, jnp.zeros((1, 4), int))
    if module.name in ('query_norm', 'key_norm')
  }
  assert found == {'query_norm': 0.25, 'key_norm': 0.25}


def test_the_logits_of_an_untied_head_are_bounded():
  config = helpers.tiny_model(tied_embedding=False, output_logit_cap=0.5)
  y = models.DecoderLM(config).apply(
    {'params': helpers.params_of(config)},
    10 * jnp.ones((1, 2, config.width)),
    method='logits',
  )
  assert 0.4 < np.abs(y).max() <= 0.5


@pytest.mark.parametrize(
  'fields', [{'implementation': 'pallas'}, {'bias_form': 'anchored'}]
)
def test_decoding_is_exact_and_without_kernels(fields):
  config = helpers.tiny_model(encoding='fire', num_layers=1, **fields)
  cache = cache_lib.create(config, 2, 8)
  jax.eval_shape(
    lambda params: models.DecoderLM(config).apply(
      {'params': params}, jnp.zeros((2, 1), int), cache, method='decode'
    ),
    helpers.params_of(config),
  )


def test_all_new_tokens_may_be_real():
  config = helpers.tiny_model()
  cache = cache_lib.create(config, 2, 8)
  inputs = np.zeros((2, 3), np.int32)
  transformer._check_decoding(config, inputs, cache, np.array([0, 3]))
  with pytest.raises(errors.LengenError):
    transformer._check_decoding(config, inputs, cache, np.array([0, 4]))
