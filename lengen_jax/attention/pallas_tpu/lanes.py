"""Entries of several heads side by side in the lanes of registers."""

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax.attention.fused.plan import LANES
from lengen_jax.attention.pallas_tpu.plan import Plan


def column(row_1xb: Array, lanes: int = LANES) -> Array:
  """Returns `[b, lanes]`, the same in all lanes."""
  return jnp.broadcast_to(row_1xb, (lanes, row_1xb.shape[1])).T


def wide(x: Array, width: int) -> Array:
  """Returns `[b, width]` for `[b, LANES]` that is the same in all lanes."""
  return x if width == LANES else jnp.tile(x, (1, width // LANES))


def only(plan: Plan, x: Array, head: int) -> Array:
  """Returns x in the lanes of a head, and 0 in others."""
  if plan.heads == 1:
    return x
  return jnp.where(_is_of(plan, head, x.shape), x, jnp.zeros_like(x))


def put(plan: Plan, before: Array | None, x: Array, head: int) -> Array:
  """Returns x in the lanes of a head, and `before` in others."""
  if before is None:
    return x
  return jnp.where(_is_of(plan, head, x.shape), x, before)


def _is_of(plan: Plan, head: int, shape: tuple[int, ...]) -> Array:
  """Returns which lanes are those of a head."""
  lane = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
  return jax.lax.div(lane, jnp.int32(plan.head_dim)) == head
