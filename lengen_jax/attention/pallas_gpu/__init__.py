"""Attention kernels for GPUs, in Pallas Triton; `pallas` calls them.

A program computes one block of queries, or of keys, of one head, in tiles. The
bias of a tile is gathered from rows of numbers by distance. A separate kernel
computes the gradients of these rows: each program sums all tiles at the same
distance from the diagonal with the same anchors. Without atomic additions, the
sums are deterministic.

JAX 0.12 announces the removal of Pallas Triton in favor of a language for
Hopper and later GPUs.
"""

from typing import TYPE_CHECKING

from lengen_jax import submodules
from lengen_jax.attention.pallas_gpu import plan

__all__ = ['calls', 'plan']
if TYPE_CHECKING:
  from lengen_jax.attention.pallas_gpu import calls
else:
  # Only GPUs need Pallas Triton.
  __getattr__ = submodules.lazy(__name__)
