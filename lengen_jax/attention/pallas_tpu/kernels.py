"""The TPU kernels, for one tile at a time."""

from jax import Array
from jax.experimental import pallas as pl
import jax.numpy as jnp

from lengen_jax.attention.fused import dot, MASKED, NOTHING
from lengen_jax.attention.fused.plan import LANES
from lengen_jax.attention.pallas_tpu import bias
from lengen_jax.attention.pallas_tpu.program import column, Program, wide


def forward(p: Program) -> None:
  """Computes the output, with a running maximum and sum for each query."""
  plan = p.plan

  @pl.when(p.is_first)
  def _() -> None:
    bias.begin(p)
    p.largest[...] = jnp.full(p.largest.shape, NOTHING, jnp.float32)
    p.total[...] = jnp.zeros(p.total.shape, jnp.float32)
    p.sum[...] = jnp.zeros(p.sum.shape, jnp.float32)

  def tile(masked: bool) -> None:
    bias.make(p)

    @p.each_row
    def _(row: Array) -> None:
      q, k, v = p.q[row], p.k[row], p.v[row]
      before = p.sum[row]
      added = factor = None
      for head in range(plan.heads):
        s = _logits(p, row, head, p.only(q, head), k, masked)
        largest = p.largest[row, head]
        new = jnp.maximum(largest, s.max(1, keepdims=True))
        rescale = jnp.exp(largest - new)
        weights = jnp.exp(s - wide(new, plan.block))
        p.largest[row, head] = new
        p.total[row, head] = rescale * p.total[row, head] + weights.sum(
          1, keepdims=True
        )
        y = dot(weights.astype(v.dtype), v, (1, 0))
        added = p.put(added, y, head)
        factor = p.put(factor, wide(rescale, plan.lanes), head)
      p.sum[row] = before * factor + added

  p.when_visible(tile)

  @pl.when(p.is_last)
  def _() -> None:
    @pl.loop(0, plan.rows)
    def _(row: Array) -> None:
      divisor = None
      for head in range(plan.heads):
        total = p.total[row, head]
        seen = total > 0
        total = jnp.where(seen, total, 1.0)
        lse = jnp.where(seen, p.largest[row, head] + jnp.log(total), MASKED)
        p.lse[row, head] = lse.T[:1]
        divisor = p.put(divisor, wide(total, plan.lanes), head)
      p.y[row] = (p.sum[row] / divisor).astype(p.y.dtype)


def query_gradient(p: Program) -> None:
  """Computes gradients of queries, and of the table."""
  plan = p.plan

  @pl.when(p.is_first)
  def _() -> None:
    bias.begin(p)
    p.sum[...] = jnp.zeros(p.sum.shape, jnp.float32)
    if plan.form == 'anchored':
      p.dweights[...] = jnp.zeros(p.dweights.shape, jnp.float32)

    @pl.loop(0, plan.rows)
    def _(row: Array) -> None:
      for head in range(plan.heads):
        p.lse_columns[row, head] = column(p.lse[row, head])
        p.delta_columns[row, head] = column(p.delta[row, head])

  bias.begin_gradient(p)

  def tile(masked: bool) -> None:
    bias.make(p)
    if plan.has_tiles:
      p.dbias[...] = jnp.zeros(p.dbias.shape, jnp.float32)

    @p.each_row
    def _(row: Array) -> None:
      q, k, v, dy = p.q[row], p.k[row], p.v[row], p.dy[row]
      added = None
      for head in range(plan.heads):
        s = _logits(p, row, head, p.only(q, head), k, masked)
        weights = jnp.exp(s - wide(p.lse_columns[row, head], plan.block))
        dp = dot(p.only(dy, head), v, (1, 1))
        delta = wide(p.delta_columns[row, head], plan.block)
        ds = weights * (dp - delta)
        if plan.has_tiles:
          p.dbias[head] += ds
        dq = dot(ds.astype(k.dtype), k, (1, 0))
        added = p.put(added, dq, head)
      p.sum[row] += added

    if plan.has_tiles:
      bias.add_gradient(p)

  p.when_visible(tile)

  @pl.when(p.is_last)
  def _() -> None:
    p.dq[...] = (p.sum[...] * plan.scale).astype(p.dq.dtype)


def key_gradient(p: Program) -> None:
  """Computes gradients of keys and values. Rows of its tiles are keys."""
  plan = p.plan

  @pl.when(p.i == 0)
  def _() -> None:
    bias.begin(p)

  @pl.when(p.is_first)
  def _() -> None:
    p.dk_sum[...] = jnp.zeros(p.dk_sum.shape, jnp.float32)
    p.dv_sum[...] = jnp.zeros(p.dv_sum.shape, jnp.float32)

  if plan.form == 'keys':
    # Of each of the query heads that read a key head.
    @pl.when(p.i == 0)
    def _() -> None:
      p.dkey_bias[...] = jnp.zeros(p.dkey_bias.shape, jnp.float32)

  def tile(masked: bool) -> None:
    bias.make(p)

    @p.each_row
    def _(row: Array) -> None:
      q, k, v, dy = p.q[row], p.k[row], p.v[row], p.dy[row]
      dk = jnp.zeros((plan.block, plan.lanes), jnp.float32)
      dv = jnp.zeros((plan.block, plan.lanes), jnp.float32)
      for head in range(plan.heads):
        own_q, own_dy = p.only(q, head), p.only(dy, head)
        s = _logits(p, row, head, k, own_q, masked)
        weights = jnp.exp(s - p.lse[row, head])
        dp = dot(v, own_dy, (1, 1))
        ds = weights * (dp - p.delta[row, head])
        if plan.form == 'keys':
          # Sums over queries, the same in all rows of a square.
          total = jnp.broadcast_to(
            ds.sum(1, keepdims=True), (plan.block, LANES)
          )
          p.dkey_bias[row, head] += total.T[:1]
        dv += dot(weights.astype(dy.dtype), own_dy, (1, 0))
        dk += dot(ds.astype(q.dtype), own_q, (1, 0))
      p.dk_sum[row] += dk
      p.dv_sum[row] += dv

  p.when_visible(tile)

  @pl.when(p.is_last)
  def _() -> None:
    p.dk[...] = (p.dk_sum[...] * plan.scale).astype(p.dk.dtype)
    p.dv[...] = p.dv_sum[...].astype(p.dv.dtype)


def _logits(
  p: Program, row: Array, head: int, a: Array, b: Array, masked: bool
) -> Array:
  """Returns logits of a tile `[b, b]`, of the tile's rows and columns."""
  s = dot(a, b, (1, 1)) * p.plan.scale
  if p.plan.form == 'keys':
    s += bias.of_keys(p, row, head)
  elif p.plan.has_tiles:
    s += bias.of(p, head)
  return p.masked(s, row, MASKED) if masked else s
