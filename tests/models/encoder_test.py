"""Tests Encoder and EncoderDecoder of `lengen_jax/models/transformer.py`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import models
from lengen_jax.models import stacking
from tests import helpers

KEY = jax.random.key(0)


def create(encoding='nope', architecture='encoder', num_layers=1, **kwargs):
  return helpers.tiny_model(
    encoding=encoding,
    architecture=architecture,
    num_layers=num_layers,
    **kwargs,
  )


def tokens(length=6, key=1):
  return jax.random.randint(jax.random.key(key), (2, length), 0, 256)


def run(config, *inputs, params=None, **kwargs):
  params = helpers.params_of(config) if params is None else params
  return apply(config, params, *inputs, **kwargs)


def initial(config):
  return jax.jit(lambda: stacking.init(config, KEY))()


@functools.partial(jax.jit, static_argnums=0)
def apply(config, params, *inputs, **kwargs):
  return models.create(config).apply({'params': params}, *inputs, **kwargs)


def paths(config):
  return helpers.shapes(jax.eval_shape(lambda: stacking.init(config, KEY)))


def test_create_follows_the_architecture():
  for architecture, cls in (
    ('decoder', models.DecoderLM),
    ('encoder', models.Encoder),
    ('encoder_decoder', models.EncoderDecoder),
  ):
    assert type(models.create(create(architecture=architecture))) is cls


def test_an_encoder_has_the_parameters_of_a_decoder():
  for encoding in ('fire', 't5(shared=True)', 'learned(max_position=9)'):
    encoder = paths(create(encoding))
    assert encoder == paths(create(encoding, architecture='decoder'))


@pytest.mark.parametrize('architecture', ['encoder', 'decoder'])
def test_an_encoder_sees_later_tokens(architecture):
  config = create('alibi', architecture)
  inputs = tokens()
  moved = np.abs(run(config, inputs) - run(config, inputs.at[:, 5].set(0))).max(
    -1
  )
  assert (moved[:, :5] > 1e-6).all() == (architecture == 'encoder')
  assert (moved[:, 5] > 1e-6).all()


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'encoding, tells',
  [
    ('alibi', False),
    ('alibi(official_compat=True)', True),
    ('kerple_log', False),
    ('fire(sign=True)', True),
    ('t5', True),
    ('rope', True),
    ('sandwich', False),
    ('shaw', True),
    ('transformer_xl', True),
    ('nope', False),
  ],
)
def test_direction(encoding, tells):
  """An encoder told of |i - j| only cannot tell a sequence from its mirror."""
  config = create(encoding)
  inputs = tokens()
  mirrored = run(config, inputs[:, ::-1])[:, ::-1]
  differs = np.abs(run(config, inputs) - mirrored).max()
  assert (differs > 1e-4) == tells, differs


def test_fire_bidirectional_normalises_by_the_later_of_the_two():
  """Mirrored inputs change FIRE beyond the threshold, by its normaliser."""
  for threshold, tells in ((64.0, False), (2.0, True)):
    config = create(f'fire(init_threshold={threshold})')
    inputs = tokens()
    mirrored = run(config, inputs[:, ::-1])[:, ::-1]
    differs = np.abs(run(config, inputs) - mirrored).max()
    assert (differs > 1e-4) == tells, differs


@pytest.mark.parametrize('encoding', ['fire', 'rope', 't5(shared=True)'])
def test_padding_is_not_seen(encoding, assert_close):
  config = create(encoding)
  inputs = tokens()
  ids = jnp.array([[1] * 6 + [0] * 3] * 2)
  lengths = jnp.full((2, 1), 6)
  padded = jnp.pad(inputs, ((0, 0), (0, 3)), constant_values=7)
  got = run(config, padded, segment_ids=ids, lengths=lengths)
  assert_close(got[:, :6], run(config, inputs, lengths=lengths), 1e-5)


@pytest.mark.some(2)
@pytest.mark.parametrize('scan_layers', [False, True])
@pytest.mark.parametrize(
  'kwargs',
  [
    {},
    {'norm_placement': 'post'},
    {'norm': 'rms', 'scaled_logits': False, 'activation': 'relu'},
    {'mlp_bias': True},
  ],
)
def test_forms_differ_and_scan(kwargs, scan_layers, assert_close):
  plain = create('alibi')
  config = create('alibi', scan_layers=scan_layers, **kwargs)
  y = run(config, tokens())
  assert np.isfinite(y).all()
  assert_close(y, run(create('alibi', **kwargs), tokens()), 1e-5)
  if kwargs and 'mlp_bias' not in kwargs:
    assert np.abs(y - run(plain, tokens())).max() > 1e-3


def test_post_norm_ends_in_a_norm_and_has_no_other():
  post, pre = paths(create(norm_placement='post')), paths(create())
  assert set(pre) - set(post) == {'final_norm/scale', 'final_norm/bias'}
  config = create(norm_placement='post')
  params = jax.tree.map(jnp.asarray, helpers.params_of(config))
  zero = jax.tree.map(jnp.zeros_like, params['layer_0']['mlp_norm'])
  params['layer_0']['mlp_norm'] = zero
  np.testing.assert_array_equal(run(config, tokens(), params=params), 0)


def test_parameters_of_the_forms():
  biased = paths(create(mlp_bias=True))
  assert biased['layer_0/mlp/up/bias'] == (64,)
  assert biased['layer_0/mlp/down/bias'] == (32,)
  rms = paths(create(norm='rms'))
  assert 'layer_0/mlp_norm/scale' in rms
  assert 'layer_0/mlp_norm/bias' not in rms


def test_biases_of_the_mlp_are_added(assert_close):
  config = create(mlp_bias=True)
  params = initial(config)
  plain = run(create(), tokens(), params=params)
  assert_close(run(config, tokens(), params=params), plain, 1e-6)
  params['layer_0']['mlp']['up']['bias'] += 1.0
  assert np.abs(run(config, tokens(), params=params) - plain).max() > 1e-3


def test_unscaled_logits_start_alike(assert_close):
  """Queries start smaller by what the logits are not divided by."""
  config = create(scaled_logits=False)
  params, scaled = initial(config), initial(create())
  assert_close(
    run(config, tokens(), params=params), run(create(), tokens(), params=scaled)
  )
  assert_close(
    params['layer_0']['attention']['query']['kernel'],
    scaled['layer_0']['attention']['query']['kernel'] / 4,
    1e-6,
  )


def test_parameters_of_an_encoder_decoder():
  got = paths(create('t5(shared=True), kerple_log', 'encoder_decoder', 2))
  sides = {path.split('/')[0] for path in got}
  assert sides == {'embed', 'encoder', 'decoder'}
  one = paths(create('t5(shared=True), kerple_log', num_layers=2))
  one.pop('embed/table')
  for side in ('encoder', 'decoder'):
    own = {
      path.split('/', 1)[1]: shape
      for path, shape in got.items()
      if path.startswith(side) and 'cross_attention' not in path
    }
    assert own == one
  cross = [path for path in got if 'cross_attention' in path]
  assert len(cross) == 2 * 6 and all(p.startswith('decoder/') for p in cross)
  assert not any('encoding' in path for path in cross)


@pytest.mark.parametrize(
  'scan_layers', [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_what_a_decoder_sees(scan_layers):
  config = create('alibi', 'encoder_decoder', scan_layers=scan_layers)
  inputs, source = tokens(), tokens(5, key=2)
  want = run(config, inputs, source)
  later = run(config, inputs.at[:, 3].set(0), source)
  reach = np.abs(later - want).max(-1)
  assert (reach[:, :3] == 0).all() and (reach[:, 3:] > 1e-6).all()
  told = run(config, inputs, source.at[:, 4].set(0))
  assert (np.abs(told - want).max(-1) > 1e-6).all()


def test_packed_pairs_equal_separate_ones(assert_close):
  config = create('fire', 'encoder_decoder')
  inputs, source = tokens()[:1], tokens(7, key=2)[:1]
  got = run(
    config,
    inputs,
    source,
    segment_ids=jnp.array([[1] * 2 + [2] * 4]),
    encoder_segment_ids=jnp.array([[1] * 4 + [2] * 3]),
  )
  for part, source_part in (
    (slice(0, 2), slice(0, 4)),
    (slice(2, 6), slice(4, 7)),
  ):
    alone = run(config, inputs[:, part], source[:, source_part])
    assert_close(got[:, part], alone, 1e-5)


def test_cross_attention_has_no_positions(assert_close):
  """Shuffling what the encoder gave changes nothing without an encoding."""
  config = create('nope', 'encoder_decoder')
  inputs, source = tokens(), tokens(5, key=2)
  shuffled = source[:, jnp.array([3, 0, 4, 1, 2])]
  assert_close(run(config, inputs, shuffled), run(config, inputs, source), 1e-5)


def test_positions_of_both_sides(assert_close):
  config = create('sinusoidal', 'encoder_decoder')
  inputs, source = tokens(), tokens(5, key=2)
  standard = [jnp.arange(n)[None] for n in (6, 5)]
  want = run(config, inputs, source)
  assert_close(run(config, inputs, source, *standard), want, 1e-6)
  for side in range(2):
    moved = [p + 9 * (n == side) for n, p in enumerate(standard)]
    assert np.abs(run(config, inputs, source, *moved) - want).max() > 1e-4


@pytest.mark.parametrize('scan_layers', [False, True])
def test_a_shared_encoding_is_told_the_direction(scan_layers, assert_close):
  """It equals one per layer, and tells later tokens from earlier ones."""
  shared = create('t5(shared=True)', num_layers=2, scan_layers=scan_layers)
  params = dict(helpers.params_of(create('t5(shared=True)', num_layers=2)))
  table = jax.random.normal(
    jax.random.key(4), params['encoding']['table'].shape
  )
  params['encoding'] = {'table': table}
  separate = {k: v for k, v in params.items() if k != 'encoding'}
  for i in range(2):
    layer = dict(separate[f'layer_{i}'])
    layer['attention'] = {**layer['attention'], 'encoding': {'table': table}}
    separate[f'layer_{i}'] = layer
  want = run(create('t5', num_layers=2), tokens(), params=separate)
  if scan_layers:
    params = stacking.stack(params, shared)
  assert_close(run(shared, tokens(), params=params), want, 1e-5)
  mirrored = run(shared, tokens()[:, ::-1], params=params)[:, ::-1]
  assert np.abs(mirrored - want).max() > 1e-2 * np.abs(want).max()


@pytest.mark.parametrize(
  'attention_scale',
  [
    'ssmax',
    'log_n(train_length=2)',
    pytest.param('llama4(train_length=2, beta=1.)', marks=pytest.mark.slow),
  ],
)
def test_logit_scales_go_by_segments(attention_scale, assert_close):
  """Both directions are seen: what counts is the length of a segment."""
  config = create(attention_scale=attention_scale)
  config = dataclasses.replace(config, num_layers=1)
  # Small embeddings leave attention nearly uniform, whatever its scale.
  params = jax.tree.map(lambda x: 3 * x, helpers.params_of(config))
  inputs = tokens(8)[:1]
  ids = jnp.array([[1] * 3 + [2] * 5])
  packed = run(config, inputs, segment_ids=ids, params=params)
  for part in (slice(0, 3), slice(3, 8)):
    alone = run(config, inputs[:, part], params=params)
    assert_close(packed[:, part], alone, 1e-5)


@pytest.mark.parametrize(
  'architecture, attention_scale',
  [
    ('encoder', 'ssmax'),
    ('encoder', "log_n(train_length=4, per='sequence', clip=False)"),
    ('decoder', "log_n(train_length=4, per='sequence', clip=False)"),
  ],
)
def test_padding_may_be_of_length_0(
  architecture, attention_scale, assert_close
):
  """Real tokens are as without padding, and gradients are finite."""
  config = create('alibi', architecture, attention_scale=attention_scale)
  params = helpers.params_of(config)
  inputs = tokens()
  lengths = jnp.full((2, 6), 6)
  padded, ids, padded_lengths = (
    jnp.pad(x, ((0, 0), (0, 3)))
    for x in (inputs, jnp.ones_like(inputs), lengths)
  )

  @jax.jit
  def gradient(params):
    def total(params):
      y = apply(
        config, params, padded, segment_ids=ids, lengths=padded_lengths
      )[:, :6]
      return jnp.mean(jnp.sin(y)), y

    return jax.grad(total, has_aux=True)(params)

  gradients, got = gradient(params)
  assert_close(got, run(config, inputs, lengths=lengths), 1e-5)
  for leaf in jax.tree.leaves(gradients):
    assert np.isfinite(leaf).all()
