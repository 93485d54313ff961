"""The bias of a tile: what it is made from, and its gradient.

Shapes: b tokens in a block, T distances of a row, P groups of A + 1 anchors.
"""

import functools

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from lengen_jax.attention import tiles
from lengen_jax.attention.pallas_tpu import masks
from lengen_jax.attention.pallas_tpu import plan as plans
from lengen_jax.attention.pallas_tpu import toeplitz


def table(plan, bias, places):
  """What a bias is made from: a row per anchor, or its tiles; or None."""
  if plan.form == 'none':
    return None
  if plan.form == 'dense':
    return _dense_table(plan, bias, places)
  first, end = plan.lowest * plan.block, plan.highest * plan.block
  distances = places.offset + jnp.arange(first, end + 1)
  if plan.form == 'strip':
    return bias.strip(distances.astype(jnp.float32))[None, None, :, None]
  return _anchor_table(plan, bias, places, distances.astype(jnp.float32))


def _anchor_table(plan, bias, places, distances):
  """Bias of anchors by distance, `[1 or B, P, H, A + 2, T + 1]`.

  P groups of A + 1 anchors, the last of which is the first of the next group,
  and what the row at which rows bend adds to those before and after it.
  """
  start = jnp.atleast_2d(places.q_positions)[:, 0]
  groups = -(-plan.blocks_q // plan.blocks_per_group)
  in_group = plan.anchors - 1
  index = plan.first * plan.block + plan.spacing * jnp.arange(
    groups * in_group + 1
  )

  @jax.checkpoint
  def row(anchor):
    return bias.rows(anchor[None], distances)[0]

  anchors = (start[:, None] + index[None]).astype(jnp.float32)
  rows = jax.lax.map(row, anchors.reshape(-1))
  rows = rows.reshape(*anchors.shape, *rows.shape[1:])
  own = rows[:, :-1].reshape(start.shape[0], groups, in_group, *rows.shape[2:])
  following = rows[:, in_group::in_group, None]

  def bend(start, kink, rows):
    """What the row at the kink has beyond what its neighbours make of it."""
    at = kink - plan.first * plan.block
    interval = jnp.floor(at / plan.spacing).astype(jnp.int32)
    inside = (interval >= 0) & (interval < groups * in_group)
    interval = jnp.clip(interval, 0, groups * in_group - 1)
    weight = at / plan.spacing - interval
    near, far = rows[interval], rows[interval + 1]
    more = row(start + kink) - (near + weight * (far - near))
    mine = (jnp.arange(groups) == interval // in_group) & inside
    return jnp.where(mine[:, None, None], more[None], 0.0)

  bends = jax.vmap(bend)(start.astype(jnp.float32), places.kink, rows)
  every = jnp.concatenate([own, following, bends[:, :, None]], axis=2)
  return jnp.swapaxes(every, 2, 3)


def _dense_table(plan, bias, places):
  """Bias of a block of queries by blocks of keys, `[N, 1 or B, H, b, b]`."""
  q_positions = position_block(
    tiles.position_blocks(places.q_positions, plan.block), plan.first
  )
  k_positions = tiles.position_blocks(places.k_positions, plan.block)

  @jax.checkpoint
  def tile(j):
    every = bias(q_positions, position_block(k_positions, j))
    return every.reshape(-1, *every.shape[-3:])

  def tile_if_needed(j):
    needed, _ = masks.use(plan, 0, j, places.offset[0])
    shape = jax.eval_shape(tile, j)
    nothing = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.cond(needed, tile, lambda j: nothing, j)

  return jax.lax.map(tile_if_needed, jnp.arange(plan.blocks_k))


def row(bias, i, distances):
  """Bias of one query of a long row as anchors have it, `[H, N]`.

  Args:
    bias: a BiasFn whose encoding has rows.
    i: the query, an int; its position too.
    distances: query position minus key position, `[N]`.
  """
  form, _, first, _, spacing = plans.band_of(i)
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
  return made + _hat(i, kink, before, before + spacing) * bend


def _hat(i, kink, before, after):
  """1 at the kink and 0 at the anchors around it, linear between."""
  up = (i - before) / jnp.maximum(kink - before, 1e-6)
  down = (after - i) / jnp.maximum(after - kink, 1e-6)
  inside = (before <= kink) & (kink < after)
  return jnp.where(inside, jnp.clip(jnp.minimum(up, down), 0.0, 1.0), 0.0)


def kink(form, bias, q_positions):
  """Queries at which rows bend, float32 `[1 or B]`, below 0 for none."""
  found = bias.kink() if form == 'anchored' else None
  if found is None:
    return jnp.array([-1.0])
  start = jnp.atleast_2d(q_positions)[:, 0]
  found = jnp.asarray(found, jnp.float32) - start.astype(jnp.float32)
  return jax.lax.stop_gradient(found)


def position_block(positions, n):
  """Block n of what `tiles.position_blocks` gave."""
  return tiles.token_block(tiles.Tokens(None, positions), n).positions


def make(plan, r, i, keys_inside=True):
  """Puts the bias of a tile into `r.bias`, `[heads, b, b]`."""
  if plan.form == 'none':
    return
  for head in range(plan.heads):
    if plan.form == 'dense':
      tile = r.dense[0, 0, head]
      r.bias[head] = tile if keys_inside else tile.T
    else:
      r.distances[:, : plan.block] = r.near[0, 0, head]
      r.distances[:, plan.block :] = r.far[0, 0, head]
      make_piece = functools.partial(_make_piece, plan, r, i, head, keys_inside)
      _each(plan.block // plan.piece, make_piece)


def _make_piece(plan, r, i, head, keys_inside, piece):
  """Puts the bias of a piece's queries where it belongs."""
  window, queries = _parts(plan, piece, keys_inside)
  shape, axis = (plan.piece, plan.block), 0
  where = (head, queries, slice(None))
  if not keys_inside:
    shape, axis, where = shape[::-1], 1, (head, slice(None), queries)
  first = piece * plan.intervals

  def change(interval):
    before, after = (
      r.distances[pl.ds(first + interval + n, 1), window] for n in (0, 1)
    )
    weight = _weight(plan, i, interval, axis)
    return weight * toeplitz.tile(after - before, *shape)

  tile = toeplitz.tile(r.distances[pl.ds(first, 1), window], *shape)
  if plan.intervals:
    tile += change(0)
  r.bias[where] = tile

  @pl.loop(1, max(1, plan.intervals))
  def _(interval):
    r.bias[where] += change(interval)

  def add_bend(hat):
    bend = r.distances[plan.anchors :, window]
    r.bias[where] += hat * toeplitz.tile(bend, *shape)

  where_bent(plan, r, i, piece, axis, add_bend)


def add_gradient(plan, r, i, j):
  """Adds the gradient of a tile's bias, `r.dbias`, to the table's."""
  near = plan.blocks_q - 1 - i + j
  for head in range(plan.heads):
    if plan.form == 'dense':
      r.dtable[0, 0, head] = r.dbias[head]
      continue
    r.ddistances[...] = jnp.zeros(r.ddistances.shape, jnp.float32)
    add_piece = functools.partial(_add_piece_gradient, plan, r, i, head)
    _each(plan.block // plan.piece, add_piece)
    for anchor in range(plan.table_rows):
      for n, half in enumerate((slice(plan.block), slice(plan.block, None))):
        r.dtable[0, 0, head, anchor, pl.ds(near + n, 1)] += r.ddistances[
          anchor : anchor + 1, half
        ]


def _add_piece_gradient(plan, r, i, head, piece):
  """Adds a piece's gradient to that of the tile's distances."""
  window, queries = _parts(plan, piece, keys_inside=True)
  first = piece * plan.intervals
  dbias = r.dbias[head, queries]
  r.ddistances[pl.ds(first, 1), window] += toeplitz.untile(dbias, r.skewed)

  def add(interval):
    weight = _weight(plan, i, interval, 0)
    change = toeplitz.untile(weight * dbias, r.skewed)
    r.ddistances[pl.ds(first + interval, 1), window] -= change
    r.ddistances[pl.ds(first + interval + 1, 1), window] += change

  _each(plan.intervals, add)

  def add_bend(hat):
    summed = toeplitz.untile(hat * dbias, r.skewed)
    r.ddistances[plan.anchors :, window] += summed

  where_bent(plan, r, i, piece, 0, add_bend)


def where_bent(plan, r, i, piece, axis, add):
  """Runs `add(hat)` if rows bend between anchors of a piece's queries."""
  if plan.form != 'anchored':
    return
  n = plan.piece
  kink = r.kink[r.first_row if r.kink.shape[0] > 1 else 0]
  kink -= plan.first * plan.block
  before = jnp.floor(kink / plan.spacing) * plan.spacing
  first = (i * plan.block + piece * n).astype(jnp.float32)

  @pl.when((kink >= 0) & (before < first + n) & (before + plan.spacing > first))
  def _():
    shape = (n, 1) if axis == 0 else (1, n)
    query = jax.lax.broadcasted_iota(jnp.int32, shape, axis).astype(jnp.float32)
    add(_hat(first + query, kink, before, before + plan.spacing))


def _parts(plan, piece, keys_inside):
  """Where a piece is among a tile's distances, and among its queries."""
  b, n = plan.block, plan.piece
  first = b - (piece + 1) * n if keys_inside else piece * n
  if not isinstance(piece, int):
    first = pl.multiple_of(first, toeplitz.LANES)
  return pl.ds(first, b + n), pl.ds(piece * n, n)


def _weight(plan, i, interval, axis):
  """How far queries of a piece are into an interval between anchors, 0 to 1."""
  n = plan.piece
  first = jax.lax.rem(i, jnp.int32(plan.blocks_per_group)) * plan.block
  shape = (n, 1) if axis == 0 else (1, n)
  query = first + jax.lax.broadcasted_iota(jnp.int32, shape, axis)
  into = (query - interval * plan.spacing).astype(jnp.float32) / plan.spacing
  return jnp.clip(into, 0.0, 1.0)


def _each(count, body):
  """Runs `body(n)` so many times; programs stay small."""
  if count == 1:
    body(0)
  elif count:
    pl.loop(0, count)(body)
