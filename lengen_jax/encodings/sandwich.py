"""Sandwich: the inner product of sinusoidal embeddings as a bias."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.encodings import base
from lengen_jax.types import Array, Params


class Sandwich(base.Encoding):
  """Inner products of sinusoids, weighted by head.

  b_h(i, j) = (H / 8h) sum_{k < dbar/2} cos((i - j) 10000^(-2k/dbar)) for heads
  h = 1 .. H. No parameters.

  Source: Chi et al. (2023), arXiv:2212.10356, eq. 5 and appendix E.
  """

  dbar: int = 128

  formula = 'b = H/(8h) sum_k cos((i - j) 10000^(-2k/dbar)), h = 1 .. H'
  source = 'arXiv:2212.10356'
  beyond = 'the sum of cosines keeps falling, slowly'
  ranges = {'dbar': 'even and >= 2'}

  def tile_params(self) -> base.NamedLeaves | None:
    ratio = self.num_heads / (8.0 * np.arange(1, self.num_heads + 1))
    return {'ratio': (jnp.asarray(ratio, jnp.float32), ('heads',))}

  @nn.nowrap
  def strip(
    self, params: Params, distances: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    frequencies = 10000.0 ** (-np.arange(0, self.dbar, 2) / self.dbar)
    halves = jnp.stack(
      [
        sum(
          (jnp.cos(distances * frequency) for frequency in half.tolist()),
          start=jnp.zeros_like(distances),
        )
        for half in (frequencies[::2], frequencies[1::2])
      ]
    )
    # XLA would compute the sum again for each head and row of a batch if it was
    # not an operand of a matrix product.
    ratio_Hx2 = jnp.stack([params['ratio']] * 2, axis=1)
    return jnp.einsum('hn,n...->h...', ratio_Hx2, halves, precision='highest')
