"""Attention kernels for GPUs, in Pallas Triton; `pallas` calls them.

A program computes one block of queries, or of keys, of one head, in tiles of
what these see. A tile's bias is gathered from rows of numbers by distance. A
kernel of its own computes gradients of these rows: a program adds up all tiles
that are equally far from the diagonal and have the same anchors, without atomic
additions, so that sums are deterministic.

JAX 0.12 announces the removal of Pallas Triton, in favour of a language for
Hopper and later GPUs alone.
"""

from lengen_jax.attention.pallas_gpu.calls import (
  forward,
  key_gradients,
  query_gradients,
)
from lengen_jax.attention.pallas_gpu.plan import (
  block_size,
  EXACT,
  head_width,
  key_copies,
  Plan,
)

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
