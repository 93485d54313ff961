"""Tests `lengen_jax/evaluation/bias_maps.py`."""

import functools
import json

import jax
import numpy as np
import pytest

from lengen_jax import encodings, errors
from lengen_jax.encodings import alibi
from lengen_jax.evaluation import bias_maps
from lengen_jax.models import presets, stacking
from lengen_jax.models.config import ModelConfig
from tests import helpers

FIRE = 'fire(init_threshold=16., mlp_width=4)'


def model(encoding, **fields):
  """A config and random parameters."""
  config = ModelConfig(**presets.get('tiny') | fields, encoding=encoding)
  return config, helpers.initial(config)


def params_of(params, layer):
  """FIRE's parameters in a layer of a scanned model of one encoding."""
  stacked = params['layers']['block_0']['attention']['encoding']
  return jax.tree.map(lambda leaf: leaf[layer], stacked)


def curve(encoding, params, query):
  """The bias by the encoding itself, `[H, K]`, less its mean."""
  made = encodings.create(encoding, num_heads=2, head_dim=16)
  bias = np.asarray(
    jax.jit(functools.partial(made.apply, method='bias'))(
      {'params': params}, np.array([query]), np.arange(query + 1)
    )
  )[:, 0]
  return bias - bias.mean(-1, keepdims=True)


def test_curves_are_the_encodings_own(assert_close):
  """Each scanned layer has its own map, below and beyond the threshold."""
  config, params = model(FIRE, scan_layers=True, num_layers=3)
  found = bias_maps.curves(config, params, queries=(5, 90))
  for query in (5, 90):
    assert found[query].layers == ('layer_0', 'layer_1', 'layer_2')
    assert found[query].biases.shape == (3, 2, query + 1)
    np.testing.assert_array_equal(found[query].keys, np.arange(query + 1))
    for layer in range(3):
      want = curve(FIRE, params_of(params, layer), query)
      assert np.ptp(want) > 1e-3
      assert_close(found[query].biases[layer], want)


def test_layers_without_a_bias_are_skipped(assert_close):
  encoding = f'rope,{FIRE[:-1]}, shared=True),alibi'
  config, params = model(encoding, num_layers=6)
  found = bias_maps.curves(config, params, queries=(40,))[40]
  assert found.layers == ('layer_1', 'layer_2', 'layer_4', 'layer_5')
  of_fire = curve(FIRE, params['encoding'], 40)
  of_alibi = alibi.slopes(2)[:, None] * (np.arange(41) - 20)
  assert_close(found.biases, np.stack([of_fire, of_alibi, of_fire, of_alibi]))
  thresholds = bias_maps.thresholds(config, params)
  assert set(thresholds) == {'layer_1', 'layer_4'}


def test_an_encoder_sees_keys_on_either_side(assert_close):
  config, params = model('alibi', architecture='encoder')
  found = bias_maps.curves(config, params, queries=(70,))[70]
  np.testing.assert_array_equal(found.keys, np.arange(141))
  assert_close(found.biases, found.biases[..., ::-1])
  assert (found.kind == bias_maps.LOCAL).all()


def test_refuses_a_model_without_biases():
  with pytest.raises(errors.ConfigError, match='no layer of rope, shaw has'):
    bias_maps.curves(*model('rope,shaw'))


def test_kinds_of_heads():
  distance = np.arange(20.0)[::-1]
  heads = {
    'local': -distance,
    'anti-local': np.log1p(distance),
    'flat': -0.005 * distance,
    # Nearest and farthest alike.
    'mixed': -np.abs(distance - 9.5),
    # Steps of several widths, as T5's.
    'local steps': -np.floor(np.sqrt(distance)),
    'constant': np.zeros(20),
  }
  curves = np.stack([*heads.values()])[None]
  curves = curves.astype(np.float32)
  kinds = bias_maps.Curves(
    ('layer_0',), np.arange(20), curves, *bias_maps.classify(curves, distance)
  )
  assert kinds.kind[0].tolist() == [
    'local',
    'anti-local',
    'flat/mixed',
    'flat/mixed',
    'local',
    'flat/mixed',
  ]
  assert kinds.counts == {'local': 2, 'anti-local': 1, 'flat/mixed': 3}
  np.testing.assert_allclose(kinds.correlation[0, :3], [-1, 1, -1])
  # As scipy.stats.spearmanr has it.
  np.testing.assert_allclose(kinds.correlation[0, 4], -0.9655728, rtol=1e-6)
  assert kinds.correlation[0, 5] == 0
  np.testing.assert_allclose(kinds.span[0, 0], 19)


def test_thresholds():
  config, params = model(FIRE, scan_layers=True)
  found = bias_maps.thresholds(config, params)
  assert list(found) == ['layer_0', 'layer_1']
  for layer, threshold in enumerate(found.values()):
    multiplier = params_of(params, layer)['threshold_multiplier'].item()
    assert threshold == pytest.approx(abs(16 * multiplier))
  fixed = FIRE[:-1] + ", threshold='fixed')"
  assert bias_maps.thresholds(*model(fixed)) == {}
  assert bias_maps.thresholds(*model('alibi')) == {}


def test_summary_has_points_of_the_curves():
  config, params = model(f'nope,{FIRE}', num_layers=4, scan_layers=True)
  found = bias_maps.summary(config, params, (7, 300))
  assert found['layers'] == ['layer_1', 'layer_3']
  assert found['thresholds'] == bias_maps.thresholds(config, params)
  whole = bias_maps.curves(config, params, (7, 300))
  assert found['queries']['7']['distance'] == list(range(8))
  far = found['queries']['300']['distance']
  assert far[:3] == [0, 1, 2] and far[-1] == 300 and len(far) <= 33
  for query in (7, 300):
    one = found['queries'][str(query)]
    bias = whole[query].biases[..., query - np.array(one['distance'])]
    bias = bias - bias.max(-1, keepdims=True)
    np.testing.assert_allclose(one['bias'], bias, rtol=1e-3, atol=1e-12)
    assert one['kind'] == whole[query].kind.tolist()


def test_summary_of_an_encoder_goes_both_ways():
  config, params = model('alibi', architecture='encoder_decoder', num_layers=1)
  found = bias_maps.summary(config, params, (100,))
  assert found['layers'] == ['encoder/layer_0', 'decoder/layer_0']
  shown = found['queries']['100']
  distance = shown['distance']
  assert distance == [-one for one in reversed(distance)]
  assert distance[-1] == 100 and len(distance) <= 65
  # The decoder does not see later keys.
  assert all(kind == bias_maps.LOCAL for kind in np.ravel(shown['kind']))
  middle = distance.index(0)
  for ahead, behind in zip(*shown['bias'], strict=True):
    assert ahead[middle:] == behind[middle:]
    assert None not in ahead and behind[:middle] == [None] * middle
  (of_query,) = bias_maps.curves(config, params, (100,)).values()
  assert np.isnan(of_query.biases[1, :, 101:]).all()
  assert np.isfinite(of_query.biases[1, :, :101]).all()


def test_summary_of_a_model_without_biases_is_none():
  for spec in ('rope,shaw', 'learned(max_position=9)'):
    assert bias_maps.summary(*model(spec, scan_layers=True), (8,)) is None


@pytest.mark.parametrize('scan_layers', [False, True])
def test_each_layer_has_its_own(scan_layers):
  """Also where layers have no parameters, or no bias."""
  config, params = model(
    'fire(mlp_width=4),alibi,nope', num_layers=6, scan_layers=scan_layers
  )
  found = bias_maps.by_layer(config, params)
  assert list(found) == [f'layer_{n}' for n in range(6)]
  assert [path for path, _ in found.values()] == [
    f'layer_{n}/attention/encoding' for n in range(6)
  ]
  has_none = [bias is None for _, bias in found.values()]
  assert has_none == [False, False, True] * 2
  layers = stacking.unstack(params)
  for n in (0, 3):
    own = layers[f'layer_{n}']['attention']['encoding']
    np.testing.assert_array_equal(
      found[f'layer_{n}'][1].params['kernel_0'], own['mlp_0']['kernel']
    )


def test_layers_that_share_have_one_path():
  config, params = model('fire(shared=True),sinusoidal')
  found = bias_maps.by_layer(config, params)
  assert [path for path, _ in found.values()] == ['encoding', 'encoding_1']
  assert found['layer_0'][1] is not None and found['layer_1'][1] is None


def test_both_sides_of_an_encoder_decoder():
  config, params = model('fire', architecture='encoder_decoder')
  found = bias_maps.by_layer(config, params)
  assert [(name, bias.bidirectional) for name, (_, bias) in found.items()] == [
    ('encoder/layer_0', True),
    ('encoder/layer_1', True),
    ('decoder/layer_0', False),
    ('decoder/layer_1', False),
  ]
  assert found['encoder/layer_1'][0] == 'encoder/layer_1/attention/encoding'
  for side in ('encoder', 'decoder'):
    own = params[side]['layer_1']['attention']['encoding']
    np.testing.assert_array_equal(
      found[f'{side}/layer_1'][1].params['kernel_0'], own['mlp_0']['kernel']
    )


@pytest.mark.parametrize('value', [np.inf, np.nan])
def test_the_summary_of_a_model_that_has_diverged(value):
  config, params = model('fire')
  params = jax.tree.map(lambda leaf: np.full_like(leaf, value), params)
  summary = bias_maps.summary(config, params, queries=(8, 16))
  assert {*summary['thresholds'].values()} == {None}
  json.dumps(summary, allow_nan=False)


def test_limits_of_the_kinds():
  """Correlations of -0.6 and -0.4; ranges of 0.12 and 0.08 nats."""
  heads = [
    [4, 1, 2, 3, 0],
    [1, 4, 3, 2, 0],
    [0.12, 0.09, 0.06, 0.03, 0],
    [0.08, 0.06, 0.04, 0.02, 0],
  ]
  kind, correlation, _ = bias_maps.classify(
    np.array(heads, np.float32), np.arange(5.0)
  )
  np.testing.assert_allclose(correlation[:2], [-0.6, -0.4], rtol=1e-5)
  assert kind.tolist() == ['local', bias_maps.MIXED, 'local', bias_maps.MIXED]
