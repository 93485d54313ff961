"""Attention's kernels for GPUs, in Pallas's Triton, as `fused` calls them.

A program has one block of queries, or of keys, of one head, and goes over what
these see in tiles. A tile's bias is gathered from rows of numbers by distance.
Gradients to these rows are a kernel's own: a program adds up all tiles that are
equally far from the diagonal and have the same anchors, without atomic
additions, so that sums are the same each time.

JAX 0.12 says that it will give up Pallas's Triton, in favour of a language of
Hopper's and later GPUs alone.
"""

from lengen_jax.attention.pallas_gpu.calls import forward
from lengen_jax.attention.pallas_gpu.calls import key_gradients
from lengen_jax.attention.pallas_gpu.calls import query_gradients
from lengen_jax.attention.pallas_gpu.plan import block_size
from lengen_jax.attention.pallas_gpu.plan import EXACT
from lengen_jax.attention.pallas_gpu.plan import head_width
from lengen_jax.attention.pallas_gpu.plan import key_copies
from lengen_jax.attention.pallas_gpu.plan import Plan

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
