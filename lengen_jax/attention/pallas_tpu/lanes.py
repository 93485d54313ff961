"""Numbers of several heads side by side in the lanes of registers."""

import jax
import jax.numpy as jnp

LANES = 128


def per_head(num_heads, head_dim):
  """Numbers of a head, with zeros if heads do not fill registers."""
  if LANES % head_dim == 0 and num_heads % (LANES // head_dim) == 0:
    return head_dim
  return -(-head_dim // LANES) * LANES


def flat(x, lanes, block):
  """`[B, n, H, D]` with zeros up to whole blocks and lanes, heads joined."""
  missing = (0, -x.shape[1] % block), (0, 0), (0, lanes - x.shape[3])
  x = jnp.pad(x, ((0, 0), *missing))
  return x.reshape(*x.shape[:2], -1)


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


def dot(a, b, contract):
  """A product summed in float32, over axis `contract[0]` of a, [1] of b."""
  return jax.lax.dot_general(
    a,
    b,
    (((contract[0],), (contract[1],)), ((), ())),
    precision='highest' if b.dtype == jnp.float32 else None,
    preferred_element_type=jnp.float32,
  )
