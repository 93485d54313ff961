"""The bias of a tile in a GPU's program, and weights of its gradient."""

import math

import jax
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp

from lengen_jax.attention.fused import tables

LOG2_E = math.log2(math.e)


def tile(plan, r, head, q, k):
  """Bias of pairs by ln 2, float32 in the shape of `q - k`.

  Args:
    plan: the plan.
    r: references.
    head: which of the heads that the program has.
    q: index of queries in the band, `[n, 1]` or `[1, n]`.
    k: index of keys, likewise.
  """
  if plan.form == 'dense':
    b = jnp.int32(plan.block)
    place = jax.lax.div(k, b), q, jax.lax.rem(k, b)
    shape = jnp.broadcast_shapes(q.shape, k.shape)
    block, q, k = (jnp.broadcast_to(x, shape) for x in place)
    return LOG2_E * plgpu.load(r.dense.at[block, head, q, k])
  # Entries of a row are distances from the lowest one on, rows follow rows.
  # Sums of what is known per query and per key are addresses of few kinds.
  first = q + (plan.first - plan.lowest) * plan.block
  if plan.form == 'strip':
    return plgpu.load(r.rows.at[head, first - k])
  before, after, weight = anchors(plan, r.kink[0], q)
  length = (plan.highest - plan.lowest) * plan.block + 1
  near, far = (
    plgpu.load(r.rows.at[head, (row * length + first) - k])
    for row in (before, after)
  )
  return near + weight * (far - near)


def anchors(plan, kink, q):
  """Which rows queries are between, and how far from one to the other.

  Rows are those of anchors, then that of the kink, at which rows bend: it is an
  anchor too.

  Args:
    plan: the plan.
    kink: see `fused.plan.Places`.
    q: index of queries in the band, in any shape.

  Returns:
    The row before, the row after, and the weight of the latter.
  """
  interval = jax.lax.div(q, jnp.int32(plan.spacing))
  kink -= plan.first * plan.block
  bends, _ = tables.interval_of(plan, kink)
  bends = jnp.where(kink >= 0, bends, -1)
  here, place = interval == bends, q.astype(jnp.float32)
  first = (interval * plan.spacing).astype(jnp.float32)
  end = first + plan.spacing
  past = here & (place >= kink)
  short = here & (place < kink)
  start = jnp.where(past, kink, first)
  stop = jnp.where(short, kink, end)
  return (
    jnp.where(past, plan.anchors, interval),
    jnp.where(short, plan.anchors, interval + 1),
    (place - start) / (stop - start),
  )


def weights(plan, r, interval, q):
  """What the gradient of queries counts for: rows by distance.

  Args:
    plan: the plan.
    r: references.
    interval: the rows before and after this interval between anchors are meant;
      after the last one, the row of the kink.
    q: index of queries in the band, `[n, 1]`.

  Returns:
    A list of float32 `[n, 1]`, one or two.
  """
  if plan.form != 'anchored':
    return [jnp.ones(q.shape, jnp.float32)]
  before, after, weight = anchors(plan, r.kink[0], q)
  of_kink = interval == plan.anchors - 1
  row = jnp.where(of_kink, plan.anchors, interval)
  nothing = jnp.zeros_like(weight)
  near = jnp.where(before == row, 1 - weight, nothing)
  of_row = jnp.where(after == plan.anchors, weight, nothing)
  far = jnp.where(after == interval + 1, weight, nothing)
  return [
    jnp.where(of_kink, near + of_row, near),
    jnp.where(of_kink, nothing, far),
  ]
