"""Attention: one entry point, any encoding."""

from lengen_jax.attention import scaling
from lengen_jax.attention.checks import MAX_REACH
from lengen_jax.attention.dot_product import dot_product_attention
from lengen_jax.attention.encoded import rotated, with_encoding

__all__ = [
  'MAX_REACH',
  'dot_product_attention',
  'rotated',
  'scaling',
  'with_encoding',
]
