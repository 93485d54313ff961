"""Numbers of several heads side by side in the lanes of registers."""

import jax
import jax.numpy as jnp

from lengen_jax.attention.fused.plan import LANES


def column(row, lanes=LANES):
  """`[1, b]` as `[b, lanes]`, the same in all lanes."""
  return jnp.broadcast_to(row, (lanes, row.shape[1])).T


def wide(x, width):
  """`[b, LANES]`, the same in all lanes, as `[b, width]`."""
  return x if width == LANES else jnp.tile(x, (1, width // LANES))


def only(plan, x, head):
  """What x is in the lanes of a head, and 0 in others."""
  if plan.heads == 1:
    return x
  return jnp.where(_is_of(plan, head, x.shape), x, jnp.zeros_like(x))


def put(plan, before, x, head):
  """What x is in the lanes of a head, and what was before in others."""
  if before is None:
    return x
  return jnp.where(_is_of(plan, head, x.shape), x, before)


def _is_of(plan, head, shape):
  """Which lanes are those of a head."""
  lane = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
  return jax.lax.div(lane, jnp.int32(plan.head_dim)) == head
