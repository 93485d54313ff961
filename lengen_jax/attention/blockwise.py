"""Attention block by block: no array over all pairs, forward or backward.

The forward pass keeps a running maximum and sum per query (online softmax). The
backward pass recomputes the logits of each tile and derives its gradients
analytically. The bias is evaluated from positions for one tile at a time, and
so is the gradient of its parameters. Fully masked tiles are skipped.

Sources: Rabe & Staats (2021), arXiv:2112.05682; Dao et al. (2022),
arXiv:2205.14135, algorithms 1 and 4.

Shapes: q queries and k keys in a tile, G key heads, R query heads per key head,
H = G R. Arrays of a block are `[B, H, q, D]`, heads first.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax import partitioning
from lengen_jax.attention import (
  bands,
  bias_forms,
  checks,
  sink_logits,
  visibility,
)
from lengen_jax.attention import call as call_lib
from lengen_jax.attention.call import AttentionCall, Side
from lengen_jax.attention.reference import MASKED
from lengen_jax.encodings import BiasFn


class Plan(NamedTuple):
  """How a call is computed."""

  block_q: int
  block_k: int
  form: str  # Of `bias_forms.choose`.
  # Outputs and gradients of vectors are float32, because they are summed over
  # calls that compute parts of one softmax.
  partial: bool = False


def make_plan(call: AttentionCall) -> Plan:
  """Returns how a call is computed, with blocks of at most its tokens."""
  contiguous = call.contiguous and call.queries.index.shape[0] == 1
  # The form 'keys' omits a constant per query, which cancels only in a softmax
  # without a sink. Bands may later be merged with a sink.
  per_key = call.queries.learned is not None and call.sink_logits is None
  per_key &= call.mask.band is None
  form = bias_forms.choose(call.bias, call.bias_form, contiguous, per_key)
  by_pair = call.bias if form != 'keys' else None
  size = block_size(by_pair, call.q.shape[3])
  return Plan(min(size, call.q.shape[1]), min(size, call.k.shape[1]), form)


def block_size(bias: BiasFn | None, head_dim: int) -> int:
  """Returns the tokens in a block, for a CPU's cache or a matrix unit."""
  if partitioning.platform() != 'cpu':
    return 512
  # XLA splits a head's product over cores only from about this size on. The
  # arrays of a bias are larger than the logits and leave the cache earlier.
  return 256 if bias is None and head_dim >= 64 else 128


def attend(call: AttentionCall) -> Array:
  """Returns attention, `[B, Q, H, D]`; see `dot_product_attention`."""
  if not call.bands:
    return _part(call)[0]
  parts = [_part(bands.of_band(call, band)) for band in call.bands]
  y, _ = bands.merged(parts, call.sink_logits)
  return y.astype(call.q.dtype)


def _part(call: AttentionCall) -> bands.Part:
  """Returns attention and log-sum-exps over the pairs of at most one band."""
  q_length, k_length = call.q.shape[1], call.k.shape[1]
  plan = make_plan(call)
  block_q, block_k = plan.block_q, plan.block_k
  logit_scale = jax.tree.map(
    lambda x: call_lib.pad(x, block_q)[..., None], call.logit_scale
  )
  padded = call.replace(
    q=call_lib.pad(call.q, block_q),
    k=call_lib.pad(call.k, block_k),
    v=call_lib.pad(call.v, block_k),
    queries=call.queries.padded(block_q),
    keys=call.keys.padded(block_k),
    logit_scale=logit_scale,
    mask=dataclasses.replace(call.mask, k_length=k_length),
    # Unused, and another value must not compile the loops again.
    q_offset=None,
  )
  y, lse = _compiled(plan, padded)
  return y[:, :q_length], whole(lse)[..., :q_length]


# The output `[B, Q, H, D]`, float32 for a band, and each softmax's log-sum-exp,
# `[N, B, H, q]`, MASKED if no key is visible.
Outputs = tuple[Array, Array]
# Arguments and outputs.
Residuals = tuple[AttentionCall, Array, Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, call: AttentionCall) -> Outputs:
  return forward(plan, call)[0]


def forward(plan: Plan, call: AttentionCall) -> tuple[Outputs, Residuals]:
  """Returns the outputs for whole blocks, and what `backward` needs."""
  batch, length, heads, _ = call.q.shape
  blocks_q, blocks_k = length // plan.block_q, call.k.shape[1] // plan.block_k
  rows = (batch, heads, plan.block_q)
  size = call.v.shape[-1]

  def query_block(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
    y, lse = carry
    queries = _with_queries(plan, call, i)

    def step(j: Array, carry: Any) -> Any:
      largest, total, y = carry
      tile = _with_keys(plan, queries, j)
      bias = bias_forms.tile(plan.form, tile.bias, tile.queries, tile.keys)
      if bias is not None:
        count = 1 if plan.form == 'keys' else tile.q.shape[2]
        pairs = *tile.q.shape[:2], count, tile.k.shape[2]
        checks.check_bias_shape(bias, pairs)
      content = _content_tile(
        tile.content,
        tile.q,
        tile.k,
        tile.queries.positions,
        tile.keys.positions,
      )
      s, _ = _logits(tile, bias, content)
      new = jnp.maximum(largest, s.max(-1))
      # While no key is visible, weights must be 0 and not exp(0).
      base = jnp.where(new > MASKED, new, 0.0)
      p = jnp.exp(s - base[..., None])
      rescale = jnp.exp(largest - base)
      total = total * rescale + p.sum(-1)
      y = y * rescale[..., None] + _weighted(tile, p)
      return new, total, y

    # Relative to key 0 of block 0.
    index = queries.queries.index - call.keys.index[:, :1]
    bounds = visibility.some_blocks(
      call.mask, index.min(), index.max(), plan.block_k, blocks_k
    )
    needed = _is_needed(call.mask, queries.queries, call.keys, plan.block_k)
    largest = jnp.full(rows, MASKED, jnp.float32)
    total, y_i = (jnp.zeros(n, jnp.float32) for n in (rows, (*rows, size)))
    if call.sink_logits is not None:
      # The sink is a key without a value, seen first.
      largest = jnp.broadcast_to(call.sink_logits[None, :, None], rows)
      total = jnp.ones(rows, jnp.float32)
    largest, total, y_i = _over(bounds, needed, step, (largest, total, y_i))
    # Without a visible key, `largest` is MASKED.
    total = jnp.where(total > 0, total, 1.0)
    y = _write(y, y_i / total[..., None], i)
    return y, lse.at[i].set(largest + jnp.log(total))

  in_float32 = plan.partial or call.mask.band is not None
  dtype = jnp.float32 if in_float32 else call.q.dtype
  y = jnp.zeros((*call.q.shape[:3], size), dtype)
  lse = jnp.zeros((blocks_q, *rows), jnp.float32)
  y, lse = jax.lax.fori_loop(0, blocks_q, query_block, (y, lse))
  return (y, lse), (call, y, lse)


def backward(
  plan: Plan, residuals: Residuals, doutputs: Outputs
) -> tuple[AttentionCall]:
  """Returns the gradients of the arrays of the call, as a call."""
  call, y, lse_NxBxHxq = residuals
  dy, dlse_NxBxHxq = doutputs
  blocks_q = call.q.shape[1] // plan.block_q
  blocks_k = call.k.shape[1] // plan.block_k
  # Once for all tiles. The gradient of a log-sum-exp is the softmax. Where no
  # key is visible, weights must be 0 and not exp(0).
  base_NxBxHxq = jnp.where(lse_NxBxHxq > MASKED, lse_NxBxHxq, 0.0)
  delta_BxHxQ = jnp.swapaxes(_delta(y, dy), 1, 2)
  delta_BxHxNxq = delta_BxHxQ.reshape(*delta_BxHxQ.shape[:2], blocks_q, -1)
  delta_NxBxHxq = jnp.moveaxis(delta_BxHxNxq, 2, 0) - dlse_NxBxHxq
  softmax = base_NxBxHxq, delta_NxBxHxq

  def key_block(j: Array, carry: Any) -> Any:
    *totals, gradients = carry
    keys = _with_keys(plan, call, j)

    def step(i: Array, gradients: AttentionCall) -> AttentionCall:
      return _add_tile(plan, call, softmax, dy, keys, (i, j), gradients)

    index, offset = keys.keys.index, call.queries.index[:, 0]
    dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in (keys.k, keys.v))
    first, last = index.min() - offset.max(), index.max() - offset.min()
    bounds = visibility.some_blocks(
      call.mask, first, last, plan.block_q, blocks_q, of_queries=True
    )
    needed = _is_needed(
      call.mask, keys.keys, call.queries, plan.block_q, keys_first=True
    )
    gradients = _over(bounds, needed, step, gradients.replace(k=dk, v=dv))
    blocks = gradients.k, gradients.v
    dk, dv = (_write(*x, j) for x in zip(totals, blocks, strict=True))
    return dk, dv, gradients.replace(k=None, v=None)

  zeros = jax.tree.map(
    jnp.zeros_like,
    call.replace(
      queries=call.queries.gradient(call.queries.learned),
      keys=call.keys.gradient(call.keys.learned),
    ),
  )
  sums = zeros.replace(q=zeros.q.astype(jnp.float32), k=None, v=None)
  if plan.partial:
    vectors = (zeros.q, zeros.k, zeros.v)
    q, k, v = (x.astype(jnp.float32) for x in vectors)
    zeros = zeros.replace(q=q, k=k, v=v)
  carry = zeros.k, zeros.v, sums
  dk, dv, sums = jax.lax.fori_loop(0, blocks_k, key_block, carry)
  if call.sink_logits is not None:
    dsinks = sink_logits.gradient(
      call.sink_logits, whole(lse_NxBxHxq), whole(delta_NxBxHxq)
    )
    sums = sums.replace(sink_logits=dsinks)
  return (sums.replace(q=sums.q.astype(zeros.q.dtype), k=dk, v=dv),)


def _add_tile(
  plan: Plan,
  call: AttentionCall,
  softmax: tuple[Array, Array],
  dy_BxQxHxD: Array,
  keys: AttentionCall,
  at: tuple[Array, Array],
  gradients: AttentionCall,
) -> AttentionCall:
  """Returns gradients, summed in float32, with those of tile (i, j) added.

  `softmax` has the log-sum-exps and what the softmax's gradient subtracts, both
  `[N, B, H, q]`.
  """
  (i, j), (lse, delta) = at, softmax
  groups = call.k.shape[2]
  tile = _with_queries(plan, keys, i)
  dy = _read(dy_BxQxHxD, i, plan.block_q)
  learned = tile.queries.learned, tile.keys.learned

  def sides(learned: tuple[Any, Any]) -> tuple[Side, Side]:
    q_learned, k_learned = learned
    queries = tile.queries.with_learned(q_learned)
    return queries, tile.keys.with_learned(k_learned)

  bias, to_bias = jax.vjp(
    lambda bias, learned: bias_forms.tile(plan.form, bias, *sides(learned)),
    call.bias,
    learned,
  )
  content, to_content = jax.vjp(
    lambda content, q, k, learned: _content_tile(
      content, q, k, *(side.positions for side in sides(learned))
    ),
    call.content,
    tile.q,
    tile.k,
    learned,
  )
  s, raw = _logits(tile, bias, content)
  p = jnp.exp(s - lse[i][..., None])
  grouped_dy = _grouped(dy, groups)

  dv = gradients.v + _einsum(
    'bgrqk,bgrqd->bgkd', _grouped(p, groups), grouped_dy
  )
  dp = _merged(_einsum('bgrqd,bgkd->bgrqk', grouped_dy, tile.v))
  dcontent = gradients.content
  if call.content is not None:
    dcontent, dp = _content_values_gradient(tile, p, dy, dcontent, dp)
  ds = p * (dp - delta[i][..., None])

  dbias, dlearned = gradients.bias, []
  if bias is not None:
    summed = [n for n in (0, 2) if bias.shape[n] < ds.shape[n]]
    total = ds.sum(summed, keepdims=True) if summed else ds
    dbias_i, dlearned_i = to_bias(total)
    dbias = jax.tree.map(jnp.add, dbias, dbias_i)
    dlearned.append(dlearned_i)
  if call.logit_cap is not None:
    ds *= 1 - jnp.tanh(_scaled(tile, raw) / call.logit_cap) ** 2
  draw = ds * call.scale
  dlogit_scale, logit_scale = gradients.logit_scale, tile.logit_scale
  if logit_scale is not None:
    moved = draw * raw
    for axis, size in enumerate(logit_scale.shape[:2]):
      if size == 1:
        moved = moved.sum(axis, keepdims=True)
    dlogit_scale = _add(dlogit_scale, moved.sum(-1, keepdims=True), i)
    draw *= logit_scale

  grouped = _grouped(draw, groups)
  dq = _merged(_einsum('bgrqk,bgkd->bgrqd', grouped, tile.k))
  dk = gradients.k + _einsum(
    'bgrqk,bgrqd->bgkd', grouped, _grouped(tile.q, groups)
  )
  if content is not None:
    dcontent_i, dq_content, dk_content, dlearned_i = to_content(draw)
    dlearned.append(dlearned_i)
    dcontent = jax.tree.map(jnp.add, dcontent, dcontent_i)
    dq += dq_content.astype(jnp.float32)
    dk += dk_content.astype(jnp.float32)
  dq = _add(gradients.q, dq, i)
  dqueries, dkeys = gradients.queries, gradients.keys
  for of_queries, of_keys in dlearned if dkeys is not None else ():
    dqueries = _add_learned(dqueries, of_queries, i)
    dkeys = _add_learned(dkeys, of_keys, j)
  return gradients.replace(
    q=dq,
    k=dk,
    v=dv,
    bias=dbias,
    content=dcontent,
    logit_scale=dlogit_scale,
    queries=dqueries,
    keys=dkeys,
  )


def whole(lse_NxBxHxq: Array) -> Array:
  """Returns log-sum-exps of blocks of queries as `[B, H, Q]`."""
  lse_BxHxNxq = jnp.moveaxis(lse_NxBxHxq, 0, 2)
  return lse_BxHxNxq.reshape(*lse_BxHxNxq.shape[:2], -1)


def _delta(y: Array, dy: Array) -> Array:
  """Returns sum_j p_ij dp_ij, which the softmax's gradient subtracts."""
  return jnp.sum(y.astype(jnp.float32) * dy.astype(jnp.float32), axis=-1)


_attend.defvjp(forward, backward)
# Without jit, an eager call would compile its loops each time.
_compiled = jax.jit(_attend, static_argnums=0)


def _logits(
  tile: AttentionCall, bias: Array | None, content: Array | None
) -> tuple[Array, Array]:
  """Returns masked logits of a tile, and q k + content before any scaling."""
  q, k = _grouped(tile.q, tile.k.shape[1]), tile.k
  # Queries keep their dtype, also if that of keys has fewer bits.
  product = jnp.einsum(
    'bgrqd,bgkd->bgrqk', q, k, preferred_element_type=jnp.float32
  )
  raw = _merged(product)
  if content is not None:
    raw += content
  s = _scaled(tile, raw)
  if tile.logit_cap is not None:
    s = tile.logit_cap * jnp.tanh(s / tile.logit_cap)
  if bias is not None:
    s += bias
  visible = call_lib.visible_pairs(tile.mask, tile.queries, tile.keys)[:, None]
  if (band := tile.mask.band) is not None:
    visible &= bands.pairs(band, tile.queries.places, tile.keys.places)
  return jnp.where(visible, s, MASKED), raw


def _scaled(tile: AttentionCall, raw: Array) -> Array:
  """Returns the logits of a tile before cap, bias and mask."""
  s = raw * tile.scale
  return s if tile.logit_scale is None else s * tile.logit_scale


def _content_tile(
  content: Any, q: Array, k: Array, q_positions: Any, k_positions: Any
) -> Array | None:
  """Returns the content term of a tile's logits, `[B, H, q, k]`, or None."""
  if content is None:
    return None
  q, k = (jnp.swapaxes(x, 1, 2) for x in (q, k))
  k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
  return content.logits(q, k, q_positions, k_positions)


def _weighted(tile: AttentionCall, p: Array) -> Array:
  """Returns values weighted by p, `[B, H, q, D]`."""
  v = tile.v
  y = _merged(_einsum('bgrqk,bgkd->bgrqd', _grouped(p, v.shape[1]), v))
  if tile.content is not None:
    values = tile.content.values(p, tile.queries.positions, tile.keys.positions)
    y += 0.0 if values is None else jnp.swapaxes(values, 1, 2)
  return y


def _content_values_gradient(
  tile: AttentionCall, p: Array, dy: Array, dcontent: Any, dp: Array
) -> tuple[Any, Array]:
  """Returns dcontent and dp plus the gradients of the values' content term."""

  def values(content: Any, p: Array) -> Array | None:
    return content.values(p, tile.queries.positions, tile.keys.positions)

  if jax.eval_shape(values, tile.content, p) is None:
    return dcontent, dp
  _, gradient = jax.vjp(values, tile.content, p)
  more_content, more_p = gradient(jnp.swapaxes(dy, 1, 2).astype(jnp.float32))
  return jax.tree.map(jnp.add, dcontent, more_content), dp + more_p


def _is_needed(
  mask: visibility.Mask,
  block: Side,
  others: Side,
  size: int,
  keys_first: bool = False,
) -> Callable[[Array], Array] | None:
  """Returns a function of n: whether block n of `others` must be computed.

  If it returns False, the tile is fully masked. Returns None instead of a
  function if all blocks in range must be computed.
  """
  has_sinks, band = mask.sinks > 0, mask.band
  if block.segment_ids is None and not has_sinks and band is None:
    return None
  # Positions are not needed.
  others = others.replace(positions=others.index)

  def needed(n: Array) -> Array:
    other = others.block(n, size)
    queries, keys = (other, block) if keys_first else (block, other)
    answer = jnp.bool_(True)
    if queries.segment_ids is not None:
      answer &= queries.segment_ids.min() <= keys.segment_ids.max()
      answer &= keys.segment_ids.min() <= queries.segment_ids.max()
    if has_sinks:
      far = queries.index.min() - keys.index.max() >= mask.window
      answer &= ~far | keys.sink.any()
    if band is not None:
      answer &= bands.may_meet(band, queries.places, keys.places)
    return answer

  return needed


def _over(
  bounds: tuple[Array, Array],
  needed: Callable[[Array], Array] | None,
  step: Callable[[Array, Any], Any],
  carry: Any,
) -> Any:
  """Runs `step` over the blocks within bounds, where needed."""

  def body(n: Array, carry: Any) -> Any:
    if needed is None:
      return step(n, carry)
    return jax.lax.cond(needed(n), step, lambda n, carry: carry, n, carry)

  return jax.lax.fori_loop(bounds[0], bounds[1] + 1, body, carry)


def _with_queries(plan: Plan, call: AttentionCall, i: Array) -> AttentionCall:
  """Returns the call with block i of its queries, heads first."""
  q, logit_scale = jax.tree.map(
    lambda x: _read(x, i, plan.block_q), (call.q, call.logit_scale)
  )
  queries = call.queries.block(i, plan.block_q)
  return call.replace(q=q, queries=queries, logit_scale=logit_scale)


def _with_keys(plan: Plan, call: AttentionCall, j: Array) -> AttentionCall:
  """Returns the call with block j of its keys and values, heads first."""
  k, v = (_read(x, j, plan.block_k) for x in (call.k, call.v))
  return call.replace(k=k, v=v, keys=call.keys.block(j, plan.block_k))


def _read(x_BxNxHxD: Array, n: Array, block: int) -> Array:
  """Returns block n of the tokens, `[B, H, block, D]`."""
  x = jax.lax.dynamic_slice_in_dim(x_BxNxHxD, n * block, block, axis=1)
  return jnp.swapaxes(x, 1, 2)


def _write(x_BxNxHxD: Array, block_BxHxnxD: Array, n: Array) -> Array:
  """Returns x with block n replaced; the inverse of `_read`."""
  new = jnp.swapaxes(block_BxHxnxD, 1, 2).astype(x_BxNxHxD.dtype)
  return jax.lax.dynamic_update_slice_in_dim(
    x_BxNxHxD, new, n * new.shape[1], axis=1
  )


def _add(x_BxNxHxD: Array, block_BxHxnxD: Array, n: Array) -> Array:
  """Returns x with a block added to its block n."""
  before = _read(x_BxNxHxD, n, block_BxHxnxD.shape[2])
  return _write(x_BxNxHxD, before + block_BxHxnxD, n)


def _add_learned(gradient: Side, block_BxnxH: Array, n: Array) -> Side:
  """Returns the gradient of positions with that of block n added."""
  whole_BxNxH, size = gradient.learned, block_BxnxH.shape[1]
  new = block_BxnxH + jax.lax.dynamic_slice_in_dim(
    whole_BxNxH, n * size, size, axis=1
  )
  return gradient.with_learned(
    jax.lax.dynamic_update_slice_in_dim(whole_BxNxH, new, n * size, axis=1)
  )


def _einsum(equation: str, a: Array, b: Array) -> Array:
  """Returns a product in the dtype of b, summed in float32."""
  return jnp.einsum(
    equation, a.astype(b.dtype), b, preferred_element_type=jnp.float32
  )


def _grouped(x: Array, groups: int) -> Array:
  """Returns `[B, G, R, ...]`: heads split by the key head that they read."""
  return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _merged(x: Array) -> Array:
  return x.reshape(x.shape[0], -1, *x.shape[3:])
