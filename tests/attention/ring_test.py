"""Tests `lengen_jax/attention/ring.py`, on split rows beside one device."""

import json
import os
import pathlib
import subprocess
import sys

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention
from lengen_jax.attention import dot_product, ring
from tests.attention import ring_cases


def check(name, error, of_parameters, steps, devices):
  # Outputs and gradients in bfloat16 are rounded.
  rounding = 1e4 if 'bfloat16' in name else 1.0
  assert error <= 1e-6 * rounding, name
  assert of_parameters <= 1e-5 * rounding, name
  windowed = name == 'window'
  # 48 tokens on each device: a window of 20 ends on the one before.
  assert steps == (2 if windowed else devices), name


def test_gradients_are_those_of_one_device():
  check('window', *ring_cases.error('window', 2), 2)


def test_rows_over_several_axes_of_a_mesh(assert_close):
  axes, auto = ('x', 'y'), jax.sharding.AxisType.Auto
  mesh = jax.make_mesh((2, 1), axes, (auto,) * 2, devices=jax.devices()[:2])
  rules = [('length', axes), ('batch', None), ('heads', None)]
  q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 64, 2, 8))

  def attend(q, k, v):
    return attention.dot_product_attention(
      q, k, v, causal=True, implementation='blockwise'
    )

  want = attend(q, k, v)
  with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
    assert_close(jax.jit(attend)(q, k, v), want, 1e-5)


@pytest.mark.slow
def test_on_more_devices():
  devices = 4
  done = subprocess.run(
    [sys.executable, '-m', 'tests.attention.ring_cases', str(devices)],
    env={**os.environ, 'PYTHONPATH': str(pathlib.Path(__file__).parents[2])},
    capture_output=True,
    text=True,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  found = json.loads(done.stdout.splitlines()[-1])
  assert found.keys() == ring_cases.CASES.keys()
  for name, results in found.items():
    check(name, *results, devices)


@pytest.mark.parametrize('devices', [2, 3, 4, 8])
def test_zigzag_order(devices):
  """Chunks d and 2 P - 1 - d are on device d, and visible pairs are even."""
  chunks = np.arange(2 * devices).reshape(devices, 2, 1)
  around = ring.Ring('sequence', devices, devices, 2)

  def over_devices(x, back):
    return jax.vmap(
      lambda x: ring._zigzag(around, x, back), axis_name='sequence'
    )(x)

  there = over_devices(jnp.asarray(chunks)[:, None], False)
  for device, own in enumerate(np.asarray(there).reshape(devices, 2)):
    assert sorted(own) == [device, 2 * devices - 1 - device]
  # Tokens of each device, in chunks of 8, and the visible pairs of each step.
  tokens = (
    np.asarray(there).reshape(devices, 2, 1) * 8 + np.arange(8)
  ).reshape(devices, 16)
  for step in range(devices):
    keys = np.roll(tokens, step, axis=0)
    visible = tokens[:, :, None] >= keys[:, None]
    pairs = visible.sum((1, 2))
    assert pairs.min() >= 0.95 * pairs.max(), step
    # Tiles of 4 queries and 4 keys with a visible pair.
    tiles = visible.reshape(devices, 4, 4, 4, 4).any((2, 4)).sum((1, 2))
    assert tiles.min() >= 0.95 * tiles.max(), step
  np.testing.assert_array_equal(over_devices(there, True)[:, 0], chunks)


@pytest.mark.parametrize(
  'window, sinks, steps',
  [(1, 0, 1), (2, 0, 2), (49, 0, 2), (50, 0, 3), (20, 2, 4), (999, 0, 4)],
)
def test_steps_of_windows(monkeypatch, window, sinks, steps):
  """Four devices have 48 tokens each."""
  found = []
  monkeypatch.setitem(
    dot_product.IMPLEMENTATIONS, 'blockwise', lambda call: found.append(call)
  )
  q, k, v = np.ones((3, 1, 4 * 48, 2, 8), np.float32)
  attention.dot_product_attention(
    *(q, k, v),
    causal=True,
    window=window,
    sinks=sinks,
    implementation='blockwise',
  )
  assert ring.choose(found[0], 'sequence', 4).steps == steps
