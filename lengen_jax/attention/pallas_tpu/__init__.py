"""Attention kernels for TPUs; `pallas` calls them.

A tile's bias is computed once per head, for several rows of the batch. Heads
smaller than 128 share a vector register's 128 lanes, in memory order: the lanes
of other heads are set to 0 in one factor of each product.

Additional shapes: b tokens in a block of queries or keys, W lanes of the
heads that a program computes.
"""

from lengen_jax.attention.pallas_tpu import calls, plan

__all__ = ['calls', 'plan']
