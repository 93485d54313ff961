"""One program of a GPU kernel's grid, and the tiles that it computes."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax.attention import visibility
from lengen_jax.attention.pallas_gpu.plan import Plan

# A reference to a block of an array in memory.
Ref = Any


@dataclasses.dataclass(frozen=True)
class Program:
  """The plan and references of a program; None where a call has none.

  Queries are counted from the band's first, except in q. Shapes: n queries of
  the band, t queries or keys in a tile, h heads and R rows in a program; an
  axis is absent where there is one.
  """

  plan: Plan
  offset: Ref  # [1]
  k_lengths: Ref = None  # [R]
  q_segment_ids: Ref = None  # [R, Q]
  k_segment_ids: Ref = None  # [R, K]
  first_seen: Ref = None  # [1] or [R, tiles]; see `visibility.segment_blocks`
  last_seen: Ref = None
  first_apart: Ref = None  # [1], the lowest distance of a call, in tiles
  q: Ref = None  # [t, D], or whole rows [Q, h D] or [R, Q, D]
  k: Ref = None
  v: Ref = None
  dy: Ref = None  # [t, D], [n, h D] or [R, n, D]
  y: Ref = None  # [t, D]
  dq: Ref = None
  dk: Ref = None
  dv: Ref = None
  lse: Ref = None  # [t], [h, n] or [R, n]
  delta: Ref = None
  rows: Ref = None  # [h, A (T + 1)], divided by ln 2
  weights: Ref = None  # [n]
  dweights: Ref = None  # [t]
  dense: Ref = None  # [N, h, b, b]
  ddense: Ref = None  # [t, t]
  sums: Ref = None  # [kinds, t, t], sums of gradients of tiles

  @property
  def first_query(self) -> Array:
    """Index of the band's first query among the keys."""
    return self.plan.before + self.offset[0]

  def over_keys(
    self,
    first_q: Array,
    sizes: tuple[int, int],
    step: Callable[[bool, Array, Any], Any],
    carry: Any,
  ) -> Any:
    """Runs `step(masked, block, carry)` over tiles of visible keys.

    Args:
      first_q: first query of the tile.
      sizes: queries and keys in a tile.
      step: a function.
      carry: its state.
    """
    queries, keys = sizes
    first_q = self.first_query + first_q
    last_q = first_q + queries - 1
    plan = self.plan
    count = plan.blocks_k * plan.block // keys
    return self._over(
      visibility.some_blocks(plan.mask, first_q, last_q, keys, count),
      visibility.whole_blocks(plan.mask, first_q, last_q, keys, count),
      step,
      carry,
    )

  def over_queries(
    self,
    first_k: Array,
    n: int,
    step: Callable[[bool, Array, Any], Any],
    carry: Any,
  ) -> Any:
    """Runs `step(masked, block, carry)` over tiles of queries that see keys.

    Args:
      first_k: first key of the tile.
      n: queries, and keys, in a tile.
      step: a function.
      carry: its state.
    """
    plan = self.plan
    first, count = first_k - self.first_query, plan.length // n
    last = first + n - 1
    span = plan.mask, first, last, n, count
    whole = visibility.whole_blocks(*span, of_queries=True)
    if plan.mask.k_length is not None:
      end = jnp.where(first_k + n <= plan.mask.k_length, whole[1], 0)
      whole = whole[0], end
    return self._over(
      visibility.some_blocks(*span, of_queries=True),
      whole,
      step,
      carry,
    )

  def _over(
    self,
    needed: tuple[Array, Array],
    whole: tuple[visibility.Int, visibility.Int],
    step: Callable[[bool, Array, Any], Any],
    carry: Any,
  ) -> Any:
    """Runs `step(masked, block, carry)`; only tiles that need it are masked.

    Args:
      needed: first and last block with a visible pair.
      whole: first and end of the blocks without a masked pair.
      step: a function.
      carry: its state.
    """
    first, last = needed
    if self.first_seen is not None:
      first = jnp.maximum(first, self.first_seen[0])
      last = jnp.minimum(last, self.last_seen[0])
    end = last + 1

    def run(masked: bool, first: Array, end: Array, carry: Any) -> Any:
      return jax.lax.fori_loop(
        first, end, lambda block, carry: step(masked, block, carry), carry
      )

    if self.k_segment_ids is not None or self.k_lengths is not None:
      return run(True, first, end, carry)
    begin = jnp.clip(whole[0], first, end)
    stop = jnp.clip(whole[1], begin, end)
    if self.plan.mask.window is not None or self.plan.mask.causal:
      carry = run(True, first, begin, carry)
    carry = run(False, begin, stop, carry)
    return run(True, stop, end, carry)
