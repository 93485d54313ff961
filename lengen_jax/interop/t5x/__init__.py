"""Encodings and positions inside models written for T5X.

`RelativePositionBiases` replaces the class of that name in T5X's example
networks and in Flaxformer. `MultiHeadDotProductAttention` replaces T5X's class
of that name. It also rotates queries and keys, and computes one row of the bias
per decoding step instead of all rows. These modules do not import T5X.
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
