"""Tests `lengen_jax/training/state.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import positions
from lengen_jax.models import objective
from lengen_jax.training import run as run_lib


@pytest.fixture
def tiny_config(tiny_config):
  """One layer compiles faster."""
  tiny_config.model.num_layers = 1
  return tiny_config


def batch_of(rows, length=16):
  tokens = jax.random.randint(jax.random.key(9), (rows, length + 1), 0, 256)
  ones = jnp.ones((rows, length), jnp.int32)
  return {
    'inputs': tokens[:, :-1],
    'targets': tokens[:, 1:],
    'weights': jnp.ones((rows, length)),
    'segment_ids': ones,
    'segment_positions': jnp.broadcast_to(
      jnp.arange(length)[None], (rows, length)
    ),
    'lengths': length * ones,
  }


def stepper(run, *, packed=False):
  return jax.jit(run.step_fn(packed=packed))


def test_weights_choose_what_is_learned(tiny_config):
  run = run_lib.Run(tiny_config)
  state, batch = run.init_state(), batch_of(4)
  step = stepper(run)
  half = dict(batch, weights=batch['weights'].at[2:].set(0.0))
  small = jax.tree.map(lambda x: x[:2], batch)
  got, wanted = step(state, half)[1], step(state, small)[1]
  np.testing.assert_allclose(got['loss'], wanted['loss'], rtol=1e-6)
  np.testing.assert_allclose(got['grad_norm'], wanted['grad_norm'], rtol=1e-5)


def test_packed_rows_equal_rows_of_their_own(tiny_config):
  tiny_config.model.encoding = 'fire'
  run = run_lib.Run(tiny_config)
  state, batch = run.init_state(), batch_of(4, length=8)
  packed = {key: value.reshape(2, 16) for key, value in batch.items()}
  packed['segment_ids'] = packed['segment_ids'].at[:, 8:].set(2)
  got = stepper(run, packed=True)(state, packed)[1]
  wanted = stepper(run)(state, batch)[1]
  np.testing.assert_allclose(got['loss'], wanted['loss'], rtol=1e-6)
  np.testing.assert_allclose(got['grad_norm'], wanted['grad_norm'], rtol=1e-5)


def test_parameters_stay_in_their_domain(tiny_config):
  tiny_config.model.encoding = 'kerple_log'
  tiny_config.optimizer.learning_rate = 100.0
  run = run_lib.Run(tiny_config)
  state = run.init_state()
  step, batch = stepper(run), batch_of(2)
  for _ in range(4):
    state, _ = step(state, batch)
  kerple = state.params['layer_0']['attention']['encoding']
  assert min(kerple['p'].min(), kerple['a'].min()) >= np.float32(0.01)


def test_randomness_is_a_function_of_seed_and_step(tiny_config):
  tiny_config.positions = 'randomized(max_position=512)'
  tiny_config.model.encoding = 'alibi'
  run = run_lib.Run(tiny_config)
  state, batch = run.init_state(), batch_of(2)

  def loss(step, state):
    return float(step(state, batch)[1]['loss'])

  step = stepper(run)
  first = loss(step, state)
  assert first == loss(step, state)
  assert first != loss(step, state.replace(step=state.step + 1))
  tiny_config.seed = 1
  assert first != loss(stepper(run_lib.Run(tiny_config)), state)


@pytest.mark.parametrize('train', [True, False])
def test_rows_alike_share_one_bias(tiny_config, train):
  """Unpacked standard positions must not cost a bias per row."""
  tiny_config.model.encoding = 'fire'
  run = run_lib.Run(tiny_config)
  batch = batch_of(4, length=64)
  text = (
    jax.jit(
      lambda params: objective.token_losses(
        run.model,
        positions.create('standard'),
        params,
        batch,
        rng=jax.random.key(0),
        train=train,
        packed=False,
      )
    )
    .lower(run.abstract_state.params)
    .as_text()
  )
  assert f'tensor<{64 * 64}x32xf32>' in text
  assert f'tensor<{4 * 64 * 64}x32xf32>' not in text
