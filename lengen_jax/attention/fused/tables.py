"""What the bias of tiles is made from, by XLA; kernels make the tiles.

Shapes: b tokens in a block, T distances of a row, P groups of A anchors.
"""

import jax
import jax.numpy as jnp

from lengen_jax.attention import tiles
from lengen_jax.attention.fused import masks


def make(plan, bias, places):
  """What a bias is made from, by name.

  'rows' by distance, `[1 or B, P, H, A, T + 1]`: one row of a bias of distance
  alone, or the rows of anchors (P groups of A, of which the last is the first
  of the next); then 'weights' too, `[1 or B, 1, n]`, how far each of the band's
  n queries is from the anchor before to the one after. Or 'dense', the tiles of
  a block of queries with all keys, `[N, 1 or B, H, b, b]`, for every row of the
  batch if positions differ. Nothing without a bias.
  """
  if plan.form == 'none':
    return {}
  if plan.form == 'dense':
    return {'dense': _dense(plan, bias, places)}
  first, end = plan.lowest * plan.block, plan.highest * plan.block
  distances = (places.offset + jnp.arange(first, end + 1)).astype(jnp.float32)
  if plan.form == 'strip':
    return {'rows': bias.strip(distances)[None, None, :, None]}
  return _anchored(plan, bias, places, distances)


def _anchored(plan, bias, places, distances):
  start = jnp.atleast_2d(places.q_positions)[:, 0]
  groups = -(-plan.blocks_q // plan.blocks_per_group)
  in_group = plan.anchors - 1
  intervals = groups * in_group
  index = plan.first * plan.block + plan.spacing * jnp.arange(intervals + 1)

  @jax.checkpoint
  def row(anchor):
    return bias.rows(anchor[None], distances)[0]

  anchors = (start[:, None] + index[None]).astype(jnp.float32)
  rows = jax.lax.map(row, anchors.reshape(-1))
  rows = rows.reshape(*anchors.shape, *rows.shape[1:])
  own = rows[:, :-1].reshape(start.shape[0], groups, in_group, *rows.shape[2:])
  following = rows[:, in_group::in_group, None]
  in_groups = jnp.concatenate([own, following], axis=2)

  weights = _weights(plan, bias, places)
  return {'rows': jnp.swapaxes(in_groups, 2, 3), 'weights': weights[:, None]}


def _weights(plan, bias, places):
  """How far the band's queries are between anchors, `[1 or B, n]`."""
  n = jnp.arange(plan.blocks_q * plan.block)
  before = n // plan.spacing * plan.spacing
  start = jnp.atleast_2d(places.q_positions)[:, :1] + plan.first * plan.block
  around = (
    (start + x[None]).astype(jnp.float32)
    for x in (before, n, before + plan.spacing)
  )
  return jax.vmap(bias.row_weights)(*around)


def weights_vary(plan, bias, places):
  """Whether they depend on parameters, bool `[n]`, in any row."""
  leaves, tree = jax.tree.flatten(bias)
  # A direction in which nothing cancels by chance.
  direction = [
    jnp.cos(n + jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    for n, x in enumerate(leaves, start=1)
  ]
  _, change = jax.jvp(
    lambda bias: _weights(plan, bias, places),
    (bias,),
    (jax.tree.unflatten(tree, direction),),
  )
  return (change != 0).any(0)


def _dense(plan, bias, places):
  q_positions = position_block(
    tiles.position_blocks(places.q_positions, plan.block), plan.first
  )
  k_positions = tiles.position_blocks(places.k_positions, plan.block)

  @jax.checkpoint
  def tile(j):
    every = bias(q_positions, position_block(k_positions, j))
    return every.reshape(-1, *every.shape[-3:])

  b = plan.block
  first, last = 0, plan.blocks_k
  if places.q_segment_ids is not None:
    seen = masks.seen_blocks(places.q_segment_ids, b, places.k_segment_ids, b)
    first, last = seen[0].min(), seen[1].max()

  def tile_if_needed(j):
    needed, _ = masks.use(plan, places.offset[0] + plan.first * b, b, j * b, b)
    needed &= (first <= j) & (j <= last)
    shape = jax.eval_shape(tile, j)
    nothing = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.cond(needed, tile, lambda j: nothing, j)

  return jax.lax.map(tile_if_needed, jnp.arange(plan.blocks_k))


def position_block(positions, n):
  """Block n of what `tiles.position_blocks` gave."""
  return tiles.token_block(tiles.Tokens(None, positions), n).positions


def row(band, bias, i, distances):
  """Bias of one query of a long row as kernels have it, `[H, N]`.

  Args:
    band: of `plan.bands`, the one of the query.
    bias: a BiasFn whose encoding has rows.
    i: the query, an int; its position too.
    distances: query position minus key position, `[N]`.
  """
  form, _, first, _, spacing = band
  if form == 'dense':
    return bias.rows(jnp.array([i]), distances)[0]
  before = first + (i - first) // spacing * spacing
  after = before + spacing
  near, far = bias.rows(jnp.array([before, after]), distances)
  linear = (i - before) / spacing
  (weight,) = bias.row_weights(
    *(jnp.array([x], jnp.float32) for x in (before, i, after))
  )
  if bias.bidirectional:
    weight = jnp.where(distances < 0, linear, weight)[None]
  return near + weight * (far - near)
