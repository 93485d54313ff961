"""The programs that run on the chip.

`r` holds their references by name: inputs and outputs of `calls`. Queries are
counted from the band's first, keys from the row's. Logits are multiples of
ln 2, because powers of 2 are what the chip computes.
"""

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from lengen_jax.attention.fused import masks
from lengen_jax.attention.fused.arithmetic import dot
from lengen_jax.attention.fused.arithmetic import MASKED
from lengen_jax.attention.fused.arithmetic import NOTHING
from lengen_jax.attention.pallas_gpu import bias
from lengen_jax.attention.pallas_gpu.plan import forward_tile_size
from lengen_jax.attention.pallas_gpu.plan import tile_size


def forward(plan, r):
  """The output: a running maximum and sum for each query."""
  queries, keys = forward_tile_size(plan)
  first_q = pl.program_id(0) * queries
  q = r.q[...]

  def step(masked, j, carry):
    largest, total, y = carry
    part = pl.ds(j * keys, keys)
    s, _ = _logits(plan, r, 0, q, r.k[part], first_q, j * keys, masked)
    new = jnp.maximum(largest, s.max(1))
    kept = jnp.exp2(largest - new)
    p = jnp.exp2(s - new[:, None])
    y = y * kept[:, None] + dot(p.astype(q.dtype), r.v[part], (1, 0))
    return new, total * kept + p.sum(1), y

  largest, total, y = _over_keys(
    plan,
    r,
    first_q,
    (queries, keys),
    step,
    (
      jnp.full((queries,), NOTHING, jnp.float32),
      jnp.zeros((queries,), jnp.float32),
      jnp.zeros(q.shape, jnp.float32),
    ),
  )
  seen = total > 0
  total = jnp.where(seen, total, 1.0)
  r.y[...] = (y / total[:, None]).astype(r.y.dtype)
  log_sum = jnp.where(seen, largest + jnp.log2(total), 0.0)
  r.log_sum[...] = log_sum / bias.LOG2_E


def query_gradient(plan, r):
  """Gradients to queries, and to how far they are between anchors."""
  n = tile_size(plan)
  first_q = pl.program_id(0) * n
  q, dy = r.q[...], r.dy[...]
  log_sum, centre = (x[...][:, None] for x in (r.log_sum, r.centre))
  log_sum *= bias.LOG2_E

  def step(masked, j, carry):
    dq, *dweights = carry
    k, v = (x[pl.ds(j * n, n)] for x in (r.k, r.v))
    s, change = _logits(plan, r, 0, q, k, first_q, j * n, masked)
    ds = jnp.exp2(s - log_sum) * (dot(dy, v, (1, 1)) - centre)
    dq += dot(ds.astype(k.dtype), k, (1, 0))
    if change is None:
      return (dq,)
    of_weights = ds * change
    if plan.two_sided:
      q_index, k_index = first_q + _index(n, 0), j * n + _index(n, 1)
      seen = bias.is_seen(plan, r, q_index, k_index)
      of_weights = jnp.where(seen, of_weights, 0.0)
    return dq, dweights[0] + of_weights.sum(1)

  carry = (jnp.zeros(q.shape, jnp.float32),)
  if plan.form == 'anchored':
    carry += (jnp.zeros((n,), jnp.float32),)
  dq, *dweights = _over_keys(plan, r, first_q, (n, n), step, carry)
  r.dq[...] = (dq * plan.scale).astype(r.dq.dtype)
  if dweights:
    r.dweights[...] = dweights[0] / bias.LOG2_E


def key_gradient(plan, r):
  """Gradients to keys and values, summed over the heads of a group."""
  n, width = tile_size(plan), plan.head_dim
  first_k = pl.program_id(0) * n
  k, v = r.k[...], r.v[...]
  offset = r.offset[0]

  def of_head(head, carry):
    columns = pl.ds(head * width, width)

    def step(masked, i, carry):
      dk, dv = carry
      part = pl.ds(i * n, n)
      q = r.q[pl.ds(plan.first * plan.block + i * n, n), columns]
      dy = r.dy[part, columns]
      s, _ = _logits(
        plan, r, head, q, k, i * n, first_k, masked, keys_first=True
      )
      p = jnp.exp2(s - bias.LOG2_E * r.log_sum[head, part][None])
      dp = dot(v, dy, (1, 1))
      ds = p * (dp - r.centre[head, part][None])
      dv += dot(p.astype(dy.dtype), dy, (1, 0))
      dk += dot(ds.astype(q.dtype), q, (1, 0))
      return dk, dv

    return _over_blocks(
      plan,
      r,
      masks.query_range(plan, first_k, n, n, offset),
      masks.whole_queries(plan, first_k, n, n, offset),
      step,
      carry,
    )

  carry = (jnp.zeros(k.shape, jnp.float32),) * 2
  dk, dv = jax.lax.fori_loop(0, r.log_sum.shape[0], of_head, carry)
  r.dk[...] = (dk * plan.scale).astype(r.dk.dtype)
  r.dv[...] = dv.astype(r.dv.dtype)


def distance_gradient(plan, r):
  """Gradients to rows by distance, as sums of tiles equally far apart.

  A program has the tiles that are so far from the diagonal, of the queries of
  an interval between anchors, for all rows of the batch that have a table in
  common.
  """
  n = tile_size(plan)
  apart = r.first_apart[0] + pl.program_id(0)
  interval = pl.program_id(1)
  first, end = 0, plan.blocks_q * plan.block // n
  if plan.form == 'anchored':
    per_interval = plan.spacing // n
    first = interval * per_interval
    end = jnp.minimum((interval + 1) * per_interval, end)
  # The key's tile minus the query's.
  shift = (plan.first - plan.lowest) * plan.block // n - apart
  first = jnp.maximum(first, -shift)
  end = jnp.minimum(end, plan.blocks_k * plan.block // n - shift)
  abs_q = r.offset[0] + plan.first * plan.block + first * n
  needed, _ = masks.use(plan, abs_q, n, (first + shift) * n, n)
  end = jnp.where(needed, end, first)

  def step(i, sums):
    ds = _logit_gradient(plan, r, i * n, (i + shift) * n)
    if plan.form == 'strip':
      return (sums[0] + ds,)
    near, far = sums
    q, k = i * n + _index(n, 0), (i + shift) * n + _index(n, 1)
    part = bias.weights(plan, r, q, k) * ds
    return near + (ds - part), far + part

  sums = (jnp.zeros((n, n), jnp.float32),) * r.sums.shape[0]
  sums = jax.lax.fori_loop(first, end, step, sums)
  for kind, total in enumerate(sums):
    r.sums[kind] = total


def tile_gradient(plan, r):
  """Gradients to a bias that is given as tiles."""
  n = tile_size(plan)
  first_k, first_q = (pl.program_id(axis) * n for axis in (0, 1))
  abs_q = r.offset[0] + plan.first * plan.block + first_q
  needed, _ = masks.use(plan, abs_q, n, first_k, n)

  def gradient():
    return _logit_gradient(plan, r, first_q, first_k)

  if isinstance(needed, bool):
    r.ddense[...] = gradient()
    return
  r.ddense[...] = jax.lax.cond(
    needed, gradient, lambda: jnp.zeros((n, n), jnp.float32)
  )


def _logit_gradient(plan, r, first_q, first_k):
  """Gradient to a tile's logits, summed over rows with the same table."""
  n = tile_size(plan)
  queries, keys = pl.ds(first_q, n), pl.ds(first_k, n)
  in_row = pl.ds(plan.first * plan.block + first_q, n)

  def of_row(row, total):
    q, k, v = r.q[row, in_row], r.k[row, keys], r.v[row, keys]
    s, _ = _logits(plan, r, 0, q, k, first_q, first_k, True, row=row)
    p = jnp.exp2(s - bias.LOG2_E * r.log_sum[row, queries][:, None])
    dp = dot(r.dy[row, queries], v, (1, 1))
    return total + p * (dp - r.centre[row, queries][:, None])

  def of_row_if_seen(row, total):
    if not hasattr(r, 'first_seen'):
      return of_row(row, total)
    i, j = (jax.lax.div(first, jnp.int32(n)) for first in (first_q, first_k))
    seen = (r.first_seen[row, i] <= j) & (j <= r.last_seen[row, i])
    return jax.lax.cond(seen, of_row, lambda _, total: total, row, total)

  total = jnp.zeros((n, n), jnp.float32)
  return jax.lax.fori_loop(0, r.q.shape[0], of_row_if_seen, total)


def _logits(
  plan, r, head, q, k, first_q, first_k, masked, *, keys_first=False, row=0
):
  """Logits of a tile, `[q, k]` or `[k, q]`, and what `bias.tile` says more."""
  axis = 1 if keys_first else 0
  q_index = first_q + _index(q.shape[0], axis)
  k_index = first_k + _index(k.shape[0], 1 - axis)
  one, other = (k, q) if keys_first else (q, k)
  s = dot(one, other, (1, 1)) * (plan.scale * bias.LOG2_E)
  change = None
  if plan.form != 'none':
    added, change = bias.tile(plan, r, head, q_index, k_index)
    s += added
  if not masked:
    return s, change
  k_length = r.k_lengths[row] if hasattr(r, 'k_lengths') else None
  in_row = plan.first * plan.block + q_index
  visible = masks.visible(plan, r.offset[0] + in_row, k_index, k_length)
  if hasattr(r, 'k_segment_ids'):
    q_ids = r.q_segment_ids[
      row, pl.ds(plan.first * plan.block + first_q, q.shape[0])
    ]
    k_ids = r.k_segment_ids[row, pl.ds(first_k, k.shape[0])]
    q_ids, k_ids = (
      jnp.expand_dims(ids, 1 - along)
      for ids, along in ((q_ids, axis), (k_ids, 1 - axis))
    )
    visible &= q_ids == k_ids
  return jnp.where(visible, s, MASKED), change


def _index(n, axis):
  """0 to n - 1 along an axis of two."""
  shape = (n, 1) if axis == 0 else (1, n)
  return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def _over_keys(plan, r, first_q, sizes, step, carry):
  """Goes over the tiles of keys that queries may see."""
  abs_q = r.offset[0] + plan.first * plan.block + first_q
  needed = masks.key_range(plan, abs_q, *sizes)
  whole = masks.whole_keys(plan, abs_q, *sizes)
  return _over_blocks(plan, r, needed, whole, step, carry)


def _over_blocks(plan, r, needed, whole, step, carry):
  """Runs `step(masked, block, carry)`; pairs are looked at where need be.

  Args:
    plan: the plan.
    r: references.
    needed: first and last block in which anything is visible.
    whole: first and end of the blocks in which everything is.
    step: a function.
    carry: its state.
  """
  first, last = needed
  if hasattr(r, 'first_seen'):
    first = jnp.maximum(first, r.first_seen[0])
    last = jnp.minimum(last, r.last_seen[0])
  end = last + 1

  def run(masked, first, end, carry):
    return jax.lax.fori_loop(
      first, end, lambda block, carry: step(masked, block, carry), carry
    )

  if hasattr(r, 'k_segment_ids') or hasattr(r, 'k_lengths'):
    return run(True, first, end, carry)
  begin = jnp.clip(whole[0], first, end)
  stop = jnp.clip(whole[1], begin, end)
  if plan.window is not None or plan.causal:
    carry = run(True, first, begin, carry)
  carry = run(False, begin, stop, carry)
  return run(True, stop, end, carry)
