"""Tests `lengen_jax/analysis/bias_maps.py`."""

import csv

import jax
import numpy as np
import pytest

from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax.analysis import bias_maps
from lengen_jax.encodings import alibi
from lengen_jax.models import stacking
from lengen_jax.training import run as run_lib
from tests import random_params

FIRE = 'fire(init_threshold=16., mlp_width=4)'


def trained(config, encoding, **model):
  """A run with random parameters."""
  config.model.encoding = encoding
  config.model.update(model)
  run = run_lib.Run(config)
  params = random_params.fill(
    lambda: stacking.init(run.model, jax.random.key(0))
  )
  return run_lib.Trained(run, run.abstract_state.replace(params=params), 0.0)


def params_of(trained, layer):
  """FIRE's parameters in a layer of a scanned model of one encoding."""
  stacked = trained.state.params['layers']['block_0']['attention']['encoding']
  return jax.tree.map(lambda leaf: leaf[layer], stacked)


def curve(encoding, params, query):
  """The bias by the encoding itself, `[H, K]`, less its mean."""
  made = encodings.create(encoding, num_heads=2, head_dim=16)
  bias = np.asarray(
    made.apply(
      {'params': params},
      np.array([query]),
      np.arange(query + 1),
      method='bias',
    )
  )[:, 0]
  return bias - bias.mean(-1, keepdims=True)


def test_curves_are_the_encodings_own(tiny_config, assert_close):
  """Of each scanned layer, below and beyond the threshold."""
  model = trained(tiny_config, FIRE, scan_layers=True, num_layers=3)
  found = bias_maps.curves(model, queries=(5, 90))
  assert found.layers == ('layer_0', 'layer_1', 'layer_2')
  assert found.skipped == ()
  for query in (5, 90):
    assert found.biases[query].shape == (3, 2, query + 1)
    np.testing.assert_array_equal(found.keys[query], np.arange(query + 1))
    for layer in range(3):
      want = curve(FIRE, params_of(model, layer), query)
      assert np.ptp(want) > 1e-3
      assert_close(found.biases[query][layer], want)


def test_layers_without_a_bias_are_skipped(tiny_config, assert_close):
  encoding = f'rope,{FIRE[:-1]}, shared=True),alibi'
  model = trained(tiny_config, encoding, num_layers=6)
  found = bias_maps.curves(model, queries=(40,))
  assert found.layers == ('layer_1', 'layer_2', 'layer_4', 'layer_5')
  assert found.skipped == ('layer_0', 'layer_3')
  of_fire = curve(FIRE, model.state.params['encoding'], 40)
  of_alibi = alibi.slopes(2)[:, None] * (np.arange(41) - 20)
  assert_close(
    found.biases[40], np.stack([of_fire, of_alibi, of_fire, of_alibi])
  )
  thresholds = bias_maps.thresholds(model)
  assert set(thresholds) == {'layer_1', 'layer_4'}


def test_an_encoder_sees_keys_on_either_side(tiny_config, assert_close):
  model = trained(tiny_config, 'alibi', architecture='encoder')
  found = bias_maps.curves(model, queries=(70,))
  np.testing.assert_array_equal(found.keys[70], np.arange(141))
  biases = found.biases[70]
  assert_close(biases, biases[..., ::-1])
  (kinds,) = bias_maps.kinds(found).values()
  assert (kinds.kind == bias_maps.LOCAL).all()


def test_refuses_a_model_without_biases(tiny_config):
  with pytest.raises(errors.ConfigError, match='no layer of rope, shaw has'):
    bias_maps.curves(trained(tiny_config, 'rope,shaw'))


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
  found = bias_maps.Curves(
    ('layer_0',), (), {19: np.arange(20)}, {19: curves.astype(np.float32)}
  )
  kinds = bias_maps.kinds(found)[19]
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


def test_thresholds(tiny_config):
  model = trained(tiny_config, FIRE, scan_layers=True)
  found = bias_maps.thresholds(model)
  assert list(found) == ['layer_0', 'layer_1']
  for layer, threshold in enumerate(found.values()):
    multiplier = params_of(model, layer)['threshold_multiplier'].item()
    assert threshold == pytest.approx(abs(16 * multiplier))
  fixed = FIRE[:-1] + ", threshold='fixed')"
  assert bias_maps.thresholds(trained(tiny_config, fixed)) == {}
  assert bias_maps.thresholds(trained(tiny_config, 'alibi')) == {}


def test_figure_writes_the_same_files_each_time(tiny_config, tmp_path):
  model = trained(tiny_config, f'{FIRE},nope', num_layers=4)
  paths, again = (
    bias_maps.figure(model, tmp_path / name, queries=(8, 300))
    for name in ('one', 'two')
  )
  assert [path.name for path in paths] == [
    'bias_maps_8.png',
    'bias_maps_300.png',
    'bias_maps.csv',
    'bias_kinds.csv',
  ]
  for path, other in zip(paths, again, strict=True):
    assert path.read_bytes() == other.read_bytes()
  assert paths[0].read_bytes() != paths[1].read_bytes()
  found = bias_maps.curves(model, queries=(8, 300))
  with open(paths[2]) as file:
    points = list(csv.DictReader(file))
  # All keys of a short curve, 129 of a long one, of two layers and heads.
  assert len(points) == 4 * (9 + 129)
  assert {point['layer'] for point in points} == {'layer_0', 'layer_2'}
  for point in points[:: len(points) // 20]:
    query = int(point['query'])
    layer = found.layers.index(point['layer'])
    want = found.biases[query][layer, int(point['head']), int(point['key'])]
    assert float(point['bias']) == pytest.approx(want)
  with open(paths[3]) as file:
    heads = list(csv.DictReader(file))
  kinds = bias_maps.kinds(found)[300]
  assert [head['kind'] for head in heads[4:]] == kinds.kind.ravel().tolist()
