"""Attention in kernels, compiled for real TPUs ahead of time.

No TPU is needed; run by `make test-aot`.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings
from lengen_jax.training import ahead_of_time, pods, sharding
from lengen_jax.training import config as training_config

pytestmark = pytest.mark.aot
MIB = 2**20
CHIPS = {'v4': 'v4-2', 'v5e': 'v5e-1', 'v5p': 'v5p-2', 'v6e': 'v6e-1'}


def compiled_gradients(
  chip, spec, *, length, batch=1, heads=4, head_dim=64, **options
):
  """Gradients of one layer of attention to q, k, v and parameters."""
  options = {'causal': True, 'bias_form': 'auto', **options}
  groups = options.pop('key_heads', heads)
  packed = options.pop('packed', False)
  per_head = options.pop('per_head', False)
  encoding = encodings.create(spec, num_heads=heads, head_dim=head_dim)
  variables = jax.eval_shape(
    lambda: encoding.init(jax.random.key(0), method='bias_fn')
  )

  def loss(q, k, v, segment_ids, variables, p=None):
    y = attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(variables, method='bias_fn'),
      q_positions=p,
      k_positions=p,
      q_segment_ids=segment_ids if packed else None,
      k_segment_ids=segment_ids if packed else None,
      implementation='pallas',
      **options,
    )
    return y.astype(jnp.float32).sum()

  def array(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct((batch, length, *shape), dtype)

  layout = sharding.Layout.create(
    training_config.MeshConfig(),
    1,
    ahead_of_time.devices(pods.get(CHIPS[chip]))[:1],
  )
  jitted = jax.jit(
    jax.grad(loss, (0, 1, 2, 4, *[5] * per_head)),
    in_shardings=layout.whole,
    out_shardings=layout.whole,
  )
  k = array(groups, head_dim)
  arrays = [array(heads, head_dim), k, k, array(dtype=jnp.int32), variables]
  if per_head:
    arrays.append(array(heads, dtype=jnp.float32))
  with layout.scope():
    return jitted.lower(*arrays).compile()


@pytest.mark.parametrize('chip, head_dim', [('v5p', 128), ('v6e', 64)])
def test_strips_compile(chip, head_dim):
  compiled = compiled_gradients(
    chip, 'kerple_log', length=1024, batch=8, head_dim=head_dim
  )
  assert compiled.as_text().count('tpu_custom_call') >= 3


# For v4 see `test_memory`.
@pytest.mark.parametrize('chip', ['v5e', 'v6e'])
def test_anchors_compile(chip):
  compiled = compiled_gradients(chip, 'fire', length=1024, batch=2, heads=2)
  assert compiled.as_text().count('tpu_custom_call') >= 9


@pytest.mark.parametrize(
  'chip, spec, options',
  [
    ('v4', 't5', {'packed': True, 'key_heads': 1, 'window': 700}),
    (
      'v5e',
      'kerple_log',
      {'packed': True, 'batch': 8, 'length': 16384, 'key_heads': 1},
    ),
    ('v4', 'fire', {'bias_form': 'exact', 'batch': 8, 'heads': 2}),
    ('v4', 'fire', {'packed': True, 'head_dim': 32}),
    ('v5e', 'fire', {'packed': True}),
    ('v5e', 'sandwich', {'causal': False, 'head_dim': 256}),
    ('v5e', 'nope', {'head_dim': 80}),
    ('v4', 'linear', {'per_head': True, 'key_heads': 1, 'head_dim': 128}),
    ('v5e', 'linear', {'per_head': True, 'packed': True, 'batch': 2}),
  ],
)
def test_options_compile(chip, spec, options):
  compiled_gradients(chip, spec, **{'length': 1024, **options})


def test_keys_of_grouped_heads_are_not_copied():
  def temporary(key_heads):
    compiled = compiled_gradients(
      'v5e',
      'kerple_log',
      length=2**14,
      heads=16,
      key_heads=key_heads,
      head_dim=128,
    )
    return compiled.memory_analysis().temp_size_in_bytes

  # Copies of all keys, and parts of their gradients, are 64 MiB each.
  assert temporary(16) - temporary(2) > 96 * MIB


@pytest.mark.parametrize(
  'bias_form, length, mib',
  [('exact', 2**15, 512), ('auto', 2**13, 128)],
)
def test_memory(bias_form, length, mib):
  compiled = compiled_gradients(
    'v4', 'fire', length=length, heads=12, bias_form=bias_form
  )
  if bias_form == 'auto':
    # Bands of each kind: anchors within a block, and several blocks apart.
    assert compiled.as_text().count('tpu_custom_call') >= 9
  # All pairs of a head alone are 4 GiB at 2**15 tokens.
  assert compiled.memory_analysis().temp_size_in_bytes <= mib * MIB
  shapes = re.findall(r'(?:f32|bf16|s32|pred)\[([\d,]+)\]', compiled.as_text())
  largest = max(np.prod([int(n) for n in shape.split(',')]) for shape in shapes)
  assert length * 12 * 64 <= largest < length * length / 8
