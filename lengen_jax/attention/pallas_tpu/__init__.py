"""Attention's kernels for TPUs, as `fused` calls them.

A tile's bias is made once per head, for several rows of the batch. Heads of
fewer than 128 numbers share a vector register's 128 lanes, as they lie in
memory: the lanes of other heads are set to 0 in one factor of each product.

Shapes beside the usual: b tokens in a block of queries or keys, W lanes of the
heads that a program computes.
"""

from lengen_jax.attention.pallas_tpu.calls import forward
from lengen_jax.attention.pallas_tpu.calls import key_gradients
from lengen_jax.attention.pallas_tpu.calls import query_gradients
from lengen_jax.attention.pallas_tpu.plan import block_size
from lengen_jax.attention.pallas_tpu.plan import EXACT
from lengen_jax.attention.pallas_tpu.plan import head_width
from lengen_jax.attention.pallas_tpu.plan import key_copies
from lengen_jax.attention.pallas_tpu.plan import Plan

__all__ = [
  'EXACT',
  'Plan',
  'block_size',
  'forward',
  'head_width',
  'key_copies',
  'key_gradients',
  'query_gradients',
]
