"""Attention in kernels: what is the same on TPUs and GPUs."""

from lengen_jax.attention.fused.attention import attend
from lengen_jax.attention.fused.attention import row

__all__ = ['attend', 'row']
