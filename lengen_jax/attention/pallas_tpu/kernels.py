"""The programs that run on the chip, for one tile at a time.

`r` holds their references by name: inputs, outputs and scratch of `calls`.
"""

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from lengen_jax.attention.fused.arithmetic import dot
from lengen_jax.attention.fused.arithmetic import MASKED
from lengen_jax.attention.fused.arithmetic import NOTHING
from lengen_jax.attention.pallas_tpu import bias
from lengen_jax.attention.pallas_tpu import lanes
from lengen_jax.attention.pallas_tpu import masks


def forward(plan, r):
  """The output: a running maximum and sum for each query."""
  i, j = pl.program_id(2), pl.program_id(3)

  @pl.when(j == 0)
  def _():
    bias.begin(plan, r)
    r.largest[...] = jnp.full(r.largest.shape, NOTHING, jnp.float32)
    r.total[...] = jnp.zeros(r.total.shape, jnp.float32)
    r.sum[...] = jnp.zeros(r.sum.shape, jnp.float32)

  def tile(masked):
    bias.make(plan, r, i, j)

    @masks.each_row(plan, r, i, j)
    def _(row):
      q, k, v = r.q[row], r.k[row], r.v[row]
      kept_sum = r.sum[row]
      added = factor = None
      for head in range(plan.heads):
        s = dot(lanes.only(plan, q, head), k, (1, 1)) * plan.scale
        if plan.form != 'none':
          s += bias.of(plan, r, i, j, head)
        if masked:
          s = jnp.where(masks.visible(plan, r, row, i, j), s, MASKED)
        largest = r.largest[row, head]
        new = jnp.maximum(largest, s.max(1, keepdims=True))
        kept = jnp.exp(largest - new)
        p = jnp.exp(s - lanes.wide(new, plan.block))
        r.largest[row, head] = new
        r.total[row, head] = kept * r.total[row, head] + p.sum(1, keepdims=True)
        y = dot(p.astype(v.dtype), v, (1, 0))
        added = lanes.put(plan, added, y, head)
        factor = lanes.put(plan, factor, lanes.wide(kept, plan.lanes), head)
      r.sum[row] = kept_sum * factor + added

  masks.when_needed(plan, r, i, j, tile)

  @pl.when(j == plan.blocks_k - 1)
  def _():
    @pl.loop(0, plan.rows)
    def _(row):
      divisor = None
      for head in range(plan.heads):
        total = r.total[row, head]
        seen = total > 0
        total = jnp.where(seen, total, 1.0)
        log_sum = jnp.where(seen, r.largest[row, head] + jnp.log(total), 0.0)
        r.log_sum[row, head] = log_sum.T[:1]
        divisor = lanes.put(plan, divisor, lanes.wide(total, plan.lanes), head)
      r.y[row] = (r.sum[row] / divisor).astype(r.y.dtype)


def query_gradient(plan, r):
  """Gradients to queries, and to what the bias is made from."""
  i, j = pl.program_id(2), pl.program_id(3)

  @pl.when(j == 0)
  def _():
    bias.begin(plan, r)
    r.sum[...] = jnp.zeros(r.sum.shape, jnp.float32)
    if plan.form == 'anchored':
      r.dweights[...] = jnp.zeros(r.dweights.shape, jnp.float32)

    @pl.loop(0, plan.rows)
    def _(row):
      for head in range(plan.heads):
        r.log_sums[row, head] = lanes.column(r.log_sum[row, head])
        r.centres[row, head] = lanes.column(r.centre[row, head])

  if plan.form != 'none':
    begins = jax.lax.rem(i, jnp.int32(plan.blocks_per_group)) == 0
    begins = jnp.logical_and(begins, j == 0)

    found = r.ddense if plan.form == 'dense' else r.drows

    @pl.when(True if plan.form == 'dense' else begins)
    def _():
      found[...] = jnp.zeros(found.shape, jnp.float32)

  def tile(masked):
    bias.make(plan, r, i, j)
    if plan.form != 'none':
      r.dbias[...] = jnp.zeros(r.dbias.shape, jnp.float32)

    @masks.each_row(plan, r, i, j)
    def _(row):
      q, k, v, dy = r.q[row], r.k[row], r.v[row], r.dy[row]
      added = None
      for head in range(plan.heads):
        s = dot(lanes.only(plan, q, head), k, (1, 1)) * plan.scale
        if plan.form != 'none':
          s += bias.of(plan, r, i, j, head)
        if masked:
          s = jnp.where(masks.visible(plan, r, row, i, j), s, MASKED)
        p = jnp.exp(s - lanes.wide(r.log_sums[row, head], plan.block))
        dp = dot(lanes.only(plan, dy, head), v, (1, 1))
        ds = p * (dp - lanes.wide(r.centres[row, head], plan.block))
        if plan.form != 'none':
          r.dbias[head] += ds
        dq = dot(ds.astype(k.dtype), k, (1, 0))
        added = lanes.put(plan, added, dq, head)
      r.sum[row] += added

    if plan.form != 'none':
      bias.add_gradient(plan, r, i, j)

  masks.when_needed(plan, r, i, j, tile)

  @pl.when(j == plan.blocks_k - 1)
  def _():
    r.dq[...] = (r.sum[...] * plan.scale).astype(r.dq.dtype)


def key_gradient(plan, r):
  """Gradients to keys and values. Rows of its tiles are keys."""
  j, inner = pl.program_id(2), pl.program_id(3)
  _, i = masks.query_block(plan, inner)

  @pl.when(i == 0)
  def _():
    bias.begin(plan, r, keys_inside=False)

  @pl.when(inner == 0)
  def _():
    r.dk_sum[...] = jnp.zeros(r.dk_sum.shape, jnp.float32)
    r.dv_sum[...] = jnp.zeros(r.dv_sum.shape, jnp.float32)

  def tile(masked):
    bias.make(plan, r, i, j, keys_inside=False)

    @masks.each_row(plan, r, i, j, keys_inside=False)
    def _(row):
      q, k, v, dy = r.q[row], r.k[row], r.v[row], r.dy[row]
      dk = jnp.zeros((plan.block, plan.lanes), jnp.float32)
      dv = jnp.zeros((plan.block, plan.lanes), jnp.float32)
      for head in range(plan.heads):
        own_q, own_dy = lanes.only(plan, q, head), lanes.only(plan, dy, head)
        s = dot(k, own_q, (1, 1)) * plan.scale
        if plan.form != 'none':
          s += bias.of(plan, r, i, j, head, keys_inside=False)
        if masked:
          visible = masks.visible(plan, r, row, i, j, keys_inside=False)
          s = jnp.where(visible, s, MASKED)
        p = jnp.exp(s - r.log_sum[row, head])
        dp = dot(v, own_dy, (1, 1))
        ds = p * (dp - r.centre[row, head])
        dv += dot(p.astype(dy.dtype), own_dy, (1, 0))
        dk += dot(ds.astype(q.dtype), own_q, (1, 0))
      r.dk_sum[row] += dk
      r.dv_sum[row] += dv

  masks.when_needed(plan, r, i, j, tile, keys_inside=False)

  @pl.when(inner == pl.num_programs(3) - 1)
  def _():
    r.dk[...] = (r.dk_sum[...] * plan.scale).astype(r.dk.dtype)
    r.dv[...] = r.dv_sum[...].astype(r.dv.dtype)
