"""Tests `lengen_jax/evaluation/layer_biases.py`."""

import jax
import numpy as np
import pytest

from lengen_jax.evaluation import layer_biases
from lengen_jax.models import presets, stacking
from lengen_jax.models.config import ModelConfig
from tests import helpers


def by_layer(encoding, **fields):
  config = ModelConfig(**presets.get('tiny') | fields, encoding=encoding)
  params = helpers.random_params(
    lambda: stacking.init(config, jax.random.key(0))
  )
  return layer_biases.by_layer(config, params), params


@pytest.mark.parametrize('scan_layers', [False, True])
def test_each_layer_has_its_own(scan_layers):
  """Also where layers have no parameters, or no bias."""
  found, params = by_layer(
    'fire(mlp_width=4),alibi,nope', num_layers=6, scan_layers=scan_layers
  )
  assert list(found) == [f'layer_{n}' for n in range(6)]
  assert [one.path for one in found.values()] == [
    f'layer_{n}/attention/encoding' for n in range(6)
  ]
  has_none = [one.bias is None for one in found.values()]
  assert has_none == [False, False, True] * 2
  layers = stacking.unstack(params)
  for n in (0, 3):
    own = layers[f'layer_{n}']['attention']['encoding']
    np.testing.assert_array_equal(
      found[f'layer_{n}'].bias.params['kernel_0'], own['mlp_0']['kernel']
    )


def test_layers_that_share_have_one_path():
  found, _ = by_layer('fire(shared=True),sinusoidal')
  assert [one.path for one in found.values()] == ['encoding', 'encoding_1']
  assert found['layer_0'].bias is not None and found['layer_1'].bias is None


def test_both_sides_of_an_encoder_decoder():
  found, params = by_layer('fire', architecture='encoder_decoder')
  assert [(name, one.bias.bidirectional) for name, one in found.items()] == [
    ('encoder/layer_0', True),
    ('encoder/layer_1', True),
    ('decoder/layer_0', False),
    ('decoder/layer_1', False),
  ]
  assert found['encoder/layer_1'].path == 'encoder/layer_1/attention/encoding'
  for side in ('encoder', 'decoder'):
    own = params[side]['layer_1']['attention']['encoding']
    np.testing.assert_array_equal(
      found[f'{side}/layer_1'].bias.params['kernel_0'], own['mlp_0']['kernel']
    )
