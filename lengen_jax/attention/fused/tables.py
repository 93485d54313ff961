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
  of the next); then 'bend' too, `[1 or B, H, T + 1]`, which is what the row
  where rows bend has beyond what anchors make of it. Or 'dense', the tiles of a
  block of queries with all keys, `[N, 1 or B, H, b, b]`, for every row of the
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

  def bend(start, kink, rows):
    interval, inside = interval_of(plan, kink - plan.first * plan.block)
    interval = jnp.clip(interval, 0, intervals - 1)
    weight = (kink - plan.first * plan.block) / plan.spacing - interval
    near, far = rows[interval], rows[interval + 1]
    more = row(start + kink) - (near + weight * (far - near))
    return jnp.where(inside, more, 0.0)

  bends = jax.vmap(bend)(start.astype(jnp.float32), places.kink, rows)
  return {'rows': jnp.swapaxes(in_groups, 2, 3), 'bend': bends}


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

  def tile_if_needed(j):
    needed, _ = masks.use(plan, places.offset[0] + plan.first * b, b, j * b, b)
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
  weight = (i - before) / spacing
  near, far = bias.rows(jnp.array([before, before + spacing]), distances)
  made = near + weight * (far - near)
  kink = bias.kink()
  if kink is None:
    return made
  kink = jax.lax.stop_gradient(jnp.asarray(kink, jnp.float32))
  into = (kink - before) / spacing
  bend = bias.rows(kink[None], distances)[0] - (near + into * (far - near))
  return made + hat(i, kink, before, before + spacing) * bend


def hat(i, kink, before, after):
  """1 at the kink and 0 at the anchors around it, linear between."""
  up = (i - before) / jnp.maximum(kink - before, 1e-6)
  down = (after - i) / jnp.maximum(after - kink, 1e-6)
  inside = (before <= kink) & (kink < after)
  return jnp.where(inside, jnp.clip(jnp.minimum(up, down), 0.0, 1.0), 0.0)


def kink(form, bias, q_positions):
  """Queries at which rows bend, float32 `[1 or B]`, below 0 for none."""
  if form != 'anchored':
    return jnp.array([-1.0])
  start, found = jnp.atleast_2d(q_positions)[:, 0], bias.kink()
  if found is None:
    return jnp.full(start.shape, -1.0)
  found = jnp.asarray(found, jnp.float32) - start.astype(jnp.float32)
  return jax.lax.stop_gradient(found)


def interval_of(plan, kink):
  """The interval between anchors of a query, and whether it is in the band."""
  interval = jnp.floor(kink / plan.spacing).astype(jnp.int32)
  intervals = -(-plan.blocks_q // plan.blocks_per_group) * (plan.anchors - 1)
  return interval, (interval >= 0) & (interval < intervals)
