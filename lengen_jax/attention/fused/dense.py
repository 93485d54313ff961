"""Attention in kernels with a bias per pair, which XLA computes in chunks.

A bias at arbitrary positions differs for every pair of tokens. XLA computes the
tiles of one block of queries and one chunk of keys, and the kernels read them.
The forward pass merges the chunks of a block of queries by their log-sum-exps.

Shapes: b queries in a block, c keys in a chunk.
"""

import dataclasses
import functools
import types

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax.attention import visibility
from lengen_jax.attention.call import AttentionCall
from lengen_jax.attention.fused import MASKED, merge, tables
from lengen_jax.attention.fused.plan import Inputs, Plan

# Limit of the memory for the tiles of a chunk; at least one tile is computed.
MAX_BYTES = 2**25


def attend(chip: types.ModuleType, plan: Plan, call: AttentionCall) -> Array:
  """Returns attention of the plan's queries, the first ones, `[B, n, H D]`."""
  batch, block = call.q.shape[0], plan.block
  rows = 1 if plan.shared_positions else batch
  most = MAX_BYTES // (4 * rows * plan.heads_of(call.q) * block**2)
  divisors = [n for n in range(1, plan.blocks_k + 1) if plan.blocks_k % n == 0]
  chunk = max(n for n in divisors if n <= max(1, most))
  # Padded keys are in the last chunk only.
  lengths, end = call.keys.lengths, plan.mask.k_length
  if end is not None:
    whole = jnp.full(batch, end, jnp.int32)
    lengths = whole if lengths is None else jnp.minimum(lengths, end)
  read = plan.blocks_k * block
  k, v = (x[:, :read] for x in (call.k, call.v))
  return _attend(
    chip,
    dataclasses.replace(
      plan,
      blocks_q=1,
      blocks_k=chunk,
      mask=dataclasses.replace(plan.mask, k_length=None),
    ),
    call.replace(
      q=call.q[:, : plan.length],
      k=k,
      v=v,
      queries=call.queries.padded(block),
      keys=call.keys.replace(lengths=lengths).padded(read),
    ),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(chip: types.ModuleType, plan: Plan, call: AttentionCall) -> Array:
  return _forward(chip, plan, call)[0]


Residuals = tuple[AttentionCall, Array, Array]


def _forward(
  chip: types.ModuleType, plan: Plan, call: AttentionCall
) -> tuple[Array, Residuals]:
  batch, _, width = call.q.shape
  rows = batch, plan.heads_of(call.q), 1, plan.block

  def of_block(i: Array) -> tuple[Array, Array]:

    def add_chunk(n: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
      part = _part(plan, call, i, n)
      table = tables.make(plan, part.bias, part)
      more = chip.calls.forward(plan, Inputs.create(plan, part, table))
      return merge.merged(plan, carry, more)

    y = jnp.zeros((batch, plan.block, width), jnp.float32)
    lse = jnp.full(rows, MASKED, jnp.float32)
    first, last = _chunks(plan, call, i)
    whole = jax.lax.fori_loop(first, last + 1, add_chunk, (y, lse))
    y, lse = merge.with_sinks(plan, whole, call.sink_logits)
    return y.astype(call.q.dtype), merge.finite(lse)

  y_NxBxbxHD, lse_NxBxHx1xb = jax.lax.map(
    of_block, jnp.arange(call.q.shape[1] // plan.block)
  )
  y = jnp.swapaxes(y_NxBxbxHD, 0, 1).reshape(call.q.shape)
  return y, (call, y, lse_NxBxHx1xb)


def _backward(
  chip: types.ModuleType, plan: Plan, residuals: Residuals, dy: Array
) -> tuple[AttentionCall]:
  call, y, lse_NxBxHx1xb = residuals
  zeros = jax.tree.map(
    jnp.zeros_like, call.replace(q=None, queries=None, keys=None)
  )
  dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in (call.k, call.v))
  zeros = zeros.replace(k=dk, v=dv)

  def of_block(sums: AttentionCall, i: Array) -> tuple[AttentionCall, Array]:
    own = _slice(y, i, plan.block), lse_NxBxHx1xb[i], _slice(dy, i, plan.block)

    def add_chunk(n: Array, sums: AttentionCall) -> AttentionCall:
      part = _part(plan, call, i, n)
      table, to_bias = jax.vjp(
        lambda bias: tables.make(plan, bias, part), part.bias
      )
      inputs = Inputs.create(plan, part, table).with_gradients(plan, *own)
      dq, dtable = chip.calls.query_gradients(plan, inputs)
      dk, dv, _ = chip.calls.key_gradients(plan, inputs)
      (dbias,) = to_bias(dtable)
      return sums.replace(
        q=sums.q + dq,
        k=_add(sums.k, dk, n),
        v=_add(sums.v, dv, n),
        bias=jax.tree.map(jnp.add, sums.bias, dbias),
      )

    dq = jnp.zeros(own[0].shape, jnp.float32)
    first, last = _chunks(plan, call, i)
    sums = jax.lax.fori_loop(first, last + 1, add_chunk, sums.replace(q=dq))
    return sums.replace(q=None), sums.q.astype(call.q.dtype)

  sums, dq_NxBxbxHD = jax.lax.scan(
    of_block, zeros, jnp.arange(len(lse_NxBxHx1xb))
  )
  dq = jnp.swapaxes(dq_NxBxbxHD, 0, 1).reshape(call.q.shape)
  dk, dv = (x.astype(call.k.dtype) for x in (sums.k, sums.v))
  lse = jnp.moveaxis(lse_NxBxHx1xb, 0, 3)
  part = y, lse.reshape(*lse.shape[:3], -1)
  dsinks = merge.sink_gradient(plan, part, dy, call.sink_logits)
  return (sums.replace(q=dq, k=dk, v=dv, sink_logits=dsinks),)


_attend.defvjp(_forward, _backward)


def _part(plan: Plan, call: AttentionCall, i: Array, n: Array) -> AttentionCall:
  """Returns the call with block i of its queries and chunk n of its keys."""
  size = plan.blocks_k * plan.block
  keys = call.keys.block(n, size)
  if keys.lengths is not None:
    keys = keys.replace(lengths=keys.lengths - keys.index[0, 0])
  return call.replace(
    q=_slice(call.q, i, plan.block),
    k=_slice(call.k, n, size),
    v=_slice(call.v, n, size),
    queries=call.queries.block(i, plan.block),
    keys=keys,
  )


def _chunks(plan: Plan, call: AttentionCall, i: Array) -> tuple[Array, Array]:
  """Returns the first and the last chunk that block i of queries may see."""
  b, size = plan.block, plan.blocks_k * plan.block
  queries = call.queries.block(i, b)
  index = queries.index[0]
  count = call.k.shape[1] // size
  first, last = visibility.some_blocks(
    plan.mask, index[0], index[-1], size, count
  )
  if queries.segment_ids is None:
    return first, last
  seen = visibility.segment_blocks(
    queries.segment_ids, b, call.keys.segment_ids, size
  )
  return jnp.maximum(first, seen[0].min()), jnp.minimum(last, seen[1].max())


def _slice(x_BxNxHD: Array, n: Array, size: int) -> Array:
  return jax.lax.dynamic_slice_in_dim(x_BxNxHD, n * size, size, axis=1)


def _add(x_BxNxHD: Array, block: Array, n: Array) -> Array:
  """Returns x with a block added to its nth block."""
  size = block.shape[1]
  new = _slice(x_BxNxHD, n, size) + block
  return jax.lax.dynamic_update_slice_in_dim(x_BxNxHD, new, n * size, axis=1)
