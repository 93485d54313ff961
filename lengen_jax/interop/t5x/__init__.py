"""Encodings and positions inside models written for T5X.

`RelativePositionBiases` replaces the class of that name in T5X's example
networks and in Flaxformer. `MultiHeadDotProductAttention` replaces T5X's; it
also rotates queries and keys, and during decoding it computes one row of a bias
instead of all of them. Nothing here imports T5X.
"""

from lengen_jax.interop.t5x.attention import MultiHeadDotProductAttention
from lengen_jax.interop.t5x.biases import RelativePositionBiases
from lengen_jax.interop.t5x.params import AXES, param

__all__ = [
  'AXES',
  'MultiHeadDotProductAttention',
  'RelativePositionBiases',
  'param',
]
