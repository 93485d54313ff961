"""Tests that randomized positions teach order (Su, 2023).

After training with randomized positions, other positions in the same order
change the predictions little. After training with standard positions, they
change the predictions much more.
"""

import jax
import jax.numpy as jnp
import optax
import pytest

from lengen_jax import models, positions
from lengen_jax.models import objective, presets, stacking

LENGTH, VOCAB = 8, 8


def batch(key):
  """Random tokens; each target is the token before."""
  tokens = jax.random.randint(key, (32, LENGTH), 0, VOCAB)
  index = jnp.broadcast_to(jnp.arange(LENGTH)[None], tokens.shape)
  return {
    'inputs': tokens,
    'targets': jnp.roll(tokens, 1, axis=1),
    'weights': (index > 0).astype(jnp.float32),
    'segment_positions': index,
    'lengths': jnp.full_like(index, LENGTH),
  }


def trained(config, scheme, steps=400):
  """Returns trained parameters and the mean loss of the last ten steps."""
  optimizer = optax.adam(3e-3)
  scheme = positions.create(scheme)

  def step(carry, number):
    params, opt_state = carry
    key = jax.random.fold_in(jax.random.key(5), number)
    one = batch(key)

    def loss(params):
      losses = objective.token_losses(
        config, scheme, params, one, rng=key, train=True, packed=False
      )
      return jnp.sum(losses * one['weights']) / jnp.sum(one['weights'])

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    return (optax.apply_updates(params, updates), opt_state), value

  @jax.jit
  def run(params):
    carry = params, optimizer.init(params)
    (params, _), losses = jax.lax.scan(step, carry, jnp.arange(steps))
    return params, losses[-10:].mean()

  return run(stacking.init(config, jax.random.key(0)))


def moved_by_a_redraw(config, params):
  """Mean total variation between predictions under two draws, 0 to 1."""
  scheme = positions.create('randomized(max_position=32)')
  one = batch(jax.random.key(99))

  @jax.jit
  def predictions(key):
    given = scheme(one['segment_positions'], lengths=one['lengths'], rng=key)
    logits = models.DecoderLM(config).apply(
      {'params': params}, one['inputs'], given
    )
    return jax.nn.softmax(logits)[:, 1:]

  first, second = (predictions(jax.random.key(n)) for n in range(2))
  return float(jnp.abs(first - second).sum(-1).mean() / 2)


@pytest.mark.slow
def test_randomized_positions_teach_order():
  sizes = presets.get('tiny') | {'vocab_size': VOCAB, 'num_layers': 1}
  config = models.ModelConfig(**sizes, encoding='sinusoidal')
  moved = {}
  for scheme in ('standard', 'randomized(max_position=32)'):
    params, loss = trained(config, scheme)
    assert loss < 0.5
    moved[scheme.split('(')[0]] = moved_by_a_redraw(config, params)
  assert moved['standard'] > 0.4
  assert moved['randomized'] < moved['standard'] / 2.5
