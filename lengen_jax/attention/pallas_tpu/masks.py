"""Which blocks meet, and which of their pairs are visible."""

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from lengen_jax.attention.pallas_tpu import lanes


def key_range(plan, i, offset):
  """First and last block of keys that a block of queries may see."""
  b = plan.block
  first_q = (plan.first + i) * b + offset
  first, last = jnp.int32(0), jnp.int32(plan.blocks_k - 1)
  if plan.causal:
    last = jnp.minimum(last, _blocks(first_q + b - 1, b))
  elif plan.window is not None:
    last = jnp.minimum(last, _blocks(first_q + b + plan.window - 2, b))
  if plan.window is not None:
    first = jnp.minimum(last, _blocks(first_q - plan.window + 1, b))
  return first, last


def query_range(plan, j, offset):
  """First and last block of queries that may see a block of keys."""
  b = plan.block
  first_k = j * b - offset
  first, last = jnp.int32(0), jnp.int32(plan.blocks_q - 1)
  if plan.window is not None:
    reached = _blocks(first_k + b + plan.window - 2, b) - plan.first
    last = jnp.clip(reached, 0, last)
  if plan.causal:
    first = jnp.clip(_blocks(first_k, b) - plan.first, 0, last)
  elif plan.window is not None:
    first = _blocks(first_k - plan.window + 1, b) - plan.first
    first = jnp.clip(first, 0, last)
  return first, last


def _blocks(token, block):
  """The block of a token, 0 for those before the first."""
  return jax.lax.div(jnp.maximum(token, 0), jnp.int32(block))


def use(plan, i, j, offset):
  """Whether anything in a tile is visible, and whether everything is."""
  b = plan.block
  first_q, first_k = (plan.first + i) * b + offset, j * b
  last_q, last_k = first_q + b - 1, first_k + b - 1
  needed = whole = True
  if plan.k_length < plan.blocks_k * b:
    needed, whole = first_k < plan.k_length, last_k < plan.k_length
  if plan.causal:
    needed &= first_k <= last_q
    whole &= last_k <= first_q
  if plan.window is not None:
    needed &= first_q - last_k < plan.window
    whole &= last_q - first_k < plan.window
    if not plan.causal:
      needed &= first_k - last_q < plan.window
      whole &= last_k - first_q < plan.window
  return needed, whole


def when_needed(plan, r, i, j, tile):
  """Runs `tile(masked)` unless nothing in it is visible."""
  needed, whole = use(plan, i, j, r.offset[0])
  if hasattr(r, 'k_segment_ids') or hasattr(r, 'k_lengths'):
    whole = False
  if isinstance(whole, bool):
    pl.when(needed)(lambda: tile(not whole))
    return
  pl.when(jnp.logical_and(needed, whole))(lambda: tile(False))
  pl.when(jnp.logical_and(needed, jnp.logical_not(whole)))(lambda: tile(True))


def visible(plan, r, row, i, j, keys_inside=True):
  """Which pairs of a tile are visible, `[b, b]`, queries first or keys."""
  b, shape = plan.block, (plan.block, plan.block)
  q_axis, k_axis = (0, 1) if keys_inside else (1, 0)
  q_index = (plan.first + i) * b + r.offset[0]
  q_index += jax.lax.broadcasted_iota(jnp.int32, shape, q_axis)
  k_index = j * b + jax.lax.broadcasted_iota(jnp.int32, shape, k_axis)
  k_length = jnp.int32(plan.k_length)
  if hasattr(r, 'k_lengths'):
    k_length = jnp.minimum(k_length, r.k_lengths[r.first_row + row])
  visible = k_index < k_length
  if plan.causal:
    visible &= k_index <= q_index
  if plan.window is not None:
    visible &= q_index - k_index < plan.window
    if not plan.causal:
      visible &= k_index - q_index < plan.window
  if hasattr(r, 'k_segment_ids'):
    q_ids, k_ids = r.q_segment_ids[row], r.k_segment_ids[row]
    if keys_inside:
      visible &= lanes.column(q_ids, b) == k_ids
    else:
      visible &= q_ids == lanes.column(k_ids, b)
  return visible
