"""Tests `lengen_jax/analysis/bias_figures.py`."""

import csv

import jax
import pytest

from lengen_jax.analysis import bias_figures
from lengen_jax.evaluation import bias_maps
from lengen_jax.models import presets, stacking
from lengen_jax.models.config import ModelConfig

FIRE = 'fire(init_threshold=16., mlp_width=4)'


def test_figure_writes_the_same_files_each_time(tmp_path):
  config = ModelConfig(
    **presets.get('tiny') | {'num_layers': 4}, encoding=f'{FIRE},nope'
  )
  params = jax.jit(lambda: stacking.init(config, jax.random.key(0)))()
  paths, again = (
    bias_figures.figure(config, params, tmp_path / name, queries=(8, 300))
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
  found = bias_maps.curves(config, params, queries=(8, 300))
  with open(paths[2]) as file:
    points = list(csv.DictReader(file))
  # All keys of a short curve, 129 of a long one, of two layers and heads.
  assert len(points) == 4 * (9 + 129)
  assert {point['layer'] for point in points} == {'layer_0', 'layer_2'}
  for point in points[:: len(points) // 20]:
    query = int(point['query'])
    layer = found[query].layers.index(point['layer'])
    want = found[query].biases[layer, int(point['head']), int(point['key'])]
    assert float(point['bias']) == pytest.approx(want)
  with open(paths[3]) as file:
    heads = list(csv.DictReader(file))
  want = found[300].kind.ravel().tolist()
  assert [head['kind'] for head in heads[4:]] == want
