"""Tests `lengen_jax/evaluation/attention_weights.py`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import data, encodings, models, positions
from lengen_jax.data import vocabulary
from lengen_jax.data import windows as data_windows
from lengen_jax.evaluation import attention_weights
from lengen_jax.evaluation import config as eval_config
from lengen_jax.models import presets, stacking
from tests import helpers

L = 12
STANDARD = positions.create('standard')
PACKED = np.array([[1] * 5 + [2] * 4 + [0] * 3, [3] * 2 + [4] * 10], np.int32)


def create(**fields):
  return models.ModelConfig(**{**presets.get('tiny'), **fields})


def batch(length=L, rows=2):
  tokens = np.random.default_rng(1).integers(0, 256, (rows, length + 1))
  return data_windows.lm_batch(tokens)


def packed_batch():
  index = np.asarray(positions.segment_positions(jnp.asarray(PACKED)))
  lengths = np.asarray(positions.segment_lengths(jnp.asarray(PACKED)))
  return {
    **batch(),
    'segment_ids': PACKED,
    'segment_positions': index,
    'lengths': lengths,
  }


def weights_of(config, scheme, params, batch, layer, **kwargs):
  found = attention_weights.by_layer(
    config,
    scheme,
    params,
    batch,
    attention_weights.Attended.weights,
    **kwargs,
  )
  return found[layer]


def real(config, params, inputs, layer, **given):
  """Values, output kernel and output of a layer of the model itself."""

  @jax.jit
  def run(params):
    _, found = models.create(config).apply(
      {'params': params},
      inputs,
      capture_intermediates=True,
      mutable=['intermediates'],
      **given,
    )
    return found['intermediates'][layer]['attention']

  heard = run(params)
  kernel = params[layer]['attention']['out']['kernel']
  return heard['value']['__call__'][0], kernel, heard['__call__'][0]


def output(weights, values, kernel, extra=0.0):
  """What attention makes of its values by given weights."""
  values = np.repeat(values, weights.shape[1] // values.shape[2], axis=2)
  y_BxQxHxD = np.einsum('bhqk,bkhd->bqhd', weights, values) + extra
  return np.einsum('bqhd,hde->bqe', y_BxQxHxD, kernel)


@pytest.mark.parametrize(
  'encoding, fields',
  [
    ('rope,t5', {'architecture': 'encoder', 'window': 4, 'key_heads': 1}),
    ('transformer_xl', {'attention_scale': 'ssmax', 'scaled_logits': False}),
    pytest.param(
      'rope,kerple_log', {'window': 4, 'sinks': 1}, marks=pytest.mark.slow
    ),
    (
      'rope, dual_chunk(chunk=4, window=1)',
      {'key_heads': 1, 'contextual_positions': 'none, repo'},
    ),
    ('fire(shared=True)', {'attention_scale': 'log_n(train_length=4)'}),
    (
      'nope, pope',
      {
        'contextual_positions': 'selective',
        'logit_cap': 2.0,
        'query_key_norm': 'head',
        'bias_form': 'auto',
      },
    ),
  ],
)
def test_weights_make_the_layers_output(encoding, fields, assert_close):
  config = create(encoding=encoding, **fields)
  params, layer = helpers.initial(config), 'layer_1'
  values, kernel, want = real(config, params, batch()['inputs'], layer)
  got = weights_of(config, STANDARD, params, batch(), layer)
  assert got.dtype == jnp.float32 and got.shape == (2, 2, L, L)
  np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)
  if config.architecture == 'decoder':
    assert (got == np.tril(got)).all()
  # Far from even, or all encodings would pass.
  assert np.ptp(got[:, :, -1], axis=-1).min() > 0.02
  assert_close(output(got, values, kernel), want)


def test_pairs_in_no_band_are_not_visible():
  config = create(encoding='lm_infinite(window=3, sinks=1)')
  params = helpers.initial(config)

  def both(attended):
    return attended.weights() > 0, attended.visible()

  seen, visible = attention_weights.by_layer(
    config, STANDARD, params, batch(), both
  )['layer_0']
  np.testing.assert_array_equal(visible, seen[:, 0])
  assert visible[0, -1].sum() == 4


def test_what_contents_add_to_values_is_no_weight(assert_close):
  """Shaw's sums over keys come on top of the weighted values."""
  config = create(encoding='shaw(left=3, right=3)', architecture='encoder')
  params, layer = helpers.initial(config), 'layer_1'
  values, kernel, want = real(config, params, batch()['inputs'], layer)
  got = weights_of(config, STANDARD, params, batch(), layer)
  np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)
  shaw = encodings.create('shaw(left=3, right=3)', num_heads=2, head_dim=16)
  extra = jax.jit(functools.partial(shaw.apply, method='content_values'))(
    {'params': params[layer]['attention']['encoding']},
    got,
    np.arange(L),
    np.arange(L),
  )
  assert np.abs(extra).max() > 0.01
  assert_close(output(got, values, kernel, extra), want)


@pytest.mark.one_jax
def test_packed_rows(assert_close):
  config = create(
    encoding='fire',
    architecture='encoder',
    attention_scale="log_n(train_length=2, per='sequence')",
  )
  given = packed_batch()
  params, layer = helpers.initial(config), 'layer_0'
  values, kernel, want = real(
    config,
    params,
    given['inputs'],
    layer,
    segment_ids=given['segment_ids'],
    lengths=given['lengths'],
  )
  got = weights_of(config, STANDARD, params, given, layer, packed=True)
  apart = PACKED[:, None, :, None] != PACKED[:, None, None]
  assert (np.where(apart, got, 0) == 0).all()
  np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)
  assert_close(output(got, values, kernel), want)


@pytest.mark.parametrize(
  'encoding, scheme',
  [
    ('alibi', "randomized(max_position=64, mode='distances')"),
    ('rope', "randomized(max_position=64, draw='layer')"),
  ],
)
def test_positions_are_the_schemes(encoding, scheme, assert_close):
  config, scheme = create(encoding=encoding), positions.create(scheme)
  params, given, rng = helpers.initial(config), batch(), jax.random.key(7)
  drawn = jax.jit(functools.partial(scheme, num_layers=2))(
    given['segment_positions'], lengths=given['lengths'], rng=rng
  )
  values, kernel, want = real(
    config, params, given['inputs'], 'layer_1', positions=drawn
  )
  got = weights_of(config, scheme, params, given, 'layer_1', rng=rng)
  assert_close(output(got, values, kernel), want)


def test_scanned_layers_and_bfloat16():
  config = create(encoding='rope,fire', num_layers=4, dtype='bfloat16')
  params = helpers.initial(config)
  scanned = dataclasses.replace(config, scan_layers=True, remat='full')
  of_scanned = attention_weights.by_layer(
    scanned,
    STANDARD,
    jax.jit(stacking.stack, static_argnums=1)(params, scanned),
    batch(),
    attention_weights.Attended.weights,
  )
  assert list(of_scanned) == [f'layer_{i}' for i in range(4)]
  want = weights_of(config, STANDARD, params, batch(), 'layer_3')
  np.testing.assert_array_equal(of_scanned['layer_3'], want)
  # Not rounded to 16 bits.
  assert want.dtype == jnp.float32
  assert (want != want.astype(jnp.bfloat16)).mean() > 0.4
  np.testing.assert_allclose(want.sum(-1), 1, rtol=1e-5)


@pytest.mark.one_jax
def test_encoder_and_decoder_have_names_of_their_own():
  config = create(encoding='alibi', architecture='encoder_decoder')
  given = data_windows.pair_batch(
    batch()['inputs'][:, :7], batch()['targets'][:, :5]
  )
  params = helpers.initial(config)
  found = attention_weights.by_layer(
    config, STANDARD, params, given, attention_weights.Attended.weights
  )
  assert {name: weights.shape for name, weights in found.items()} == {
    'encoder/layer_0': (2, 2, 7, 7),
    'encoder/layer_1': (2, 2, 7, 7),
    'decoder/layer_0': (2, 2, 5, 5),
    'decoder/layer_1': (2, 2, 5, 5),
  }


@pytest.fixture(scope='module')
def windows():
  text = np.random.default_rng(0).integers(0, 256, 32 * 4 + 1)
  corpus = data.Corpus({'validation': [text]}, vocabulary.Bytes(offset=0), {})
  return corpus.evaluation(
    eval_config.EvalConfig((8, 16, 32), batch_tokens=64, windows=4)
  )


def entropies(windows, lengths=None, params=None, **fields):
  config = create(**fields)
  found = attention_weights.entropy(
    config,
    STANDARD,
    helpers.initial(config) if params is None else params,
    windows,
    seed=0,
    lengths=lengths,
  )
  return list(found)


@pytest.mark.one_jax
@pytest.mark.parametrize('architecture', ['encoder', 'decoder'])
def test_entropy_of_even_attention(windows, architecture):
  """Without logits, ln of the number of keys that each query sees."""
  params = jax.tree.map(
    np.zeros_like, helpers.initial(create(architecture=architecture))
  )
  for one in entropies(
    windows, [8, 16], params=params, architecture=architecture
  ):
    keys = np.arange(1, one.length + 1)
    if architecture == 'encoder':
      keys[:] = one.length
    for layer in ('layer_0', 'layer_1'):
      assert one.nats[layer] == pytest.approx(np.log(keys).mean(), rel=1e-4)
      assert one.relative[layer] == pytest.approx(1, rel=1e-4)


def test_entropy_beside_a_sink_is_that_of_the_keys(windows):
  config = create(sink_logits=True)
  params = jax.tree.map(np.zeros_like, helpers.initial(config))
  for one in entropies(windows, [8, 16], params=params, sink_logits=True):
    assert one.relative['layer_0'] == pytest.approx(1, rel=1e-4)


def test_entropy_where_each_query_sees_one_key(windows):
  one, *_ = entropies(windows, [8], window=(1, None))
  assert one.nats['layer_0'] == 0 and one.relative['layer_0'] is None
  assert 0 < one.relative['layer_1'] < 1


def test_entropy_is_that_of_the_weights(windows, monkeypatch):
  config = create(encoding='alibi')
  want = weights_of(
    config, STANDARD, helpers.initial(config), windows.batch(16), 'layer_1'
  )
  nats = -np.where(want > 0, want * np.log(np.maximum(want, 1e-30)), 0).sum(-1)
  relative = nats[:, :, 1:] / np.log(np.arange(2, 17))
  for most_pairs in (2**22, 3 * 16**2):
    # The second leaves a last batch with rows to fill.
    monkeypatch.setattr(attention_weights, 'MOST_PAIRS', most_pairs)
    (one,) = entropies(windows, [16], encoding='alibi')
    assert one.length == 16
    assert one.nats['layer_1'] == pytest.approx(nats.mean(), rel=1e-4)
    assert one.relative['layer_1'] == pytest.approx(relative.mean(), rel=1e-4)


def test_an_encoder_reads_the_same_masked_text_at_every_length(
  windows, monkeypatch
):
  read = {}

  def by_layer(config, scheme, params, batch, *args, **kwargs):
    assert (batch['weights'] == 1).all()
    read[batch['inputs'].shape[1]] = batch['inputs']
    return {}

  monkeypatch.setattr(attention_weights, 'by_layer', by_layer)
  entropies(windows, architecture='encoder', vocab_size=257)
  assert list(read) == [8, 16, 32]
  tokens = windows.scored
  assert 0.02 < (read[32] != tokens).mean() < 0.4
  assert (read[32] == 256).any()
  for length in (8, 16):
    np.testing.assert_array_equal(read[length], windows.recut(read[32], length))


@pytest.mark.one_jax
def test_log_n_keeps_entropy_lower_beyond_the_training_length(windows):
  plain = entropies(windows)
  scaled = entropies(windows, attention_scale='log_n(train_length=8)')
  # Up to the training length nothing changes.
  assert scaled[0] == plain[0]
  for one, other in zip(plain[1:], scaled[1:], strict=True):
    assert other.nats['layer_0'] < one.nats['layer_0']
    assert other.relative['layer_0'] < one.relative['layer_0']


def test_a_length_beyond_an_encodings_table_is_refused(windows):
  found = entropies(windows, encoding='learned(max_position=20)')
  assert [bool(one.refused) for one in found] == [False, False, True]
  assert found[2].nats == {} and 'max_position=32' in found[2].refused


def test_layers_are_in_the_order_in_which_they_run():
  config = create(encoding='nope', num_layers=11)
  found = attention_weights.by_layer(
    config,
    STANDARD,
    helpers.initial(config),
    batch(),
    lambda attended: attended.q,
  )
  assert [*found] == [f'layer_{i}' for i in range(11)]


def test_positions_are_those_of_test_time():
  """`shape` shifts positions only in training."""
  config = create(encoding='sinusoidal')
  params = helpers.initial(config)
  shape = positions.create('shape(max_shift=32)')
  got, want = (
    weights_of(config, scheme, params, batch(), 'layer_1')
    for scheme in (shape, STANDARD)
  )
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_sinks_are_visible_beyond_the_window():
  config = create(window=3, sinks=1)

  def both(attended):
    return attended.weights() > 0, attended.visible()

  params = helpers.initial(config)
  found = attention_weights.by_layer(config, STANDARD, params, batch(), both)
  seen, visible = found['layer_0']
  np.testing.assert_array_equal(visible, seen[:, 0])
  assert visible[0, -1].sum() == 4
