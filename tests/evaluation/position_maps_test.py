"""Tests `lengen_jax/evaluation/position_maps.py`."""

import dataclasses

import jax
import numpy as np

from lengen_jax import models, positions
from lengen_jax.data import windows as data_windows
from lengen_jax.evaluation import position_maps
from lengen_jax.models import presets, stacking
from lengen_jax.positions import contextual
from tests import helpers

L = 90
STANDARD = positions.create('standard')


def test_positions_are_those_of_the_layers(assert_close):
  config = models.ModelConfig(
    **presets.get('tiny'),
    encoding='rope, linear',
    contextual_positions='forget, none',
  )
  params = helpers.initial(config)
  tokens = np.random.default_rng(1).integers(0, 256, (2, L + 1))
  batch = data_windows.lm_batch(tokens)
  scanned = dataclasses.replace(config, scan_layers=True)
  found = position_maps.by_layer(
    scanned,
    STANDARD,
    jax.jit(stacking.stack, static_argnums=1)(params, scanned),
    batch,
  )
  assert list(found) == ['layer_0']

  @jax.jit
  def run(params):
    _, heard = models.create(config).apply(
      {'params': params},
      batch['inputs'],
      capture_intermediates=True,
      mutable=['intermediates'],
    )
    (x,) = heard['intermediates']['layer_0']['attention_norm']['__call__']
    scheme = contextual.create('forget', num_heads=2, width=x.shape[-1])
    own = params['layer_0']['attention']['positions']
    return scheme.apply({'params': own}, x)

  want = run(params)
  assert (np.diff(want, axis=1) > 0).all()
  assert_close(found['layer_0'], want)
  (drawn,) = position_maps.summary(
    config, STANDARD, params, batch, rng=jax.random.key(0)
  ).values()
  assert drawn['token'][0] == 0 and drawn['token'][-1] == L - 1
  shown = want[0, np.array(drawn['token'])].T
  np.testing.assert_allclose(drawn['position'], shown, rtol=2e-5)
