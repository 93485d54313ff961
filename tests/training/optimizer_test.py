"""Tests `lengen_jax/training/optimizer.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.training import optimizer
from lengen_jax.training import run as run_lib
from lengen_jax.training.config import OptimizerConfig


@pytest.mark.parametrize(
  'name, middle, last',
  [('constant', 1.0, 1.0), ('linear', 0.55, 0.1), ('cosine', 0.55, 0.1)],
)
def test_schedules(name, middle, last):
  config = OptimizerConfig(
    schedule=name, learning_rate=1.0, warmup_steps=4, final_fraction=0.1
  )
  rate = optimizer.schedule(config, 24)
  got = [float(rate(step)) for step in (0, 1, 3, 4, 14, 24)]
  np.testing.assert_allclose(
    got, [0.25, 0.5, 1.0, 1.0, middle, last], rtol=1e-6
  )


def test_no_warmup():
  config = OptimizerConfig(schedule='constant')
  rate = optimizer.schedule(config, 10)
  assert float(rate(0)) == pytest.approx(config.learning_rate)


def test_clipping():
  config = OptimizerConfig(name='adam', clip_norm=1.0, schedule='constant')
  params = {'kernel': jnp.zeros(2)}
  tx = optimizer.create(config, 10)
  grads = {'kernel': jnp.array([30.0, 40.0])}
  _, state = tx.update(grads, tx.init(params), params)
  moments = [x for x in jax.tree.leaves(state) if x.shape == (2,)]
  np.testing.assert_allclose(moments[0], [0.06, 0.08], rtol=1e-5)


def test_encodings_norms_and_tables_of_positions_do_not_decay(tiny_config):
  tiny_config.model.num_layers = 2
  tiny_config.model.encoding = 'fire, learned(max_position=8)'
  params = run_lib.Run(tiny_config).abstract_state.params
  flat = jax.tree_util.tree_flatten_with_path(optimizer.decayed(params))[0]
  decays = {'/'.join(k.key for k in path): value for path, value in flat}
  assert decays['embed/table']
  assert decays['layer_0/attention/query/kernel']
  assert decays['layer_1/mlp/down/kernel']
  assert not decays['layer_0/attention/encoding/mlp_0/kernel']
  assert not decays['encoding/table']
  assert not decays['final_norm/scale']


def test_weight_decay():
  config = OptimizerConfig(
    learning_rate=0.5, schedule='constant', weight_decay=0.1
  )
  params = {
    name: {'kernel': jnp.full(2, 3.0)} for name in ('query', 'encoding')
  }
  tx = optimizer.create(config, 10)
  zeros = jax.tree.map(jnp.zeros_like, params)
  updates, _ = tx.update(zeros, tx.init(params), params)
  want = -0.5 * 0.1 * 3
  np.testing.assert_allclose(updates['query']['kernel'], want, rtol=1e-6)
  assert not updates['encoding']['kernel'].any()


def test_lora_kernels_decay():
  params = dict.fromkeys(('lora_in', 'lora_out', 'bias'), jnp.ones(1))
  assert optimizer.decayed({'query': params}) == {
    'query': {'lora_in': True, 'lora_out': True, 'bias': False}
  }


def test_second_moment():
  config = OptimizerConfig(name='adam', clip_norm=0.0, b2=0.5)
  params = {'kernel': jnp.zeros(2)}
  tx = optimizer.create(config, 10)
  _, state = tx.update({'kernel': jnp.full(2, 3.0)}, tx.init(params), params)
  moments = [x for x in jax.tree.leaves(state) if x.shape == (2,)]
  np.testing.assert_allclose(moments[1], (1 - 0.5) * 3**2)


@pytest.mark.parametrize('name', ['adam', 'adamw'])
def test_encodings_have_their_own_rate(name):
  params = {
    'layer_0': {
      'attention': {
        'encoding': {'mlp_0': {'kernel': jnp.ones(3)}},
        'query': {'kernel': jnp.ones(3)},
      }
    }
  }
  grads = jax.tree.map(lambda leaf: leaf * jnp.array([1.0, -2.0, 3.0]), params)

  def updates(**fields):
    tx = optimizer.create(OptimizerConfig(name=name, **fields), 10)
    return tx.update(grads, tx.init(params), params)[0]['layer_0']['attention']

  plain, faster = updates(), updates(encoding_rate=10.0)
  for part, factor in (('query', 1), ('encoding', 10)):
    before, after = jax.tree.leaves(plain[part]), jax.tree.leaves(faster[part])
    np.testing.assert_allclose(after[0], factor * before[0], rtol=1e-6)
    assert np.abs(before[0]).min() > 0
  frozen = updates(encoding_rate=0.0)
  assert not jax.tree.leaves(frozen['encoding'])[0].any()


@pytest.mark.parametrize('schedule', ['constant', 'cosine', 'linear'])
def test_no_steps(schedule):
  config = OptimizerConfig(
    schedule=schedule, warmup_steps=10, learning_rate=0.5
  )
  assert optimizer.schedule(config, 0)(0) == 0.5


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(name='sgd'), "optimizer.name 'sgd'"),
    (dict(schedule='cosin'), "'cosin'; did you mean 'cosine'"),
    (dict(b1=1.0), 'optimizer.b1 must be at least 0 and below 1, got 1'),
    (dict(clip_norm='1'), "optimizer.clip_norm is '1'; it takes finite float"),
    (dict(warmup_steps=10), 'warmup_steps=10 leaves none of train.steps=10'),
  ],
)
def test_bad_settings(change, message):
  with pytest.raises(errors.ConfigError, match=message):
    optimizer.create(OptimizerConfig(**change), 10)
