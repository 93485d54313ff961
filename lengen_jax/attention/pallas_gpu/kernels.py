"""The GPU kernels, and one program of a kernel's grid.

Logits are divided by ln 2, because the chip computes powers of 2.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp

from lengen_jax.attention import visibility
from lengen_jax.attention.fused import dot, MASKED, NOTHING
from lengen_jax.attention.pallas_gpu import plan as plans
from lengen_jax.attention.pallas_gpu.plan import Plan, tile_size

LOG2_E = math.log2(math.e)
# A reference to a block of an array in memory.
Ref = Any
# Computes the next carry from (masked, block, carry).
Step = Callable[[bool, Array, Any], Any]


@dataclasses.dataclass(frozen=True)
class Program:
  """The plan and references of a program; None where a call has none.

  Query indices are relative to the range's first query, except in q. Shapes: n
  queries of the range, t queries or keys in a tile, h heads and R rows in a
  program; an axis of size 1 is absent.
  """

  plan: Plan
  offset: Ref  # [1]
  k_lengths: Ref = None  # [R]
  q_segment_ids: Ref = None  # [R, Q]
  k_segment_ids: Ref = None  # [R, K]
  first_seen: Ref = None  # [1] or [R, tiles]; see `visibility.segment_blocks`
  last_seen: Ref = None
  first_apart: Ref = None  # [1], the lowest distance of a call, in tiles
  q: Ref = None  # [t, D], or whole rows [Q, h D] or [R, Q, D]
  k: Ref = None
  v: Ref = None
  dy: Ref = None  # [t, D], [n, h D] or [R, n, D]
  y: Ref = None  # [t, D]
  dq: Ref = None
  dk: Ref = None
  dv: Ref = None
  lse: Ref = None  # [t], [h, n] or [R, n]
  delta: Ref = None
  rows: Ref = None  # [h, A (T + 1)], divided by ln 2
  weights: Ref = None  # [n]
  dweights: Ref = None  # [t]
  dense: Ref = None  # [N, h, b, b]
  ddense: Ref = None  # [t, t]
  sums: Ref = None  # [kinds, t, t], sums of gradients of tiles

  @property
  def first_query(self) -> Array:
    """Index of the range's first query among the keys."""
    return self.plan.before + self.offset[0]

  def over_keys(
    self, first_q: Array, sizes: tuple[int, int], step: Step, carry: Any
  ) -> Any:
    """Runs `step` over tiles of visible keys.

    Tiles have `sizes` queries and keys, and begin at query `first_q`.
    """
    plan, (queries, keys) = self.plan, sizes
    first_q = self.first_query + first_q
    count = plan.blocks_k * plan.block // keys
    span = plan.mask, first_q, first_q + queries - 1, keys, count
    whole = visibility.whole_blocks(*span)
    return self._over(visibility.some_blocks(*span), whole, step, carry)

  def over_queries(self, first_k: Array, n: int, step: Step, carry: Any) -> Any:
    """Runs `step` over tiles of queries that see keys.

    Tiles have n queries and n keys, and begin at key `first_k`.
    """
    plan = self.plan
    first, count = first_k - self.first_query, plan.length // n
    span = plan.mask, first, first + n - 1, n, count
    whole = visibility.whole_blocks(*span, of_queries=True)
    if plan.mask.k_length is not None:
      end = jnp.where(first_k + n <= plan.mask.k_length, whole[1], 0)
      whole = whole[0], end
    needed = visibility.some_blocks(*span, of_queries=True)
    return self._over(needed, whole, step, carry)

  def _over(
    self,
    needed: tuple[Array, Array],
    whole: tuple[visibility.Int, visibility.Int],
    step: Step,
    carry: Any,
  ) -> Any:
    """Runs `step` over the `needed` blocks, from the first to the last.

    `whole` is the first and end of the blocks without a masked pair; the mask
    is applied to the others.
    """
    first, last = needed
    if self.first_seen is not None:
      first = jnp.maximum(first, self.first_seen[0])
      last = jnp.minimum(last, self.last_seen[0])
    end = last + 1

    def run(masked: bool, first: Array, end: Array, carry: Any) -> Any:
      return jax.lax.fori_loop(
        first, end, lambda block, carry: step(masked, block, carry), carry
      )

    if self.k_segment_ids is not None or self.k_lengths is not None:
      return run(True, first, end, carry)
    begin = jnp.clip(whole[0], first, end)
    stop = jnp.clip(whole[1], begin, end)
    if self.plan.mask.window is not None or self.plan.mask.causal:
      carry = run(True, first, begin, carry)
    carry = run(False, begin, stop, carry)
    return run(True, stop, end, carry)


def forward(p: Program) -> None:
  """Computes the output, with a running maximum and sum for each query."""
  queries, keys = plans.forward_tile_size(p.plan)
  first_q = pl.program_id(0) * queries
  q = p.q[...]

  def step(masked: bool, j: Array, carry: Any) -> Any:
    largest, total, y = carry
    part = pl.ds(j * keys, keys)
    s, _ = _logits(p, q, p.k[part], first_q, j * keys, masked)
    new = jnp.maximum(largest, s.max(1))
    rescale = jnp.exp2(largest - new)
    weights = jnp.exp2(s - new[:, None])
    y = y * rescale[:, None] + dot(weights.astype(q.dtype), p.v[part], (1, 0))
    return new, total * rescale + weights.sum(1), y

  largest = jnp.full((queries,), NOTHING, jnp.float32)
  total, y = (jnp.zeros(n, jnp.float32) for n in ((queries,), q.shape))
  carry = largest, total, y
  largest, total, y = p.over_keys(first_q, (queries, keys), step, carry)
  seen = total > 0
  total = jnp.where(seen, total, 1.0)
  p.y[...] = (y / total[:, None]).astype(p.y.dtype)
  lse = jnp.where(seen, largest + jnp.log2(total), MASKED)
  p.lse[...] = lse / LOG2_E


def query_gradient(p: Program) -> None:
  """Computes gradients of queries, and of their weights between anchors."""
  plan, n = p.plan, tile_size(p.plan)
  first_q = pl.program_id(0) * n
  q, dy = p.q[...], p.dy[...]
  lse, delta = (x[...][:, None] for x in (p.lse, p.delta))
  lse *= LOG2_E

  def step(masked: bool, j: Array, carry: Any) -> Any:
    dq, *dweights = carry
    k, v = (x[pl.ds(j * n, n)] for x in (p.k, p.v))
    s, change = _logits(p, q, k, first_q, j * n, masked)
    ds = jnp.exp2(s - lse) * (dot(dy, v, (1, 1)) - delta)
    dq += dot(ds.astype(k.dtype), k, (1, 0))
    if change is None:
      return (dq,)
    of_weights = ds * change
    if plan.two_sided:
      q_index, k_index = first_q + _index(n, 0), j * n + _index(n, 1)
      seen = _is_seen(p, q_index, k_index)
      of_weights = jnp.where(seen, of_weights, 0.0)
    return dq, dweights[0] + of_weights.sum(1)

  carry: tuple[Array, ...] = (jnp.zeros(q.shape, jnp.float32),)
  if plan.form == 'anchored':
    carry += (jnp.zeros((n,), jnp.float32),)
  dq, *dweights = p.over_keys(first_q, (n, n), step, carry)
  p.dq[...] = (dq * plan.scale).astype(p.dq.dtype)
  if dweights:
    p.dweights[...] = dweights[0] / LOG2_E


def key_gradient(p: Program) -> None:
  """Computes gradients of keys and values, summed over the heads of a group."""
  plan, n, width = p.plan, tile_size(p.plan), p.plan.head_dim
  first_k = pl.program_id(0) * n
  k, v = p.k[...], p.v[...]

  def of_head(head: Array, carry: Any) -> Any:
    columns = pl.ds(head * width, width)

    def step(masked: bool, i: Array, carry: Any) -> Any:
      dk, dv = carry
      part = pl.ds(i * n, n)
      q = p.q[pl.ds(plan.before + i * n, n), columns]
      dy = p.dy[part, columns]
      s, _ = _logits(
        p, q, k, i * n, first_k, masked, head=head, keys_first=True
      )
      weights = jnp.exp2(s - LOG2_E * p.lse[head, part][None])
      dp = dot(v, dy, (1, 1))
      ds = weights * (dp - p.delta[head, part][None])
      dv += dot(weights.astype(dy.dtype), dy, (1, 0))
      dk += dot(ds.astype(q.dtype), q, (1, 0))
      return dk, dv

    return p.over_queries(first_k, n, step, carry)

  carry = (jnp.zeros(k.shape, jnp.float32),) * 2
  dk, dv = jax.lax.fori_loop(0, p.lse.shape[0], of_head, carry)
  p.dk[...] = (dk * plan.scale).astype(p.dk.dtype)
  p.dv[...] = dv.astype(p.dv.dtype)


def distance_gradient(p: Program) -> None:
  """Computes gradients of rows by distance, as sums of tiles.

  A program sums the tiles at one distance from the diagonal, in one interval
  between anchors, over all rows of the batch that share a table.
  """
  plan, n = p.plan, tile_size(p.plan)
  apart = p.first_apart[0] + pl.program_id(0)
  interval = pl.program_id(1)
  first, end = 0, plan.length // n
  if plan.form == 'anchored':
    per_interval = plan.spacing // n
    first = interval * per_interval
    end = jnp.minimum((interval + 1) * per_interval, end)
  # The key's tile minus the query's.
  shift = (plan.first - plan.lowest) * plan.block // n - apart
  first = jnp.maximum(first, -shift)
  end = jnp.minimum(end, plan.blocks_k * plan.block // n - shift)
  needed = _is_needed(p, first * n, (first + shift) * n)
  end = jnp.where(needed, end, first)

  def step(i: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
    ds = _logit_gradient(p, i * n, (i + shift) * n)
    if plan.form == 'strip':
      return (sums[0] + ds,)
    near, far = sums
    q, k = i * n + _index(n, 0), (i + shift) * n + _index(n, 1)
    part = _weights(p, q, k) * ds
    return near + (ds - part), far + part

  sums = (jnp.zeros((n, n), jnp.float32),) * p.sums.shape[0]
  sums = jax.lax.fori_loop(first, end, step, sums)
  for kind, total in enumerate(sums):
    p.sums[kind] = total


def tile_gradient(p: Program) -> None:
  """Computes gradients of a dense bias."""
  n = tile_size(p.plan)
  first_k, first_q = (pl.program_id(axis) * n for axis in (0, 1))
  needed = _is_needed(p, first_q, first_k)
  if isinstance(needed, bool):
    p.ddense[...] = _logit_gradient(p, first_q, first_k)
    return
  p.ddense[...] = jax.lax.cond(
    needed,
    lambda: _logit_gradient(p, first_q, first_k),
    lambda: jnp.zeros((n, n), jnp.float32),
  )


def _is_needed(p: Program, first_q: Array, first_k: Array) -> bool | Array:
  """Returns whether a tile has a visible pair."""
  last = tile_size(p.plan) - 1
  first_q = p.first_query + first_q
  return visibility.tile_visibility(
    p.plan.mask, first_q, first_q + last, first_k, first_k + last
  )[0]


def _logit_gradient(p: Program, first_q: Array, first_k: Array) -> Array:
  """Returns the gradient of a tile's logits, summed over rows."""
  n = tile_size(p.plan)
  queries, keys = pl.ds(first_q, n), pl.ds(first_k, n)
  in_row = pl.ds(p.plan.before + first_q, n)

  def of_row(row: Array, total: Array) -> Array:
    q, k, v = p.q[row, in_row], p.k[row, keys], p.v[row, keys]
    s, _ = _logits(p, q, k, first_q, first_k, True, row=row)
    weights = jnp.exp2(s - LOG2_E * p.lse[row, queries][:, None])
    dp = dot(p.dy[row, queries], v, (1, 1))
    return total + weights * (dp - p.delta[row, queries][:, None])

  def of_row_if_seen(row: Array, total: Array) -> Array:
    i, j = (jax.lax.div(first, jnp.int32(n)) for first in (first_q, first_k))
    seen = (p.first_seen[row, i] <= j) & (j <= p.last_seen[row, i])
    return jax.lax.cond(seen, of_row, lambda _, total: total, row, total)

  step = of_row if p.first_seen is None else of_row_if_seen
  total = jnp.zeros((n, n), jnp.float32)
  return jax.lax.fori_loop(0, p.q.shape[0], step, total)


def _logits(
  p: Program,
  q: Array,
  k: Array,
  first_q: Array,
  first_k: Array,
  masked: bool,
  *,
  head: Array | int = 0,
  row: Array | int = 0,
  keys_first: bool = False,
) -> tuple[Array, Array | None]:
  """Returns logits of a tile, `[q, k]` or `[k, q]`, and the bias's change."""
  axis = 1 if keys_first else 0
  q_index = first_q + _index(q.shape[0], axis)
  k_index = first_k + _index(k.shape[0], 1 - axis)
  a, b = (k, q) if keys_first else (q, k)
  s = dot(a, b, (1, 1)) * (p.plan.scale * LOG2_E)
  change = None
  if p.plan.form != 'none':
    added, change = _bias(p, head, q_index, k_index)
    s += added
  if not masked:
    return s, change
  q_ids = k_ids = None
  if p.k_segment_ids is not None:
    queries = pl.ds(p.plan.before + first_q, q.shape[0])
    q_ids = jnp.expand_dims(p.q_segment_ids[row, queries], 1 - axis)
    keys = pl.ds(first_k, k.shape[0])
    k_ids = jnp.expand_dims(p.k_segment_ids[row, keys], axis)
  visible = visibility.visible(
    p.plan.mask,
    p.first_query + q_index,
    k_index,
    q_segment_ids=q_ids,
    k_segment_ids=k_ids,
    k_lengths=None if p.k_lengths is None else p.k_lengths[row],
  )
  return s if visible is None else jnp.where(visible, s, MASKED), change


def _index(n: int, axis: int) -> Array:
  """Returns 0 to n - 1 along an axis of two."""
  shape = (n, 1) if axis == 0 else (1, n)
  return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def _bias(
  p: Program, head: Array | int, q: Array, k: Array
) -> tuple[Array, Array | None]:
  """Returns the bias of pairs, and the next anchor's minus this anchor's.

  Both are divided by ln 2 and have the shape of `q - k`, where q and k are the
  index of queries in the range and of keys, `[n, 1]` and `[1, n]` or the
  reverse; without anchors the latter is None.
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
  return near + _weights(p, q, k) * change, change


def _weights(p: Program, q: Array, k: Array) -> Array:
  """Returns interpolation weights of pairs between anchors, 0 to 1."""
  weight = plgpu.load(p.weights.at[q])
  if not p.plan.two_sided:
    return weight
  spacing = jnp.int32(p.plan.spacing)
  linear = jax.lax.rem(q, spacing).astype(jnp.float32) / p.plan.spacing
  return jnp.where(_is_seen(p, q, k), weight, linear)


def _is_seen(p: Program, q: Array, k: Array) -> Array:
  """Returns whether keys are not after queries; see `_bias`."""
  return k <= q + p.first_query
