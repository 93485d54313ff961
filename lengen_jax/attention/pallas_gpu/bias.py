"""The bias of a tile in a GPU kernel, and weights of its gradient."""

import math

import jax
from jax import Array
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp

from lengen_jax.attention.pallas_gpu.program import Program

LOG2_E = math.log2(math.e)


def tile(
  p: Program, head: Array | int, q: Array, k: Array
) -> tuple[Array, Array | None]:
  """Returns the bias of pairs, and the next anchor's minus this anchor's.

  Both are divided by ln 2 and have the shape of `q - k`; without anchors the
  latter is None.

  Args:
    p: the program.
    head: which of the program's heads.
    q: index of queries in the band, `[n, 1]` or `[1, n]`.
    k: index of keys, likewise.
  """
  plan = p.plan
  if plan.form == 'dense':
    b = jnp.int32(plan.block)
    place = jax.lax.div(k, b), q, jax.lax.rem(k, b)
    shape = jnp.broadcast_shapes(q.shape, k.shape)
    block, q, k = (jnp.broadcast_to(x, shape) for x in place)
    return LOG2_E * plgpu.load(p.dense.at[block, head, q, k]), None
  # Entries of a row are distances from the lowest one on; rows are contiguous.
  # An address is a sum of one term per query and one per key.
  first = q + (plan.first - plan.lowest) * plan.block
  if plan.form == 'strip':
    return plgpu.load(p.rows.at[head, first - k]), None
  interval = jax.lax.div(q, jnp.int32(plan.spacing))
  length = plan.distances + 1
  near, far = (
    plgpu.load(p.rows.at[head, ((interval + n) * length + first) - k])
    for n in (0, 1)
  )
  change = far - near
  return near + weights(p, q, k) * change, change


def weights(p: Program, q: Array, k: Array) -> Array:
  """Returns how far pairs are from one anchor to the next, 0 to 1."""
  weight = plgpu.load(p.weights.at[q])
  if not p.plan.two_sided:
    return weight
  spacing = jnp.int32(p.plan.spacing)
  linear = jax.lax.rem(q, spacing).astype(jnp.float32) / p.plan.spacing
  return jnp.where(is_seen(p, q, k), weight, linear)


def is_seen(p: Program, q: Array, k: Array) -> Array:
  """Returns whether keys are not after queries; see `tile`."""
  return k <= q + p.first_query
