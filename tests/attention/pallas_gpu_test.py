"""Tests `lengen_jax/attention/pallas_gpu`: made for a GPU that is not there.

Numbers are compared in `fused_test.py`; here programs are translated to
Triton's language, as far as goes without a GPU.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention
from lengen_jax import encodings
from lengen_jax import partitioning
from lengen_jax.attention.pallas_gpu import calls

# JAX 0.12 says that it will give up Pallas's Triton, in favour of a language of
# Hopper's and later GPUs alone.
pytestmark = pytest.mark.filterwarnings('ignore:.*Pallas Triton backend')
H200 = jax.sharding.AbstractMesh(
  (1,),
  ('data',),
  abstract_device=jax.sharding.AbstractDevice('NVIDIA H200', None, 'gpu'),
)


def programs(spec, *, length=1024, heads=4, head_dim=64, **options):
  """Text of the gradients of a layer's attention, for a GPU."""
  groups = options.pop('key_heads', heads)
  packed = options.pop('packed', False)
  dtype = options.pop('dtype', jnp.bfloat16)
  lengths = options.pop('k_lengths', False)
  options = {'causal': True, 'bias_form': 'auto', **options}
  encoding = encodings.create(spec, num_heads=heads, head_dim=head_dim)
  p = jnp.arange(3)
  variables = jax.eval_shape(
    lambda: encoding.init(jax.random.key(0), p, p, method='bias')
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
  with jax.sharding.use_abstract_mesh(H200):
    traced = jax.jit(jax.grad(loss, (0, 1, 2, 5))).trace(*arguments)
    return traced.lower(lowering_platforms=('cuda',)).as_text()


@pytest.mark.parametrize(
  'spec, options, kernels',
  [
    # Forward, and gradients to queries and to keys.
    ('nope', {'head_dim': 80}, 3),
    ('kerple_log', {'key_heads': 2}, 4),
    # Two bands: exact and with anchors.
    ('fire', {}, 8),
    ('t5', {'packed': True, 'key_heads': 1, 'window': 700}, 4),
    ('fire', {'packed': True, 'head_dim': 128}, 4),
    ('sandwich', {'causal': False, 'head_dim': 256}, 3),
    ('fire', {'causal': False, 'head_dim': 256, 'k_lengths': True}, 8),
    ('fire', {'dtype': jnp.float32, 'length': 600}, 8),
    ('t5', {'dtype': jnp.float32, 'head_dim': 128}, 4),
  ],
)
def test_all_kernels_are_translated(monkeypatch, spec, options, kernels):
  monkeypatch.setattr(partitioning, 'is_active', lambda: False)
  text = programs(spec, **options)
  assert len(re.findall('xla.gpu.triton', text)) == kernels


def test_sums_along_diagonals():
  rng = np.random.default_rng(0)
  n, apart = 4, 3
  sums = rng.normal(size=(2, apart, n, n)).astype(np.float32)
  # What is before the first entry and after the last one is of no pair.
  r, c = np.indices((n, n))
  entry = np.arange(apart)[:, None, None] * n + r - c
  inside = (entry >= 0) & (entry < (apart - 1) * n)
  want = np.zeros((2, (apart - 1) * n + 1), np.float32)
  for row in range(2):
    np.add.at(want[row], entry[inside], sums[row][inside])
  np.testing.assert_allclose(
    calls.by_distance(calls.along_diagonals(jnp.array(sums))),
    want,
    rtol=1e-5,
    atol=1e-6,
  )
