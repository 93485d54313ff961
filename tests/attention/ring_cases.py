"""Attention over split rows beside one device: cases for `ring_test.py`.

Run as a program with a number of devices, it prints the errors as JSON.
"""

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import attention, encodings, positions
from lengen_jax.attention import blockwise, ring
from lengen_jax.training import config as training_config
from lengen_jax.training import sharding

B, H, G, D = 2, 4, 2, 8
# Blocks with a bias per pair, and without one. Half of a device's tokens, a
# piece in zigzag order, are whole blocks of the former only.
BLOCKS = 8, 16
TOKENS = 48
# Encoding, or None, and options of attention; those in capitals are below.
CASES = {
  'window': (None, {'window': 20}),
  'bidirectional window': (None, {'causal': False, 'window': 20}),
  'sinks': ('rope', {'window': 20, 'sinks': 2}),
  'sink logits, logit scale': (
    'alibi',
    {'SINK_LOGITS': True, 'LOGIT_SCALE': True},
  ),
  'fire, anchored': ('fire', {'bias_form': 'anchored'}),
  'fire, packed': ('fire', {'PACKED': True}),
  'bfloat16': ('kerple_log', {'DTYPE': jnp.bfloat16}),
  't5, bidirectional, lengths': ('t5', {'causal': False, 'LENGTHS': True}),
  'linear, per head, sink logits': (
    'linear(learned=True)',
    {'PER_HEAD': True, 'SINK_LOGITS': True},
  ),
  'distances, logit cap': (
    'kerple_log',
    {'DISTANCES': True, 'logit_cap': 5.0},
  ),
  'shaw': ('shaw(left=8, right=8)', {}),
  'bands': ('self_extend(window=12, group=3)', {}),
}


def losses(spec, options, length):
  """Returns a function to a loss and its gradients, and its arguments."""
  keys = jax.random.split(jax.random.key(0), 8)
  options = {'causal': True, **options}
  dtype = options.pop('DTYPE', jnp.float32)
  arguments = {
    name: jax.random.normal(key, (B, length, heads, D), dtype)
    for name, key, heads in zip('qkvw', keys, (H, G, G, H), strict=False)
  }
  w = arguments.pop('w')
  index = jnp.arange(length, dtype=jnp.int32)[None]
  own = None
  if options.pop('PACKED', False):
    ids = jax.random.bernoulli(keys[4], 0.05, (B, length)).cumsum(1) + 1
    ids = ids.astype(jnp.int32)
    options |= {'q_segment_ids': ids, 'k_segment_ids': ids}
    own = positions.segment_positions(ids)
  if options.pop('DISTANCES', False):
    own = positions.create(
      f"randomized(max_position={3 * length}, mode='distances')"
    )(
      jnp.tile(index, (B, 1)),
      lengths=jnp.full((B, 1), length),
      rng=keys[5],
      train=True,
    )
  if options.pop('PER_HEAD', False):
    arguments['p'] = jax.random.uniform(keys[5], (B, length, H)).cumsum(1)
  if options.pop('SINK_LOGITS', False):
    arguments['sink_logits'] = jnp.linspace(-1.0, 1.0, H)
  if options.pop('LOGIT_SCALE', False):
    scale = jax.random.uniform(keys[6], (B, length)) + 0.5
    arguments['logit_scale'] = scale
  if options.pop('LENGTHS', False):
    options['k_lengths'] = jnp.array([length - 3, length // 2])
  encoding = encodings.create(spec or 'nope', num_heads=H, head_dim=D)

  def attend(module, q, k, v, p=None, **arrays):
    p = own if p is None else p
    return attention.with_encoding(
      module,
      q,
      k,
      v,
      q_positions=p,
      k_positions=p,
      implementation='blockwise',
      **arrays,
      **options,
    )

  arguments['variables'] = encoding.init(jax.random.key(1), method='bias_fn')

  def loss(arguments):
    arrays = dict(arguments)
    variables = arrays.pop('variables')
    y = encoding.apply(variables, **arrays, method=attend)
    return (y.astype(jnp.float32) * w).sum(), y

  return jax.jit(jax.value_and_grad(loss, has_aux=True)), arguments


def error(name, devices):
  """Returns the largest errors relative to the largest entry of an array.

  The first result is that of the output and of gradients of arrays of tokens,
  the second that of gradients of parameters, which are sums over all pairs. The
  third is the number of ring steps.
  """
  spec, options = CASES[name]
  layout = sharding.Layout.create(
    training_config.MeshConfig(sequence=devices), B, jax.devices()[:devices]
  )
  block_size, choose, chosen = blockwise.block_size, ring.choose, []
  blockwise.block_size = lambda bias, head_dim: BLOCKS[bias is None]
  ring.choose = lambda *args: chosen.append(choose(*args)) or chosen[-1]
  try:
    length = TOKENS * devices
    gradients, arguments = losses(spec, options, length)
    (_, y), of_loss = gradients(arguments)
    want = {'y': y, **of_loss}
    with layout.scope():
      gradients, arguments = losses(spec, options, length)
      (_, y), of_loss = gradients(arguments)
      got = {'y': y, **of_loss}
  finally:
    blockwise.block_size, ring.choose = block_size, choose

  def largest(want, got):
    """Some gradients are 0 but for rounding."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    return abs(want - got).max() / max(abs(want).max(), 1.0)

  errors = jax.tree.map(largest, want, got)
  of_parameters = max(jax.tree.leaves(errors.pop('variables')), default=0.0)
  steps = max(one.steps if one else 0 for one in chosen)
  return max(errors.values()), of_parameters, steps


if __name__ == '__main__':
  count = int(sys.argv[1])
  os.environ['JAX_PLATFORMS'] = 'cpu'
  jax.config.update('jax_num_cpu_devices', count)
  print(json.dumps({name: error(name, count) for name in CASES}))
