"""Where the kernels place the anchors of FIRE's bias.

FIRE's bias varies with the query's position i as a function of log i, so that
anchors are i / 4 apart or less, in ranges of queries: a row of n tokens has
about log n of them, and tables of n log n numbers per head. `bias_forms` has
measurements, and why `blockwise` places anchors more densely.
"""

from typing import NamedTuple

from lengen_jax.attention.fused import plan as plans


class QueryRange(NamedTuple):
  """Consecutive queries whose bias is computed in the same way."""

  form: str  # 'dense', with a bias per query, or 'anchored'.
  block: int  # Tokens in a block.
  first: int  # First query.
  end: int  # One past the last query.
  spacing: int  # Queries from one anchor to the next.


def query_ranges(
  length: int, block: int, exact: int, two_sided: bool = False
) -> list[QueryRange]:
  """Returns the ranges of a row.

  The first `exact` queries have an exact bias. If `two_sided`, keys after the
  query are visible. Anchors are i / 8 apart instead of i / 4 for queries before
  `plan.BLOCK` and if `two_sided`, where the bias is further from linear. Each
  range costs compilation time, and memory for its anchors at all of their
  distances.
  """
  first = min(exact, length)
  found = [QueryRange('dense', first, 0, first, 1)]
  while first < length:
    end = (2 if plans.BLOCK <= first < 8 * plans.BLOCK else 4) * first
    parts = 8 if two_sided or first < plans.BLOCK else 4
    size, spacing = min(block, first), first // parts
    found.append(QueryRange('anchored', size, first, min(end, length), spacing))
    first = end
  return found
