"""One program of a TPU kernel's grid, and which of its tiles it computes."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
import jax.numpy as jnp

from lengen_jax.attention import visibility
from lengen_jax.attention.fused.plan import LANES
from lengen_jax.attention.pallas_tpu.plan import Plan

# A reference to a block of an array in vector or scalar memory.
Ref = Any


@dataclasses.dataclass(frozen=True)
class Program:
  """The tile of a program, and its references; None where a call has none.

  If `keys_inside`, keys are the last axis of the grid, and the rows of a tile
  are queries; otherwise the rows are keys. Shapes: R rows of the batch and h
  heads in a program, b tokens in a block, W lanes, A anchors.
  """

  plan: Plan
  keys_inside: bool
  i: Array  # Block of queries.
  j: Array  # Block of keys.
  is_first: Array  # Whether the tile is the first of its block of outputs.
  is_last: Array
  first_row: Array  # Of the batch.
  # In scalar memory; see `Inputs` and `visibility.segment_blocks`.
  offset: Ref
  k_lengths: Ref = None  # [B]
  first_seen: Ref = None  # [B N], N outer blocks
  last_seen: Ref = None
  weights_vary: Ref = None  # [blocks_q]
  # Inputs and outputs.
  q: Ref = None  # [R, b, W]
  k: Ref = None
  v: Ref = None
  dy: Ref = None
  y: Ref = None
  dq: Ref = None
  dk: Ref = None
  dv: Ref = None
  lse: Ref = None  # [R, h, 1, b]
  delta: Ref = None
  q_segment_ids: Ref = None  # [R, 1, b]
  k_segment_ids: Ref = None
  dense: Ref = None  # [1, 1, h, b, b]
  ddense: Ref = None
  near: Ref = None  # [1, 1, h, A, b], first half of the tile's distances
  far: Ref = None  # The second half.
  weights: Ref = None  # [1, 1, b]
  key_values: Ref = None  # [R, h, 1, b]
  key_errors: Ref = None
  lines: Ref = None  # [R, h, 1, LANES]
  dkey_bias: Ref = None  # [R, h, 1, b]
  drows: Ref = None  # [1, 1, h, A, blocks, b]
  dweights: Ref = None  # [1, h, 1, b]
  # Scratch; the last axis LANES holds the same number in all lanes.
  largest: Ref = None  # [R, h, b, LANES], running maximum of the logits
  total: Ref = None  # [R, h, b, LANES], running sum of exponentials
  sum: Ref = None  # [R, b, W], of y or dq
  lse_columns: Ref = None  # [R, h, b, LANES]
  delta_columns: Ref = None
  dk_sum: Ref = None  # [R, b, W]
  dv_sum: Ref = None
  bias: Ref = None  # [h, b, b]
  dbias: Ref = None
  strips: Ref = None  # [h, A, 2, LANES, b], shifted halves of distances
  distances: Ref = None  # [A, 2 b], near and far of a head
  ddistances: Ref = None
  weight_columns: Ref = None  # [b, LANES]
  ready_for: Ref = None  # [1], the inner block that strips are ready for

  @property
  def inner(self) -> Array:
    """Block on the last axis of the grid."""
    return self.j if self.keys_inside else self.i

  @property
  def outer(self) -> Array:
    """Block on the axis before."""
    return self.i if self.keys_inside else self.j

  @property
  def first_q(self) -> Array:
    """Index among the keys of the first query of this program's block."""
    return (self.plan.first + self.i) * self.plan.block + self.offset[0]

  def each_row(self, of_row: Callable[[Array], None]) -> None:
    """Runs `of_row` for each row of the program with visible segments."""

    @pl.loop(0, self.plan.rows)
    def _(row: Array) -> None:
      if self.first_seen is None:
        of_row(row)
        return
      first, last = self._seen_range(self.first_row + row, 1)
      meets = (first <= self.inner) & (self.inner <= last)
      pl.when(meets)(lambda: of_row(row))

  def _seen_range(self, first_row: Array, rows: int) -> tuple[Array, Array]:
    seen, plan = (self.first_seen, self.last_seen), self.plan
    return seen_range(plan, seen, first_row, rows, self.outer, self.keys_inside)

  def only(self, x: Array, head: int) -> Array:
    """Returns x in the lanes of a head, and 0 in others."""
    return x if self.plan.heads == 1 else self.put(jnp.zeros_like(x), x, head)

  def put(self, before: Array | None, x: Array, head: int) -> Array:
    """Returns x in the lanes of a head, and `before` in others."""
    if before is None:
      return x
    lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    own = jax.lax.div(lane, jnp.int32(self.plan.head_dim)) == head
    return jnp.where(own, x, before)

  def when_visible(self, tile: Callable[[bool], None]) -> None:
    """Runs `tile(masked)`, unless every pair of the tile is masked.

    `masked` is False if every pair is visible.
    """
    b, first_k = self.plan.block, self.j * self.plan.block
    tile_of = self.first_q, self.first_q + b - 1, first_k, first_k + b - 1
    some, every = visibility.tile_visibility(self.plan.mask, *tile_of)
    if self.k_segment_ids is not None or self.k_lengths is not None:
      every = False
    if self.first_seen is not None:
      first, last = self._seen_range(self.first_row, self.plan.rows)
      some &= (first <= self.inner) & (self.inner <= last)
    if isinstance(every, bool):
      pl.when(some)(lambda: tile(not every))
      return
    hidden = jnp.logical_not(every)
    pl.when(jnp.logical_and(some, every))(lambda: tile(False))
    pl.when(jnp.logical_and(some, hidden))(lambda: tile(True))

  def masked(self, s_bxb: Array, row: Array, value: float) -> Array:
    """Returns logits with `value` where pairs are not visible."""
    b, q_axis = self.plan.block, 0 if self.keys_inside else 1
    q_ids = k_ids = k_length = None
    if self.k_lengths is not None:
      k_length = self.k_lengths[self.first_row + row]
    if self.k_segment_ids is not None:
      q_ids, k_ids = self.q_segment_ids[row], self.k_segment_ids[row]
      if self.keys_inside:
        q_ids = column(q_ids, b)
      else:
        k_ids = column(k_ids, b)
    q_index, k_index = (
      jax.lax.broadcasted_iota(jnp.int32, s_bxb.shape, axis)
      for axis in (q_axis, 1 - q_axis)
    )
    visible = visibility.visible(
      self.plan.mask,
      self.first_q + q_index,
      self.j * b + k_index,
      q_segment_ids=q_ids,
      k_segment_ids=k_ids,
      k_lengths=k_length,
    )
    return s_bxb if visible is None else jnp.where(visible, s_bxb, value)


def inner_range(
  plan: Plan, outer: Array, offset: Array, keys_inside: bool
) -> tuple[Array, Array]:
  """Returns the first and the last inner block that an outer one may see."""
  b, before = plan.block, plan.before + offset
  first = outer * b + (before if keys_inside else -before)
  count = plan.blocks_k if keys_inside else plan.blocks_q
  span = plan.mask, first, first + b - 1, b, count
  return visibility.some_blocks(*span, of_queries=not keys_inside)


def query_block(plan: Plan, inner: Array) -> tuple[Array, Array]:
  """Returns a head among those with the same keys, and a block of queries."""
  blocks = jnp.int32(plan.blocks_q)
  return jax.lax.div(inner, blocks), jax.lax.rem(inner, blocks)


def seen_range(
  plan: Plan,
  seen: tuple[Ref, Ref],
  first_row: Array,
  rows: int,
  outer: Array,
  keys_inside: bool,
) -> tuple[Array, Array]:
  """Returns the first and the last block that some of the rows may see.

  `seen` refers to the result of `visibility.segment_blocks`, `[B N]`.
  """
  blocks = plan.blocks_q if keys_inside else plan.blocks_k
  places = [(first_row + row) * blocks + outer for row in range(rows)]
  firsts, lasts = ([x[place] for place in places] for x in seen)
  first = functools.reduce(jnp.minimum, firsts)
  return first, functools.reduce(jnp.maximum, lasts)


def column(row_1xb: Array, lanes: int = LANES) -> Array:
  """Returns `[b, lanes]`, the same in all lanes."""
  return jnp.broadcast_to(row_1xb, (lanes, row_1xb.shape[1])).T


def wide(x: Array, width: int) -> Array:
  """Returns `[b, width]` for `[b, LANES]` that is the same in all lanes."""
  return x if width == LANES else jnp.tile(x, (1, width // LANES))
