"""Tables that kernels make the bias of tiles from, computed by XLA.

Shapes: b tokens in a block, n queries of the range, T distances of a row, P
groups of A anchors.
"""

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax.attention import bias_forms, visibility
from lengen_jax.attention import call as call_lib
from lengen_jax.attention.call import AttentionCall, Side
from lengen_jax.attention.fused.plan import LANES, Plan, Table


def make(
  plan: Plan, bias: encodings.BiasFn | None, call: AttentionCall
) -> Table:
  """Returns the table of a bias for a range of queries of the call."""
  if plan.form == 'none':
    return Table()
  if plan.form == 'keys':
    return _keys(plan, bias, call)
  if plan.form == 'dense':
    return Table(dense=_dense(plan, bias, call))
  first, end = plan.lowest * plan.block, plan.highest * plan.block
  distances_T = call.queries.index[0, 0] + jnp.arange(first, end + 1)
  distances_T = distances_T.astype(jnp.float32)
  if plan.form == 'strip':
    return Table(rows=bias.strip(distances_T)[None, None, :, None])
  return _anchored(plan, bias, call, distances_T)


def _anchored(
  plan: Plan, bias: encodings.BiasFn, call: AttentionCall, distances_T: Array
) -> Table:
  first_B = _first_positions(plan, call)
  groups = -(-plan.blocks_q // plan.blocks_per_group)
  in_group = plan.anchors - 1
  index = plan.spacing * jnp.arange(groups * in_group + 1)

  @jax.checkpoint
  def row(anchor: Array) -> Array:
    return bias.rows(anchor[None], distances_T)[0]

  anchors_BxA = (first_B[:, None] + index[None]).astype(jnp.float32)
  rows = jax.lax.map(row, anchors_BxA.reshape(-1))
  rows = rows.reshape(*anchors_BxA.shape, *rows.shape[1:])
  own = rows[:, :-1].reshape(-1, groups, in_group, *rows.shape[2:])
  following = rows[:, in_group::in_group, None]
  rows_BxPxAxHxT = jnp.concatenate([own, following], axis=2)
  return Table(
    rows=jnp.swapaxes(rows_BxPxAxHxT, 2, 3),
    weights=_weights(plan, bias, call)[:, None],
  )


def _first_positions(plan: Plan, call: AttentionCall) -> Array:
  """Returns the position of the range's first query in each row."""
  return jnp.atleast_2d(call.queries.positions)[:, 0] + plan.before


def _weights(plan: Plan, bias: encodings.BiasFn, call: AttentionCall) -> Array:
  """Returns interpolation weights of the range's queries, `[1 or B, n]`."""
  first_B = _first_positions(plan, call)
  index = jnp.arange(plan.length)
  return bias_forms.interpolation_weights(bias, first_B, index, plan.spacing)


def weights_vary(
  plan: Plan, bias: encodings.BiasFn, call: AttentionCall
) -> Array:
  """Returns whether weights depend on parameters in any row, bool `[n]`."""
  leaves, tree = jax.tree.flatten(bias)
  # The entries of the tangent are irregular, so that contributions of different
  # parameters do not cancel by chance.
  direction = [
    jnp.cos(n + jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    for n, x in enumerate(leaves, start=1)
  ]
  change = jax.jvp(
    lambda bias: _weights(plan, bias, call),
    (bias,),
    (jax.tree.unflatten(tree, direction),),
  )[1]
  return (change != 0).any(0)


def _dense(plan: Plan, bias: encodings.BiasFn, call: AttentionCall) -> Array:
  b = plan.block
  q_index = call.queries.index[0]

  @jax.checkpoint
  def tile(keys: Side) -> Array:
    return bias_forms.tile('exact', bias, call.queries, keys)

  def tile_if_needed(j: Array) -> Array:
    keys = call.keys.block(j, b)
    k_index = keys.index[0]
    needed, _ = visibility.tile_visibility(
      plan.mask, q_index[0], q_index[-1], k_index[0], k_index[-1]
    )
    shape = jax.eval_shape(tile, keys)
    nothing = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.cond(needed, tile, lambda keys: nothing, keys)

  return jax.lax.map(tile_if_needed, jnp.arange(plan.blocks_k))


def _keys(plan: Plan, bias: encodings.BiasFn, call: AttentionCall) -> Table:
  batch, heads = call.q.shape[0], plan.heads_of(call.q)

  def of_blocks(x: Array, step: int) -> Array:
    """Returns every `step`-th position of whole blocks, `[B, H, 1, N]`."""
    x = call_lib.pad(x, plan.block)[:, ::step]
    x = jnp.broadcast_to(x, (batch, *x.shape[1:]))
    return jnp.swapaxes(x, 1, 2)[:, :, None]

  keys, queries = call.keys.positions, call.queries.positions
  errors = [
    jnp.zeros_like(p.value) if p.error is None else p.error
    for p in (keys, queries)
  ]
  values = of_blocks(keys.value, 1), of_blocks(queries.value, plan.block)
  key_errors, errors = of_blocks(errors[0], 1), of_blocks(errors[1], plan.block)
  slopes = jnp.broadcast_to(bias.slopes[None, :, None, None], values[1].shape)
  lines = jnp.stack([values[1], errors, slopes], -1)
  lines = jnp.pad(lines, [(0, 0)] * 4 + [(0, LANES - 3)])
  return Table(
    key_values=values[0],
    key_errors=key_errors,
    lines=lines.reshape(batch, heads, 1, -1),
  )
