"""Attention in kernels for TPUs."""

from lengen_jax.attention.pallas_tpu.bias import row
from lengen_jax.attention.pallas_tpu.fused import attend

__all__ = ['attend', 'row']
