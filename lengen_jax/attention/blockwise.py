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
from typing import Any

from flax import struct
import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax.attention import bias_forms, tiles, visibility
from lengen_jax.attention import call as call_lib
from lengen_jax.attention.call import AttentionCall, Side
from lengen_jax.attention.reference import MASKED

Step = Callable[[Array, Any], Any]


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is static.

  Attributes:
    block_q: queries in a block.
    block_k: keys in a block.
    blocks_q: number of blocks of queries.
    blocks_k: number of blocks of keys.
    form: of the bias, from `bias_forms.choose`.
  """

  block_q: int
  block_k: int
  blocks_q: int
  blocks_k: int
  form: str


class Block(struct.PyTreeNode):
  """A block of queries, or of keys and values.

  Attributes:
    x: queries or keys, `[B, H or G, n, D]`.
    tokens: their Side.
    v: values like the keys, or None for queries.
    logit_scale: `[1 or B, 1 or H, q, 1]`, or None.
  """

  x: Any
  tokens: Side
  v: Any = None
  logit_scale: Any = None


def attend(call: AttentionCall) -> Array:
  """Returns attention, `[B, Q, H, D]`; see `dot_product_attention`."""
  q_length, k_length = call.q.shape[1], call.k.shape[1]
  block_q, block_k = (min(tiles.block_size(), n) for n in (q_length, k_length))
  plan = Plan(
    block_q=block_q,
    block_k=block_k,
    blocks_q=-(-q_length // block_q),
    blocks_k=-(-k_length // block_k),
    form=bias_forms.choose(
      call.bias,
      call.bias_form,
      call.contiguous and call.queries.index.shape[0] == 1,
    ),
  )
  scale = call.logit_scale
  padded = call.replace(
    q=call_lib.pad(call.q, block_q),
    k=call_lib.pad(call.k, block_k),
    v=call_lib.pad(call.v, block_k),
    queries=call.queries.padded(block_q),
    keys=call.keys.padded(block_k),
    logit_scale=None if scale is None else call_lib.pad(scale, block_q),
    mask=dataclasses.replace(call.mask, k_length=k_length),
    # Unused, and another value must not compile the loops again.
    q_offset=None,
  )
  if scale is not None:
    padded = padded.replace(logit_scale=padded.logit_scale[..., None])
  return _compiled(plan, padded)[:, :q_length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, call: AttentionCall) -> Array:
  y, _ = _forward(plan, call)
  return y


def _forward(plan: Plan, call: AttentionCall) -> tuple[Array, Array]:
  """Returns the output, and each softmax's log-sum-exp, `[N, B, H, q]`."""
  batch, _, heads, _ = call.q.shape
  rows = (batch, heads, plan.block_q)
  size = call.v.shape[-1]

  def query_block(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
    y, lse = carry
    queries = _query_block(plan, call, i)

    def step(j: Array, carry: Any) -> Any:
      largest, total, y = carry
      keys = _key_block(plan, call, j)
      bias = bias_forms.tile(plan.form, call.bias, queries.tokens, keys.tokens)
      _check_tile(bias, queries, keys)
      content = _content_tile(
        call.content, queries.x, keys.x, queries.tokens, keys.tokens
      )
      s, _ = _logits(call, queries, keys, bias, content)
      new = jnp.maximum(largest, s.max(-1))
      # While no key is visible, weights must be 0 and not exp(0).
      base = jnp.where(new > MASKED, new, 0.0)
      p = jnp.exp(s - base[..., None])
      rescale = jnp.exp(largest - base)
      total = total * rescale + p.sum(-1)
      y = y * rescale[..., None] + _weighted(call, p, queries, keys)
      return new, total, y

    largest, total, y_i = _over(
      visibility.key_blocks(
        call.mask,
        queries.tokens.index.min(),
        queries.tokens.index.max(),
        plan.block_k,
        plan.blocks_k,
      ),
      _is_needed(call.mask, queries.tokens, call.keys, plan.block_k),
      step,
      (
        jnp.full(rows, MASKED, jnp.float32),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros((*rows, size), jnp.float32),
      ),
    )
    seen = total > 0
    total = jnp.where(seen, total, 1.0)
    y = tiles.write(y, y_i / total[..., None], i)
    lse = lse.at[i].set(jnp.where(seen, largest + jnp.log(total), 0.0))
    return y, lse

  y = jnp.zeros((*call.q.shape[:3], size), call.q.dtype)
  lse = jnp.zeros((plan.blocks_q, *rows), jnp.float32)
  return jax.lax.fori_loop(0, plan.blocks_q, query_block, (y, lse))


Residuals = tuple[AttentionCall, Array, Array]


def _forward_with_residuals(
  plan: Plan, call: AttentionCall
) -> tuple[Array, Residuals]:
  y, lse = _forward(plan, call)
  return y, (call, y, lse)


class _Gradients(struct.PyTreeNode):
  """Gradients that are summed over tiles, float32; `dk`, `dv` of a block."""

  q: Any
  bias: Any
  content: Any
  logit_scale: Any
  k: Any = None
  v: Any = None


def _backward(
  plan: Plan, residuals: Residuals, dy_BxQxHxD: Array
) -> tuple[AttentionCall]:
  call, *_ = residuals

  def key_block(j: Array, carry: Any) -> Any:
    dk_all, dv_all, gradients = carry
    keys = _key_block(plan, call, j)

    def step(i: Array, gradients: _Gradients) -> _Gradients:
      return _add_tile(plan, residuals, dy_BxQxHxD, keys, i, gradients)

    index, offset = keys.tokens.index, call.queries.index[:, 0]
    zeros = [jnp.zeros(x.shape, jnp.float32) for x in (keys.x, keys.v)]
    gradients = _over(
      visibility.query_blocks(
        call.mask,
        index.min() - offset.max(),
        index.max() - offset.min(),
        plan.block_q,
        plan.blocks_q,
      ),
      _is_needed(
        call.mask, keys.tokens, call.queries, plan.block_q, keys_first=True
      ),
      step,
      gradients.replace(k=zeros[0], v=zeros[1]),
    )
    dk_all = tiles.write(dk_all, gradients.k, j)
    dv_all = tiles.write(dv_all, gradients.v, j)
    return dk_all, dv_all, gradients.replace(k=None, v=None)

  dk, dv, gradients = jax.lax.fori_loop(
    0,
    plan.blocks_k,
    key_block,
    (
      jnp.zeros_like(call.k),
      jnp.zeros_like(call.v),
      _Gradients(
        q=jnp.zeros(call.q.shape, jnp.float32),
        bias=jax.tree.map(jnp.zeros_like, call.bias),
        content=jax.tree.map(jnp.zeros_like, call.content),
        logit_scale=jax.tree.map(jnp.zeros_like, call.logit_scale),
      ),
    ),
  )
  found = call.replace(
    q=gradients.q.astype(call.q.dtype),
    k=dk,
    v=dv,
    queries=None,
    keys=None,
    bias=gradients.bias,
    content=gradients.content,
    logit_scale=gradients.logit_scale,
  )
  return (found,)


def _add_tile(
  plan: Plan,
  residuals: Residuals,
  dy_BxQxHxD: Array,
  keys: Block,
  i: Array,
  gradients: _Gradients,
) -> _Gradients:
  """Returns gradients with those of one tile added."""
  call, y_BxQxHxD, lse = residuals
  groups = call.k.shape[2]
  queries = _query_block(plan, call, i)
  sides = queries.tokens, keys.tokens
  y, dy = (tiles.read(x, i, plan.block_q) for x in (y_BxQxHxD, dy_BxQxHxD))
  # sum_j p_ij dp_ij, which the softmax's gradient subtracts.
  delta = jnp.sum(y.astype(jnp.float32) * dy.astype(jnp.float32), axis=-1)
  bias, to_bias = jax.vjp(
    lambda bias: bias_forms.tile(plan.form, bias, *sides), call.bias
  )
  content, to_content = jax.vjp(
    lambda content, q, k: _content_tile(content, q, k, *sides),
    call.content,
    queries.x,
    keys.x,
  )
  s, raw = _logits(call, queries, keys, bias, content)
  p = jnp.exp(s - lse[i][..., None])
  grouped_dy = _grouped(dy, groups)

  dv = gradients.v + _einsum(
    'bgrqk,bgrqd->bgkd', _grouped(p, groups), grouped_dy
  )
  dp = _merged(_einsum('bgrqd,bgkd->bgrqk', grouped_dy, keys.v))
  dcontent = gradients.content
  if call.content is not None:
    dcontent, dp = _content_values_gradient(
      call.content, p, dy, sides, dcontent, dp
    )
  ds = p * (dp - delta[..., None])

  dbias = gradients.bias
  if bias is not None:
    shared_positions = bias.shape[0] < ds.shape[0]
    rows = ds.sum(0, keepdims=True) if shared_positions else ds
    dbias = jax.tree.map(jnp.add, dbias, to_bias(rows)[0])
  draw = ds * call.scale
  dlogit_scale, logit_scale = gradients.logit_scale, queries.logit_scale
  if logit_scale is not None:
    moved = draw * raw
    for axis, size in enumerate(logit_scale.shape[:2]):
      if size == 1:
        moved = moved.sum(axis, keepdims=True)
    dlogit_scale = tiles.add(dlogit_scale, moved.sum(-1, keepdims=True), i)
    draw *= logit_scale

  grouped = _grouped(draw, groups)
  dq = _merged(_einsum('bgrqk,bgkd->bgrqd', grouped, keys.x))
  dk = gradients.k + _einsum(
    'bgrqk,bgrqd->bgkd', grouped, _grouped(queries.x, groups)
  )
  if content is not None:
    dcontent_i, dq_content, dk_content = to_content(draw)
    dcontent = jax.tree.map(jnp.add, dcontent, dcontent_i)
    dq += dq_content.astype(jnp.float32)
    dk += dk_content.astype(jnp.float32)
  return _Gradients(
    q=tiles.add(gradients.q, dq, i),
    bias=dbias,
    content=dcontent,
    logit_scale=dlogit_scale,
    k=dk,
    v=dv,
  )


_attend.defvjp(_forward_with_residuals, _backward)
# Without jit, an eager call would compile its loops each time.
_compiled = jax.jit(_attend, static_argnums=0)


def _check_tile(bias: Array | None, queries: Block, keys: Block) -> None:
  """Raises unless the bias of a tile has its shape."""
  if bias is not None:
    call_lib.check_bias_shape(bias, (*queries.x.shape[:3], keys.x.shape[2]))


def _logits(
  call: AttentionCall,
  queries: Block,
  keys: Block,
  bias: Array | None,
  content: Array | None,
) -> tuple[Array, Array]:
  """Returns masked logits of a tile, and q k + content before any scaling."""
  k = keys.x
  raw = _merged(
    _einsum('bgrqd,bgkd->bgrqk', _grouped(queries.x, k.shape[1]), k)
  )
  if content is not None:
    raw += content
  s = raw * call.scale
  if queries.logit_scale is not None:
    s *= queries.logit_scale
  if bias is not None:
    s += bias
  visible = call_lib.visible_pairs(call.mask, queries.tokens, keys.tokens)
  return jnp.where(visible[:, None], s, MASKED), raw


def _content_tile(
  content: Any, q: Array, k: Array, queries: Side, keys: Side
) -> Array | None:
  """Returns the content term of a tile's logits, `[B, H, q, k]`, or None."""
  if content is None:
    return None
  q, k = (jnp.swapaxes(x, 1, 2) for x in (q, k))
  k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
  return content.logits(q, k, queries.positions, keys.positions)


def _weighted(
  call: AttentionCall, p: Array, queries: Block, keys: Block
) -> Array:
  """Returns values weighted by p, `[B, H, q, D]`."""
  v = keys.v
  y = _merged(_einsum('bgrqk,bgkd->bgrqd', _grouped(p, v.shape[1]), v))
  if call.content is not None:
    values = call.content.values(
      p, queries.tokens.positions, keys.tokens.positions
    )
    y += 0.0 if values is None else jnp.swapaxes(values, 1, 2)
  return y


def _content_values_gradient(
  content: Any,
  p: Array,
  dy: Array,
  sides: tuple[Side, Side],
  dcontent: Any,
  dp: Array,
) -> tuple[Any, Array]:
  """Returns gradients with those of the content term of the values added."""

  def values(content: Any, p: Array) -> Array | None:
    return content.values(p, *(side.positions for side in sides))

  if jax.eval_shape(values, content, p) is None:
    return dcontent, dp
  _, gradient = jax.vjp(values, content, p)
  more_content, more_p = gradient(jnp.swapaxes(dy, 1, 2).astype(jnp.float32))
  return jax.tree.map(jnp.add, dcontent, more_content), dp + more_p


def _is_needed(
  mask: visibility.Mask,
  block: Side,
  others: Side,
  size: int,
  keys_first: bool = False,
) -> Callable[[Array], Array] | None:
  """Returns whether block n of `others` is visible; None if all in range are.

  Conservative: tiles that are not needed are fully masked.
  """
  has_sinks = mask.window is not None and mask.sinks
  if block.segment_ids is None and not has_sinks:
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
    return answer

  return needed


def _over(
  bounds: tuple[Array, Array],
  needed: Callable[[Array], Array] | None,
  step: Step,
  carry: Any,
) -> Any:
  """Runs `step` over blocks from first to last, where needed."""
  first, last = bounds

  def body(n: Array, carry: Any) -> Any:
    if needed is None:
      return step(n, carry)
    return jax.lax.cond(needed(n), step, lambda n, carry: carry, n, carry)

  return jax.lax.fori_loop(first, last + 1, body, carry)


def _query_block(plan: Plan, call: AttentionCall, i: Array) -> Block:
  logit_scale = call.logit_scale
  if logit_scale is not None:
    logit_scale = tiles.read(logit_scale, i, plan.block_q)
  return Block(
    tiles.read(call.q, i, plan.block_q),
    call.queries.block(i, plan.block_q),
    logit_scale=logit_scale,
  )


def _key_block(plan: Plan, call: AttentionCall, j: Array) -> Block:
  k, v = (tiles.read(x, j, plan.block_k) for x in (call.k, call.v))
  return Block(k, call.keys.block(j, plan.block_k), v)


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
