"""Where the kernels place the anchors of FIRE's bias.

FIRE's bias varies with the query's position i as a function of log i, so that
anchors are i / 4 apart or less, in bands of queries: a row of n tokens has
about log n of them, and tables of n log n numbers per head. `bias_forms` has
measurements, and why `blockwise` places anchors more densely.
"""

from typing import NamedTuple

from jax import Array
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax.attention import bias_forms
from lengen_jax.attention.fused import plan as plans


class Band(NamedTuple):
  """Consecutive queries whose bias is computed in the same way."""

  form: str  # 'dense', with a bias per query, or 'anchored'.
  block: int  # Tokens in a block.
  first: int  # First query.
  end: int  # One past the last query.
  spacing: int  # Queries from one anchor to the next.


def bands(
  length: int, block: int, exact: int, two_sided: bool = False
) -> list[Band]:
  """Returns the bands of a row.

  Anchors are i / 8 apart instead of i / 4 for few queries, or where keys after
  the query are visible, whose bias is further from linear. Each band costs
  compilation time, and memory for its anchors at all of their distances.
  The first `exact` queries have an exact bias. Keys after the query are visible
  if `two_sided`.
  """
  first = min(exact, length)
  found = [Band('dense', first, 0, first, 1)]
  while first < length:
    end = (2 if plans.BLOCK <= first < 8 * plans.BLOCK else 4) * first
    parts = 8 if two_sided or first < plans.BLOCK else 4
    size, spacing = min(block, first), first // parts
    found.append(Band('anchored', size, first, min(end, length), spacing))
    first = end
  return found


def row(
  bias: encodings.BiasFn, i: int, distances_N: Array, exact: int
) -> Array:
  """Returns the bias of query i at position i as kernels do, `[H, N]`."""
  band = bands(i + 1, plans.BLOCK, exact, bias.bidirectional)[-1]
  if band.form == 'dense':
    return bias.rows(jnp.array([i]), distances_N)[0]
  index = i - band.first
  before = band.first + index // band.spacing * band.spacing
  near, far = bias.rows(jnp.array([before, before + band.spacing]), distances_N)
  weight = bias_forms.interpolation_weights(
    bias, jnp.array([band.first]), jnp.array([index]), band.spacing
  )[0, 0]
  if bias.bidirectional:
    linear = (i - before) / band.spacing
    weight = jnp.where(distances_N < 0, linear, weight)[None]
  return near + weight * (far - near)
