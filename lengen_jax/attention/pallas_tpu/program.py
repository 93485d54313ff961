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
from lengen_jax.attention.pallas_tpu import lanes
from lengen_jax.attention.pallas_tpu.plan import Plan

# A reference to a block of an array in vector or scalar memory.
Ref = Any


@dataclasses.dataclass(frozen=True)
class Program:
  """The tile of a program, and its references; None where a call has none.

  Shapes: R rows of the batch and h heads in a program, b tokens in a block, W
  lanes, A anchors.

  Attributes:
    plan: the plan.
    keys_inside: whether the last axis of the grid are keys; then rows of a tile
      are queries, else keys.
    i: block of queries.
    j: block of keys.
    is_first: whether the tile is the first of its block of outputs.
    is_last: whether it is the last.
    first_row: first row of the batch in the program.
    offset: `[1]`, see `Inputs`.
    k_lengths: `[B]`.
    first_seen: `[B N]`, see `visibility.segment_blocks`; N outer blocks.
    last_seen: `[B N]`.
    weights_vary: int32 `[blocks_q]`, whether weights depend on parameters.
    q: `[R, b, W]`; k, v, dy, y, dq, dk and dv likewise.
    lse: `[R, h, 1, b]`; delta likewise.
    q_segment_ids: `[R, 1, b]`; k_segment_ids likewise.
    dense: tiles of the bias, `[1, 1, h, b, b]`; its gradient ddense likewise.
    near: `[1, 1, h, A, b]`, the first half of the tile's distances, largest
      first if rows of a tile are queries; far, the second half.
    weights: `[1, 1, b]`, see `Table`.
    drows: `[1, 1, h, A, blocks, b]`, gradient of rows.
    dweights: `[1, h, 1, b]`, gradient of weights.
    largest: `[R, h, b, LANES]`, running maximum of the logits.
    total: `[R, h, b, LANES]`, running sum of exponentials.
    sum: `[R, b, W]`, sum for y or dq.
    lse_columns: `[R, h, b, LANES]`, lse in all lanes; delta_columns likewise.
    dk_sum: `[R, b, W]`; dv_sum likewise.
    bias: `[h, b, b]`, the bias of the tile; dbias, its gradient.
    strips: `[h, A, 2, LANES, b]`, shifted halves of rows by distance.
    distances: `[A, 2 b]`, near and far of a head; ddistances, the gradient.
    weight_columns: `[b, LANES]`, weights in all lanes.
    ready_for: `[1]`, the inner block that `strips` are ready for.
  """

  plan: Plan
  keys_inside: bool
  i: Array
  j: Array
  is_first: Array
  is_last: Array
  first_row: Array
  offset: Ref
  k_lengths: Ref = None
  first_seen: Ref = None
  last_seen: Ref = None
  weights_vary: Ref = None
  q: Ref = None
  k: Ref = None
  v: Ref = None
  dy: Ref = None
  y: Ref = None
  dq: Ref = None
  dk: Ref = None
  dv: Ref = None
  lse: Ref = None
  delta: Ref = None
  q_segment_ids: Ref = None
  k_segment_ids: Ref = None
  dense: Ref = None
  ddense: Ref = None
  near: Ref = None
  far: Ref = None
  weights: Ref = None
  drows: Ref = None
  dweights: Ref = None
  largest: Ref = None
  total: Ref = None
  sum: Ref = None
  lse_columns: Ref = None
  delta_columns: Ref = None
  dk_sum: Ref = None
  dv_sum: Ref = None
  bias: Ref = None
  dbias: Ref = None
  strips: Ref = None
  distances: Ref = None
  ddistances: Ref = None
  weight_columns: Ref = None
  ready_for: Ref = None

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
    """Index of the first query among the keys."""
    return (self.plan.first + self.i) * self.plan.block + self.offset[0]

  def each_row(self, of_row: Callable[[Array], None]) -> None:
    """Runs `of_row` for each row of the program with visible segments."""

    @pl.loop(0, self.plan.rows)
    def _(row: Array) -> None:
      if self.first_seen is None:
        of_row(row)
        return
      place = seen_place(
        self.plan, self.first_row + row, self.outer, self.keys_inside
      )
      meets = self.first_seen[place] <= self.inner
      meets &= self.inner <= self.last_seen[place]
      pl.when(meets)(lambda: of_row(row))

  def when_visible(self, tile: Callable[[bool], None]) -> None:
    """Runs `tile(masked)` unless every pair is masked.

    Args:
      tile: a function of whether any pair may be masked.
    """
    b, first_k = self.plan.block, self.j * self.plan.block
    some, every = visibility.tile_visibility(
      self.plan.mask,
      self.first_q,
      self.first_q + b - 1,
      first_k,
      first_k + b - 1,
    )
    if self.k_segment_ids is not None or self.k_lengths is not None:
      every = False
    if self.first_seen is not None:
      first, last = seen_range(
        self.plan,
        (self.first_seen, self.last_seen),
        self.first_row,
        self.outer,
        self.keys_inside,
      )
      some &= (first <= self.inner) & (self.inner <= last)
    if isinstance(every, bool):
      pl.when(some)(lambda: tile(not every))
      return
    hidden = jnp.logical_not(every)
    pl.when(jnp.logical_and(some, every))(lambda: tile(False))
    pl.when(jnp.logical_and(some, hidden))(lambda: tile(True))

  def masked(self, s_bxb: Array, row: Array, value: float) -> Array:
    """Returns logits with `value` where pairs are not visible."""
    b, shape = self.plan.block, s_bxb.shape
    q_axis, k_axis = (0, 1) if self.keys_inside else (1, 0)
    q_ids = k_ids = k_length = None
    if self.k_lengths is not None:
      k_length = self.k_lengths[self.first_row + row]
    if self.k_segment_ids is not None:
      q_ids, k_ids = self.q_segment_ids[row], self.k_segment_ids[row]
      if self.keys_inside:
        q_ids = lanes.column(q_ids, b)
      else:
        k_ids = lanes.column(k_ids, b)
    visible = visibility.visible(
      self.plan.mask,
      self.first_q + jax.lax.broadcasted_iota(jnp.int32, shape, q_axis),
      self.j * b + jax.lax.broadcasted_iota(jnp.int32, shape, k_axis),
      q_segment_ids=q_ids,
      k_segment_ids=k_ids,
      k_lengths=k_length,
    )
    return s_bxb if visible is None else jnp.where(visible, s_bxb, value)


def key_range(plan: Plan, i: Array, offset: Array) -> tuple[Array, Array]:
  """Returns the first and the last block of keys that a query block may see."""
  b = plan.block
  first_q = (plan.first + i) * b + offset
  return visibility.key_blocks(
    plan.mask, first_q, first_q + b - 1, b, plan.blocks_k
  )


def query_range(plan: Plan, j: Array, offset: Array) -> tuple[Array, Array]:
  """Returns the first and the last query block that may see a key block."""
  b = plan.block
  first_k = j * b - (offset + plan.before)
  return visibility.query_blocks(
    plan.mask, first_k, first_k + b - 1, b, plan.blocks_q
  )


def query_block(plan: Plan, inner: Array) -> tuple[Array, Array]:
  """Returns a head among those with the same keys, and a block of queries.

  Args:
    plan: the plan.
    inner: place on the last axis of the grid, where keys are outside.
  """
  blocks = jnp.int32(plan.blocks_q)
  return jax.lax.div(inner, blocks), jax.lax.rem(inner, blocks)


def seen_range(
  plan: Plan,
  seen: tuple[Ref, Ref],
  first_row: Array,
  outer: Array,
  keys_inside: bool,
) -> tuple[Array, Array]:
  """Returns the first and the last block that some row of a program may see.

  Args:
    plan: the plan.
    seen: references to the result of `visibility.segment_blocks`, `[B N]`.
    first_row: first row of the program.
    outer: the block that sees them: of queries where keys are inside.
    keys_inside: whether the last axis of the grid are keys.
  """
  places = [
    seen_place(plan, first_row + row, outer, keys_inside)
    for row in range(plan.rows)
  ]
  first, last = ([x[place] for place in places] for x in seen)
  return functools.reduce(jnp.minimum, first), functools.reduce(
    jnp.maximum, last
  )


def seen_place(
  plan: Plan, row: Array, outer: Array, keys_inside: bool
) -> Array:
  """Returns the place of an outer block of a row in `first_seen`."""
  blocks = plan.blocks_q if keys_inside else plan.blocks_k
  return row * blocks + outer
