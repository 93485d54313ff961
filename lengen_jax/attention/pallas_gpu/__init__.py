"""Attention kernels for GPUs, in Pallas Triton; `pallas` calls them.

A program computes one block of queries, or of keys, of one head, in tiles of
what these see. A tile's bias is gathered from rows of numbers by distance. A
kernel of its own computes gradients of these rows: a program adds up all tiles
that are equally far from the diagonal and have the same anchors, without atomic
additions, so that sums are deterministic.

JAX 0.12 announces the removal of Pallas Triton, in favour of a language for
Hopper and later GPUs alone.
"""

from lengen_jax.attention.pallas_gpu import calls, plan

__all__ = ['calls', 'plan']
