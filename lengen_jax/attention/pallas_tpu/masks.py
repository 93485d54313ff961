"""Which pairs of a tile are visible, and whether it is needed."""

import functools

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from lengen_jax.attention.fused import masks
from lengen_jax.attention.pallas_tpu import lanes


def key_range(plan, i, offset):
  """First and last block of keys that a block of queries may see."""
  b = plan.block
  return masks.key_range(plan, (plan.first + i) * b + offset, b, b)


def query_range(plan, j, offset):
  """First and last block of queries that may see a block of keys."""
  b = plan.block
  return masks.query_range(plan, j * b, b, b, offset)


def query_block(plan, inner):
  """A head among those with the same keys, and a block of its queries.

  Of the last axis of the grid, where keys are outside.
  """
  blocks = jnp.int32(plan.blocks_q)
  return jax.lax.div(inner, blocks), jax.lax.rem(inner, blocks)


def of_segments(plan, seen, first_row, outer, keys_inside):
  """First and last block of which some row of a program may see anything.

  Args:
    plan: the plan.
    seen: what `fused.masks.seen_blocks` gave, references of `[B N]`.
    first_row: of the program.
    outer: the block that sees them: of queries where keys are inside.
    keys_inside: whether a program goes over keys.
  """
  places = [
    _place(plan, first_row + row, outer, keys_inside)
    for row in range(plan.rows)
  ]
  first, last = ([x[place] for place in places] for x in seen)
  first = functools.reduce(jnp.minimum, first)
  return first, functools.reduce(jnp.maximum, last)


def each_row(plan, r, i, j, keys_inside=True):
  """Decorates what is run for rows of a program whose segments may meet."""
  outer, inner = (i, j) if keys_inside else (j, i)

  def run(of_row):
    @pl.loop(0, plan.rows)
    def _(row):
      if not hasattr(r, 'first_seen'):
        of_row(row)
        return
      place = _place(plan, r.first_row + row, outer, keys_inside)
      meets = (r.first_seen[place] <= inner) & (inner <= r.last_seen[place])
      pl.when(meets)(lambda: of_row(row))

  return run


def _place(plan, row, outer, keys_inside):
  blocks = plan.blocks_q if keys_inside else plan.blocks_k
  return row * blocks + outer


def when_needed(plan, r, i, j, tile, keys_inside=True):
  """Runs `tile(masked)` unless nothing in it is visible.

  Args:
    plan: the plan.
    r: references.
    i: the block of queries.
    j: the block of keys.
    tile: a function of whether pairs may be hidden.
    keys_inside: whether a program goes over keys.
  """
  b = plan.block
  first_q = (plan.first + i) * b + r.offset[0]
  needed, whole = masks.use(plan, first_q, b, j * b, b)
  if hasattr(r, 'k_segment_ids') or hasattr(r, 'k_lengths'):
    whole = False
  if hasattr(r, 'first_seen'):
    outer, inner = (i, j) if keys_inside else (j, i)
    seen = r.first_seen, r.last_seen
    first, last = of_segments(plan, seen, r.first_row, outer, keys_inside)
    needed &= (first <= inner) & (inner <= last)
  if isinstance(whole, bool):
    pl.when(needed)(lambda: tile(not whole))
    return
  hidden = jnp.logical_not(whole)
  pl.when(jnp.logical_and(needed, whole))(lambda: tile(False))
  pl.when(jnp.logical_and(needed, hidden))(lambda: tile(True))


def visible(plan, r, row, i, j, keys_inside=True):
  """Which pairs of a tile are visible, `[b, b]`, queries first or keys."""
  b, shape = plan.block, (plan.block, plan.block)
  q_axis, k_axis = (0, 1) if keys_inside else (1, 0)
  q_index = (plan.first + i) * b + r.offset[0]
  q_index += jax.lax.broadcasted_iota(jnp.int32, shape, q_axis)
  k_index = j * b + jax.lax.broadcasted_iota(jnp.int32, shape, k_axis)
  k_length = None
  if hasattr(r, 'k_lengths'):
    k_length = r.k_lengths[r.first_row + row]
  visible = masks.visible(plan, q_index, k_index, k_length)
  if hasattr(r, 'k_segment_ids'):
    q_ids, k_ids = r.q_segment_ids[row], r.k_segment_ids[row]
    if keys_inside:
      visible &= lanes.column(q_ids, b) == k_ids
    else:
      visible &= q_ids == lanes.column(k_ids, b)
  return visible
