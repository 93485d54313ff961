"""Tests that attention's kernels lower for chips that are absent.

`fused_test.py` compares numbers; here kernels are translated for TPUs and GPUs.
"""

import re

import jax
import jax.numpy as jnp
import pytest

from lengen_jax import attention, encodings, partitioning

# JAX 0.12 announces the removal of Pallas Triton.
pytestmark = pytest.mark.filterwarnings('ignore:.*Pallas Triton backend')
CHIPS = {
  'cuda': jax.sharding.AbstractDevice('NVIDIA H200', None, 'gpu'),
  'tpu': jax.sharding.AbstractDevice('TPU v5 lite', 1, 'tpu'),
}


def programs(spec, chip, *, length=1024, heads=4, head_dim=64, **options):
  """Returns the text of the gradients of attention, lowered for a chip."""
  groups = options.pop('key_heads', heads)
  packed = options.pop('packed', False)
  dtype = options.pop('dtype', jnp.bfloat16)
  lengths = options.pop('k_lengths', False)
  options = {'causal': True, 'bias_form': 'auto', **options}
  encoding = encodings.create(spec, num_heads=heads, head_dim=head_dim)
  variables = jax.eval_shape(
    lambda: encoding.init(jax.random.key(0), method='bias_fn')
  )

  def loss(q, k, v, segment_ids, numbers, variables):
    y = attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(
        variables, method='bias_fn', bidirectional=not options['causal']
      ),
      q_segment_ids=segment_ids if packed else None,
      k_segment_ids=segment_ids if packed else None,
      q_offset=numbers[0],
      k_lengths=numbers if lengths else None,
      implementation='pallas',
      **options,
    )
    return y.astype(jnp.float32).sum()

  def array(*shape, dtype=dtype):
    return jax.ShapeDtypeStruct((2, length, *shape), dtype)

  k = array(groups, head_dim)
  arguments = (
    array(heads, head_dim),
    k,
    k,
    array(dtype=jnp.int32),
    jax.ShapeDtypeStruct((2,), jnp.int32),
    variables,
  )
  mesh = jax.sharding.AbstractMesh((1,), ('data',), abstract_device=CHIPS[chip])
  with jax.sharding.use_abstract_mesh(mesh):
    traced = jax.jit(jax.grad(loss, (0, 1, 2, 5))).trace(*arguments)
    return traced.lower(lowering_platforms=(chip,)).as_text()


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'spec, options, kernels',
  [
    # Forward, and gradients to queries and to keys.
    ('nope', {'head_dim': 80}, 3),
    ('kerple_log', {'key_heads': 2, 'dtype': jnp.float32, 'head_dim': 128}, 4),
    ('t5', {'packed': True, 'key_heads': 1, 'window': 700}, 4),
    ('fire', {'packed': True, 'head_dim': 128}, 4),
    ('sandwich', {'causal': False, 'head_dim': 256}, 3),
    # Two ranges of queries: exact and with anchors.
    ('fire', {'causal': False, 'head_dim': 256, 'k_lengths': True}, 8),
    ('fire', {'dtype': jnp.float32, 'length': 600}, 8),
  ],
)
def test_kernels_lower_for_gpus(monkeypatch, spec, options, kernels):
  monkeypatch.setattr(partitioning, 'is_active', lambda: False)
  text = programs(spec, 'cuda', **options)
  assert len(re.findall('xla.gpu.triton', text)) == kernels


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'spec, options, kernels',
  [
    # Bands: exact, and anchored at two spacings.
    ('fire', {'causal': False, 'k_lengths': True}, 9),
    ('kerple_log', {'length': 512}, 3),
    ('t5', {'packed': True, 'key_heads': 1, 'window': 700}, 3),
    ('fire', {'packed': True, 'head_dim': 80}, 3),
  ],
)
def test_kernels_lower_for_tpus(monkeypatch, spec, options, kernels):
  monkeypatch.setattr(partitioning, 'is_active', lambda: False)
  assert programs(spec, 'tpu', **options).count('tpu_custom_call') == kernels
