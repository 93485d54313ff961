"""Tests `lengen_jax/models/embed.py`."""

import re

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import models, positions
from lengen_jax.models import embed
from tests import helpers

B, L, E = 2, 6, 16


def inputs(length=L):
  return jax.random.normal(jax.random.key(0), (B, length, E))


def test_embed(assert_close):
  module = embed.Embed(9, 100)
  tokens = jnp.array([[1, 8, 1]])
  variables = nn.unbox(module.init(jax.random.key(0), tokens))
  table = variables['params']['table']
  assert table.shape == (9, 100)
  np.testing.assert_allclose(table.std(), 0.02, rtol=0.1)
  x = module.apply(variables, tokens)
  assert_close(x, table[tokens] * 10, 1e-6)
  got = module.apply(variables, x, method='logits')
  assert_close(got, np.asarray(x) @ np.asarray(table).T, 1e-5)
  # Neither the last row nor one counted from the end.
  outside = module.apply(variables, jnp.array([[9, -1, 8]]))
  assert np.isnan(outside[:, :2]).all() and np.isfinite(outside[:, 2]).all()


def test_embed_in_bfloat16_gives_float32_logits():
  module = embed.Embed(9, 32, jnp.bfloat16)
  tokens = jnp.array([[1, 2]])
  variables = nn.unbox(module.init(jax.random.key(0), tokens))
  x = module.apply(variables, tokens)
  assert x.dtype == jnp.bfloat16
  logits = module.apply(variables, x, method='logits')
  assert logits.dtype == jnp.float32
  assert (logits != logits.astype(jnp.bfloat16)).any()


def chunked(monkeypatch, most, length=7, vocab_size=50):
  """Losses, their gradients, and the largest array in the program."""
  monkeypatch.setattr(embed, '_MOST_LOGITS', most)
  module = embed.Embed(vocab_size, E)
  params = module.init(jax.random.key(0), jnp.zeros((1, 1), int))
  x = inputs(length=length)
  targets = jax.random.randint(jax.random.key(2), (B, length), 0, vocab_size)

  def total(params, x):
    losses = module.apply(params, x, targets, method='losses')
    return jnp.sum(jnp.sin(losses)), losses

  grad = jax.jit(jax.grad(total, (0, 1), has_aux=True))
  compiled = grad.lower(nn.unbox(params), x).compile()
  sizes = re.findall(r'f32\[([\d,]+)\]', compiled.as_text())
  largest = max(np.prod([int(n) for n in size.split(',')]) for size in sizes)
  return compiled(nn.unbox(params), x), largest


@pytest.mark.parametrize('most', [1, 2 * 50, 2 * 3 * 50, 2 * 6 * 50])
def test_chunked_losses(monkeypatch, most, assert_close):
  """Equal, and with no more logits in memory than asked for."""
  want, whole = chunked(monkeypatch, 2**26)
  got, largest = chunked(monkeypatch, most)
  assert_close(got, want, 1e-5)
  assert whole >= B * 7 * 50
  # The table and its gradient are there in any case.
  assert largest <= max(most, B * 50, 50 * E)


def test_losses_are_those_of_the_logits(assert_close):
  module = embed.Embed(9, E)
  params = module.init(jax.random.key(0), jnp.zeros((1, 1), int))
  targets = jnp.arange(B * L).reshape(B, L) % 9
  logits = module.apply(params, inputs(), method='logits')
  want = -jnp.take_along_axis(
    jax.nn.log_softmax(logits), targets[..., None], -1
  )[..., 0]
  got = module.apply(params, inputs(), targets, method='losses')
  assert_close(got, want, 1e-6)


@pytest.mark.parametrize('target', [-100, -1, 9])
def test_losses_of_other_targets_are_nan(target):
  targets = np.arange(B * L).reshape(B, L) % 9
  targets[0, 1] = target
  table = embed.Embed(9, E)
  params = table.init(jax.random.key(0), jnp.zeros((1, 1), int))
  losses = table.apply(params, inputs(), targets, method='losses')
  np.testing.assert_array_equal(np.isnan(losses), targets == target)


@pytest.mark.parametrize('num_layers', [1, 2, 3])
def test_several_rows_of_positions(num_layers):
  """They are those of the input, however many layers there are."""
  ids = jnp.arange(6)[None]
  roles = jnp.stack([ids, 5 - ids])
  given = positions.create('coupled(max_position=9)')(ids, roles=roles)
  config = helpers.tiny_model(
    encoding='learned(max_position=9, rows=2)', num_layers=num_layers
  )
  model, params = models.DecoderLM(config), helpers.params_of(config)
  got, want = (
    model.apply({'params': params}, ids, each)
    for each in (given, positions.Parts(given))
  )
  np.testing.assert_array_equal(got, want)


def test_losses_are_those_of_bounded_logits(assert_close):
  module = embed.Embed(9, 16, cap=0.5)
  targets = jnp.arange(6).reshape(2, 3)
  x = 50 * jax.random.normal(jax.random.key(0), (2, 3, 16))
  params = module.init(jax.random.key(0), targets)
  logits = module.apply(params, x, method='logits')
  assert np.abs(logits).max() <= 0.5
  log_probs = jax.nn.log_softmax(logits)
  want = -jnp.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
  assert_close(module.apply(params, x, targets, method='losses'), want)


def test_a_table_of_16_bits_is_scaled_in_float32():
  module = embed.Embed(64, 7)
  table = jax.random.normal(jax.random.key(0), (64, 7), jnp.bfloat16)
  got = module.apply({'params': {'table': table}}, jnp.arange(64)[None])[0]
  want = np.float32(table) * np.float32(7**0.5)
  np.testing.assert_allclose(got, want, rtol=1e-6)
