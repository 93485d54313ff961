"""Tests `lengen_jax/evaluation/bias_error.py`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import positions
from lengen_jax.evaluation import bias_error
from lengen_jax.models import presets, stacking, transformer
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions.tokens import Tokens
from tests import helpers

FIRE = 'fire(init_threshold=64., mlp_width=8)'


def config(**fields):
  return ModelConfig(
    **{**presets.PRESETS['tiny'], 'bias_form': 'anchored', **fields}
  )


def init(config):
  """Unstacked parameters, made once per encoding and architecture."""
  return helpers.params_of(
    dataclasses.replace(
      config, scan_layers=False, implementation='auto', bias_form='exact'
    )
  )


def largest(config, scheme='standard', params=None, length=512):
  if params is None:
    params = stacking.stack(init(config), config)
  return bias_error.largest(config, positions.create(scheme), params, length)


@pytest.mark.parametrize('scan_layers', [False, True])
def test_says_by_how_much_each_layers_bias_is_off(scan_layers):
  errors = largest(config(encoding=FIRE, scan_layers=scan_layers))
  assert list(errors) == [
    f'layer_{i}/attention/encoding'
    for i in range(presets.PRESETS['tiny']['num_layers'])
  ]
  assert all(0 < error < 0.01 for error in errors.values())


def test_biases_at_contextual_positions_are_exact():
  # Only parameters of encodings are read.
  params = init(config(encoding=FIRE))
  fields = {'encoding': FIRE, 'contextual_positions': 'forget, none'}
  found = largest(config(**fields), params=params)
  assert list(found) == ['layer_1/attention/encoding']


def test_says_how_far_off_the_kernels_are():
  blockwise = largest(config(encoding=FIRE), length=1024)
  kernels = largest(config(encoding=FIRE, implementation='pallas'), length=1024)
  assert kernels.keys() == blockwise.keys()
  assert all(0 < error < 0.01 for error in kernels.values())
  # They have anchors elsewhere.
  assert kernels != blockwise
  alibi = config(encoding='alibi', implementation='pallas')
  assert largest(alibi, length=1024) == {}


def test_a_shared_encoding_counts_once():
  shared = FIRE[:-1] + ', shared=True)'
  assert list(largest(config(encoding=shared))) == ['encoding']


def test_a_bias_with_kinks_between_anchors_is_further_off():
  c = config(encoding=FIRE)
  params = init(c)
  steep = jax.tree.map(lambda x: x, params)
  layer = steep['layer_0']['attention']['encoding']
  layer['mlp_0'] = {
    'kernel': layer['mlp_0']['kernel'] * 50,
    'bias': layer['mlp_0']['bias'] * 25,
  }
  path = 'layer_0/attention/encoding'
  assert largest(c, params=steep)[path] > 2 * largest(c, params=params)[path]


@pytest.mark.parametrize(
  'encoding, form, scheme',
  [
    (FIRE, 'exact', 'standard'),
    ('alibi', 'anchored', 'standard'),
    ('rope', 'anchored', 'standard'),
    (FIRE, 'auto', 'randomized(max_position=600)'),
    ("fire(transform='identity')", 'auto', 'standard'),
  ],
)
def test_nothing_where_biases_are_exact(encoding, form, scheme):
  c = dataclasses.replace(config(encoding=encoding), bias_form=form)
  assert largest(c, scheme) == {}


@pytest.mark.parametrize(
  'length, implementation, exact',
  [(512, 'auto', False), (256, 'auto', True), (512, 'reference', True)],
)
def test_auto_is_exact_where_attention_is_not_blockwise(
  length, implementation, exact
):
  c = config(encoding=FIRE)
  c = dataclasses.replace(c, bias_form='auto', implementation=implementation)
  assert (largest(c, length=length) == {}) == exact


def test_a_constant_hides_no_error():
  c = config(encoding=FIRE)
  params = jax.tree.map(jnp.asarray, init(c))
  before = largest(c, params=params)
  for i in range(c.num_layers):
    mlp = params[f'layer_{i}']['attention']['encoding']['mlp_2']
    mlp['bias'] = mlp['bias'] + 10
  for path, error in largest(c, params=params).items():
    assert error == pytest.approx(before[path], rel=0.1)


@pytest.mark.parametrize(
  'architecture, sides',
  [('encoder', ['']), ('encoder_decoder', ['encoder/', 'decoder/'])],
)
def test_every_side_of_a_model_is_probed(architecture, sides):
  c = config(encoding=FIRE, architecture=architecture, scan_layers=True)
  errors = largest(c)
  assert [*errors] == [
    f'{side}layer_{i}/attention/encoding'
    for side in sides
    for i in range(c.num_layers)
  ]
  assert all(error > 0 for error in errors.values())


def test_a_model_with_anchors_is_close_to_the_exact_one():
  c = config(encoding=FIRE)
  params = init(c)
  tokens = jax.random.randint(jax.random.key(1), (2, 200), 0, c.vocab_size)

  def logits(bias_form, **named):
    model = transformer.create(dataclasses.replace(c, bias_form=bias_form))
    return jax.jit(model.apply)({'params': params}, tokens, **named)

  exact, anchored = logits('exact'), logits('anchored')
  assert not np.array_equal(exact, anchored)
  np.testing.assert_allclose(anchored, exact, atol=1e-3 * np.abs(exact).max())
  # The promise comes from the caller where positions are given.
  index = jnp.arange(200, dtype=jnp.int32)[None]
  index = Tokens.create(tokens.shape, index, contiguous=True)
  given = logits('anchored', positions=index)
  np.testing.assert_array_equal(given, anchored)
