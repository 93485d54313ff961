"""T5's relative bias: one learned number per head and bucket of distances."""

import math

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.encodings import base
from lengen_jax.types import Array, Params

_AXES = ('relpos_buckets', 'heads')


class T5(base.Encoding):
  """Bucketed relative bias: b_h(i, j) = table[bucket(i - j), h].

  In causal attention, each bucket of the first half has one distance 0, 1, ...
  The other half is spaced logarithmically. The last bucket begins somewhat
  below `max_distance` and has all longer distances. In bidirectional attention,
  each direction has half of the buckets. A fractional distance is rounded down.

  Source: Raffel et al. (2020), arXiv:1910.10683, section 2.1; buckets as in
  the official code, with the boundaries computed as integers on the host,
  because a float32 logarithm on an accelerator may round to either side.
  """

  num_buckets: int = 32
  max_distance: int = 128

  formula = 'b = table[bucket(i - j), h], buckets logarithmic from N/2 on'
  source = 'arXiv:1910.10683'
  parameters = 'table [num_buckets, H]'
  beyond = 'all share the last bucket'

  ranges = {'num_buckets': 'even and >= 4'}

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.max_distance <= self.num_buckets // 2:
      raise errors.SpecError(
        f'max_distance={self.max_distance} must exceed num_buckets / 2 = '
        f'{self.num_buckets // 2}'
      )

  def setup(self) -> None:
    init, shape = (
      nn.initializers.normal(0.02),
      (self.num_buckets, self.num_heads),
    )
    self.table = self.make_param(self, 'table', init, shape, _AXES)

  def tile_params(self) -> base.NamedLeaves | None:
    return {'table': (self.table, _AXES)}

  @nn.nowrap
  def strip(
    self, params: Params, distances: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    buckets = self.num_buckets // (2 if bidirectional else 1)
    reach = jnp.abs(distances) if bidirectional else jnp.maximum(distances, 0)
    bucket = jnp.zeros(distances.shape, jnp.int32)
    for threshold in thresholds(buckets, self.max_distance):
      bucket += reach >= threshold
    if bidirectional:
      bucket += buckets * (distances < 0)
    return jnp.moveaxis(params['table'][bucket], -1, 0)


def thresholds(num_buckets: int, max_distance: int) -> list[int]:
  """Returns the least distance of each bucket but the first, for one direction.

  Distances r below e = num_buckets / 2 have a bucket each; from there on the
  bucket is e + floor(ln(r/e) / ln(max_distance/e) (num_buckets - e)), at most
  num_buckets - 1. A boundary is the least integer r with
  (r/e)^(num_buckets - e) >= (max_distance/e)^(bucket - e), in integers.
  """
  exact = num_buckets // 2
  spread = num_buckets - exact
  least = list(range(1, exact + 1))
  for step in range(1, spread):
    # (r / e)^spread >= (X / e)^step  <=>  r^spread >= X^step e^(spread - step)
    bound = max_distance**step * exact ** (spread - step)
    r = int(2 ** (math.log2(bound) / spread))
    while r**spread < bound:
      r += 1
    while r > 1 and (r - 1) ** spread >= bound:
      r -= 1
    least.append(r)
  return least
