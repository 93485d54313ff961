"""Attention kernels for TPUs; `pallas` calls them.

A tile's bias is computed once per head, for several rows of the batch. Heads
with head_dim below 128 share the 128 lanes of a vector register, in memory
order. In each matrix product, the lanes of other heads are 0 in one operand.

Additional shapes: b tokens in a block of queries or keys, W lanes of the
heads that a program computes.
"""

from lengen_jax.attention.pallas_tpu import calls, plan

__all__ = ['calls', 'plan']
