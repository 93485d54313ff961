"""Tests `lengen_jax/training/throughput.py`."""

import dataclasses
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import positions as position_schemes
from lengen_jax.data import windows
from lengen_jax.models import config as model_config
from lengen_jax.models import objective, presets, stacking
from lengen_jax.training import throughput

ROWS, LENGTH, ENCODER_LENGTH = 2, 128, 64
WIDE = dict(
  vocab_size=512,
  num_layers=2,
  num_heads=2,
  head_dim=128,
  width=256,
  mlp_width=1024,
  implementation='reference',
)


def compiled_flops(config):
  """FLOPs of a gradient, as the compiler counts them."""
  scheme = position_schemes.create('standard')
  if config.architecture == 'encoder_decoder':
    batch = windows.pair_batch(
      np.zeros((ROWS, ENCODER_LENGTH), np.int32),
      np.zeros((ROWS, LENGTH), np.int32),
    )
  else:
    batch = windows.lm_batch(np.zeros((ROWS, LENGTH + 1), np.int32))
  params = jax.eval_shape(lambda: stacking.init(config, jax.random.key(0)))

  def loss(params, batch):
    return jnp.sum(
      objective.token_losses(
        config,
        scheme,
        params,
        batch,
        rng=jax.random.key(0),
        train=True,
        packed=False,
      )
    )

  compiled = jax.jit(jax.value_and_grad(loss)).lower(params, batch).compile()
  return compiled.cost_analysis()['flops']


@pytest.mark.parametrize(
  'change',
  [
    dict(architecture='decoder', window=16),
    pytest.param(
      dict(architecture='decoder', window=16, activation='swiglu'),
      id='gate',
    ),
    pytest.param(
      dict(architecture='encoder', key_heads=1, output_size=1024),
      marks=pytest.mark.slow,
    ),
    dict(architecture='encoder_decoder'),
  ],
  ids=lambda change: change['architecture'],
)
def test_flops_are_those_of_the_compiled_model(change):
  config = model_config.ModelConfig(**WIDE, **change)
  sizes = (ROWS, LENGTH, ENCODER_LENGTH)
  mine = throughput.model_flops(config, *sizes)
  # The reference computes the pairs that are masked too.
  heads = config.num_layers * config.num_heads * config.head_dim
  if change['architecture'] == 'decoder':
    seen = sum(min(i + 1, 16) for i in range(LENGTH))
    mine += 12 * ROWS * heads * (LENGTH**2 - seen)
  if change['architecture'] == 'encoder_decoder':
    mine += 12 * ROWS * heads * LENGTH * (LENGTH - 1) // 2
  # The compiler counts more than products of matrices.
  assert 1 < compiled_flops(config) / mine < 1.03


def test_flops_of_papers():
  """6 per parameter and token, and PaLM's 12 L H Q T for attention."""
  config = model_config.ModelConfig(**presets.get('base'))
  params = jax.eval_shape(lambda: stacking.init(config, jax.random.key(0)))
  count = sum(leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1)
  attention = 12 * 12 * 12 * 64 * 2048
  want = 6 * count + attention / 2
  per_token = throughput.model_flops(config, 8, 2048) / (8 * 2048)
  assert per_token == pytest.approx(want, rel=1e-3)
  again = dataclasses.replace(config, remat='full', encoding='fire')
  assert throughput.model_flops(again, 8, 2048) == per_token * 8 * 2048


def test_flops_of_layers_that_differ():
  def flops(**fields):
    config = model_config.ModelConfig(**WIDE, **fields)
    return throughput.model_flops(config, 8, 2048)

  near, all_tokens = flops(window=16, sinks=2), flops()
  assert near < all_tokens
  mixed = flops(window=(16, None), sinks=(2, 0))
  assert 2 * mixed == near + all_tokens


def test_flops_of_options():
  def flops(**fields):
    config = model_config.ModelConfig(**WIDE, **fields)
    # Of a token, and of one layer.
    return throughput.model_flops(config, 1, LENGTH) / (6 * LENGTH * 2)

  width, heads, head_dim = WIDE['width'], WIDE['num_heads'], WIDE['head_dim']
  plain = flops()
  assert flops(output_gate='head') - plain == width * heads
  assert flops(output_gate='element') - plain == width * heads * head_dim
  plain = flops(activation='swiglu')
  experts = flops(activation='swiglu', num_experts=4, experts_per_token=2)
  assert experts - plain == 3 * width * WIDE['mlp_width'] + width * 4
  # Chunks of 48, 48 and 32 tokens.
  pairs = LENGTH * (LENGTH + 1) // 2
  fewer = pairs - sum(n * (n + 1) // 2 for n in (48, 48, 32))
  less = flops() - flops(attention_chunk=48)
  assert less == pytest.approx(2 * heads * head_dim * fewer / LENGTH)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize(
  'window, sinks', [(None, 0), (1, 0), (3, 0), (3, 2), (3, 7), (9, 20)]
)
def test_visible_pairs(causal, window, sinks):
  def visible(q, k):
    near = window is None or abs(q - k) < window or k < sinks
    return near and (k <= q or not causal)

  for length in (1, 4, 9):
    want = itertools.starmap(visible, np.ndindex(length, length))
    got = throughput.visible_pairs(length, causal, window, sinks)
    assert got == sum(want)


def device(kind, num_cores=1, process_index=0, memory=None):
  return types.SimpleNamespace(
    device_kind=kind,
    num_cores=num_cores,
    process_index=process_index,
    memory_stats=lambda: memory,
  )


@pytest.mark.parametrize(
  'one, peak',
  [
    (device('TPU v4', num_cores=2), 275e12),
    (device('TPU v4'), 137.5e12),
    (device('TPU v3'), 61.5e12),
    (device('TPU v5', num_cores=2), 459e12),
    (device('TPU v5 lite'), 197e12),
    (device('NVIDIA A100-SXM4-80GB'), 312e12),
    (device('NVIDIA H100 80GB HBM3'), 989e12),
    (device('NVIDIA H100 PCIe'), 756e12),
    (device('NVIDIA A1000'), None),
    (device('TPU v99'), None),
    (jax.devices('cpu')[0], None),
  ],
  ids=lambda value: getattr(value, 'device_kind', None),
)
def test_utilization(one, peak):
  got = throughput.utilization(1e12, 0.5, [one] * 4)
  assert got == (peak and pytest.approx(0.5e12 / peak))


def test_utilization_of_a_device_that_is_not_known():
  known, other = device('TPU v4', num_cores=2), device('TPU v99')
  assert throughput.utilization(1, 1, [known, other]) is None


def test_memory():
  devices = [
    device('TPU v4', memory={'peak_bytes_in_use': 5}),
    device('TPU v4', memory={'peak_bytes_in_use': 7}),
    device('TPU v4', memory={'peak_bytes_in_use': 9}, process_index=1),
  ]
  assert throughput.peak_memory(devices) == 7
  assert throughput.peak_memory(devices[2:]) is None
  silent = device('?', memory={'bytes_in_use': 3})
  assert throughput.peak_memory([*devices, silent]) is None
  assert throughput.peak_memory(jax.devices('cpu')) is None
