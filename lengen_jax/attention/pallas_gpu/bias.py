"""The bias of a tile in a GPU's program, and weights of its gradient."""

import math

import jax
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp

LOG2_E = math.log2(math.e)


def tile(plan, r, head, q, k):
  """Bias of pairs, and what more it is at the next anchor, by ln 2.

  Args:
    plan: the plan.
    r: references.
    head: which of the heads that the program has.
    q: index of queries in the band, `[n, 1]` or `[1, n]`.
    k: index of keys, likewise.

  Returns:
    Float32 in the shape of `q - k`; the latter None without anchors.
  """
  if plan.form == 'dense':
    b = jnp.int32(plan.block)
    place = jax.lax.div(k, b), q, jax.lax.rem(k, b)
    shape = jnp.broadcast_shapes(q.shape, k.shape)
    block, q, k = (jnp.broadcast_to(x, shape) for x in place)
    return LOG2_E * plgpu.load(r.dense.at[block, head, q, k]), None
  # Entries of a row are distances from the lowest one on, rows follow rows.
  # Sums of what is known per query and per key are addresses of few kinds.
  first = q + (plan.first - plan.lowest) * plan.block
  if plan.form == 'strip':
    return plgpu.load(r.rows.at[head, first - k]), None
  interval = jax.lax.div(q, jnp.int32(plan.spacing))
  length = (plan.highest - plan.lowest) * plan.block + 1
  near, far = (
    plgpu.load(r.rows.at[head, ((interval + n) * length + first) - k])
    for n in (0, 1)
  )
  change = far - near
  return near + weights(plan, r, q, k) * change, change


def weights(plan, r, q, k):
  """How far pairs are from one anchor to the next, 0 to 1; see `tile`."""
  weight = plgpu.load(r.weights.at[q])
  if not plan.two_sided:
    return weight
  spacing = jnp.int32(plan.spacing)
  linear = jax.lax.rem(q, spacing).astype(jnp.float32) / plan.spacing
  return jnp.where(is_seen(plan, r, q, k), weight, linear)


def is_seen(plan, r, q, k):
  """Whether keys are not after queries; see `tile`."""
  return k <= q + (plan.first * plan.block + r.offset[0])
