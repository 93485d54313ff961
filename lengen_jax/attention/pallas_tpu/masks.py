"""Which pairs of a tile are visible, and whether it is needed."""

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


def when_needed(plan, r, i, j, tile):
  """Runs `tile(masked)` unless nothing in it is visible.

  Args:
    plan: the plan.
    r: references.
    i: the block of queries.
    j: the block of keys.
    tile: a function of whether pairs may be hidden.
  """
  b = plan.block
  first_q = (plan.first + i) * b + r.offset[0]
  needed, whole = masks.use(plan, first_q, b, j * b, b)
  if hasattr(r, 'k_segment_ids') or hasattr(r, 'k_lengths'):
    whole = False
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
