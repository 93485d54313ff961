"""The bias of a tile in a TPU's program, and its gradient."""

import functools

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from lengen_jax.attention.fused.plan import LANES
from lengen_jax.attention.pallas_tpu import lanes
from lengen_jax.attention.pallas_tpu import toeplitz


def begin(plan, r, keys_inside=True):
  """Before the first tile of a block of queries, or of keys."""
  if plan.form == 'anchored' and keys_inside:
    r.weight_columns[...] = lanes.column(r.weights[0])
  if plan.alone:
    # What the next tile's bias is made from is not there.
    r.ready_for[0] = -1


def make(plan, r, i, j, keys_inside=True):
  """Makes the bias of a tile, or what it is made from, for `of`.

  Args:
    plan: the plan.
    r: references.
    i: the block of queries.
    j: the block of keys.
    keys_inside: whether a tile's rows are queries.
  """
  if plan.form == 'none':
    return
  if plan.alone:
    _lay_out(plan, r, i, j if keys_inside else i, keys_inside)
    return
  for head in range(plan.heads):
    if plan.form == 'dense':
      tile = r.dense[0, 0, head]
      r.bias[head] = tile if keys_inside else tile.T
    else:
      _load_distances(plan, r, head)
      piece = functools.partial(_make_piece, plan, r, i, j, head, keys_inside)
      _each(plan.block // plan.piece, piece)


def of(plan, r, i, j, head, keys_inside=True):
  """The bias of a tile, `[b, b]`; see `make`."""
  if not plan.alone:
    return r.bias[head]
  inner = j if keys_inside else i
  tile = _laid_out(plan, r, inner, head, 0)
  if plan.form == 'anchored':
    weight, _ = _weight(plan, r, i, j, 0, 0, keys_inside)
    tile += weight * _laid_out(plan, r, inner, head, 1)
  return tile


def _laid_out(plan, r, inner, head, anchor):
  """A tile of what `_lay_out` put there."""
  slot = jax.lax.rem(inner, jnp.int32(2))
  return toeplitz.of_halves(
    r.strips[head, anchor, slot], r.strips[head, anchor, 1 - slot]
  )


def _lay_out(plan, r, i, inner, keys_inside):
  """Puts rows by distance, shifted for each query of 128, into `r.strips`.

  Of both halves of a tile's distances, the near half is the last tile's far
  half, unless this one is the first of its kind.
  """
  slot = jax.lax.rem(inner, jnp.int32(2))
  # Blocks of queries have the same anchors for a while, or each its own.
  same_anchors = keys_inside or plan.blocks_per_group > 1
  goes_on = r.ready_for[0] == inner
  if not keys_inside and same_anchors:
    in_group = jax.lax.rem(i, jnp.int32(plan.blocks_per_group))
    goes_on = jnp.logical_and(goes_on, in_group > 0)
  for head in range(plan.heads):
    _load_distances(plan, r, head)
    rows = [r.distances[anchor : anchor + 1] for anchor in range(plan.anchors)]
    if plan.intervals:
      rows[1] -= rows[0]
    for anchor, row in enumerate(rows):
      if not same_anchors:
        whole = toeplitz.shifted(row)
        r.strips[head, anchor, slot] = whole[:, : plan.block]
        r.strips[head, anchor, 1 - slot] = whole[:, plan.block :]
        continue
      r.strips[head, anchor, 1 - slot] = toeplitz.far_half(row)
      put_near = functools.partial(_put_near_half, r, head, anchor, slot, row)
      pl.when(jnp.logical_not(goes_on))(put_near)
  r.ready_for[0] = inner + 1


def _put_near_half(r, head, anchor, slot, row):
  r.strips[head, anchor, slot] = toeplitz.near_half(row)


def _load_distances(plan, r, head):
  """Puts the two blocks of distances of a tile side by side."""
  for n, half in _halves(plan):
    r.distances[: plan.anchors, half] = (r.near, r.far)[n][0, 0, head]


def _make_piece(plan, r, i, j, head, keys_inside, piece):
  """Puts the bias of a piece's queries where it belongs."""
  window, queries = _parts(plan, piece, keys_inside)
  shape, where = (plan.piece, plan.block), (head, queries, slice(None))
  if not keys_inside:
    shape, where = shape[::-1], (head, slice(None), queries)
  first = piece * plan.intervals

  def change(interval):
    weight, _ = _weight(plan, r, i, j, interval, piece, keys_inside)
    return weight * toeplitz.tile(_change(r, first + interval, window), *shape)

  tile = toeplitz.tile(r.distances[pl.ds(first, 1), window], *shape)
  if plan.intervals:
    tile += change(0)
  r.bias[where] = tile

  def add(interval):
    r.bias[where] += change(interval)

  if plan.intervals > 1:
    pl.loop(1, plan.intervals)(add)


def _change(r, anchor, window):
  """From the row of an anchor to that of the next."""
  before, after = (r.distances[pl.ds(anchor + n, 1), window] for n in (0, 1))
  return after - before


def add_gradient(plan, r, i, j):
  """Adds the gradient of a tile's bias, `r.dbias`, to the table's."""
  near = plan.blocks_q - 1 - i + j
  for head in range(plan.heads):
    if plan.form == 'dense':
      r.ddense[0, 0, head] = r.dbias[head]
      continue
    _load_distances(plan, r, head)
    r.ddistances[...] = jnp.zeros(r.ddistances.shape, jnp.float32)
    add_piece = functools.partial(_add_piece_gradient, plan, r, i, j, head)
    _each(plan.block // plan.piece, add_piece)
    for n, half in _halves(plan):
      for anchor in range(plan.anchors):
        r.drows[0, 0, head, anchor, pl.ds(near + n, 1)] += r.ddistances[
          anchor : anchor + 1, half
        ]


def _add_piece_gradient(plan, r, i, j, head, piece):
  """Adds a piece's gradient to that of the tile's distances, and weights."""
  window, queries = _parts(plan, piece, keys_inside=True)
  first = piece * plan.intervals
  dbias = r.dbias[head, queries]
  r.ddistances[pl.ds(first, 1), window] += toeplitz.untile(dbias)

  def add(interval):
    weight, own = _weight(plan, r, i, j, interval, piece, keys_inside=True)
    change = toeplitz.untile(weight * dbias)
    r.ddistances[pl.ds(first + interval, 1), window] -= change
    r.ddistances[pl.ds(first + interval + 1, 1), window] += change
    of_weights = functools.partial(
      _add_weight_gradient, plan, r, j, head, piece, interval, own * dbias
    )
    pl.when(r.weights_vary[i] != 0)(of_weights)

  _each(plan.intervals, add)


def _add_weight_gradient(plan, r, j, head, piece, interval, dbias):
  """Adds to the gradient of how far queries are between anchors."""
  if plan.alone:
    tile = _laid_out(plan, r, j, head, 1)
  else:
    window, _ = _parts(plan, piece, keys_inside=True)
    row = _change(r, piece * plan.intervals + interval, window)
    tile = toeplitz.tile(row, plan.piece, plan.block)
  _, queries = _parts(plan, piece, keys_inside=True)
  product = dbias * tile
  in_lanes = sum(
    product[:, lane : lane + LANES] for lane in range(0, plan.block, LANES)
  )
  r.dweights[0, head, :, queries] += in_lanes.T.sum(0, keepdims=True)


def _halves(plan):
  """The two blocks of distances of a tile."""
  return enumerate((slice(plan.block), slice(plan.block, None)))


def _parts(plan, piece, keys_inside):
  """Where a piece is among a tile's distances, and among its queries."""
  b, n = plan.block, plan.piece
  first = b - (piece + 1) * n if keys_inside else piece * n
  if not isinstance(piece, int):
    first = pl.multiple_of(first, toeplitz.LANES)
  return pl.ds(first, b + n), pl.ds(piece * n, n)


def _weight(plan, r, i, j, interval, piece, keys_inside):
  """How far queries of a piece are into an interval between anchors, 0 to 1.

  Args:
    plan: the plan.
    r: references.
    i: the block of queries.
    j: the block of keys.
    interval: of those of the piece.
    piece: of those of the block.
    keys_inside: whether a tile's rows are queries.

  Returns:
    It, and what its gradient counts for in that of `r.weights`; in a shape that
    goes with the piece's.
  """
  n, b = plan.piece, plan.block
  _, queries = _parts(plan, piece, keys_inside)
  if keys_inside:
    weight = lanes.wide(r.weight_columns[queries], b)
    axis = 0
  else:
    weight = r.weights[0, :, queries]
    axis = 1
  own = jnp.float32(1)
  if plan.intervals == 1 and not plan.two_sided:
    return weight, own
  # Of queries among those of the same group of anchors, or of the piece.
  first = jax.lax.rem(i, jnp.int32(plan.blocks_per_group)) * b
  query = first + jax.lax.broadcasted_iota(jnp.int32, weight.shape, axis)
  into = (query - interval * plan.spacing).astype(jnp.float32) / plan.spacing
  linear = jnp.clip(into, 0.0, 1.0)
  if plan.intervals > 1:
    inside = (into >= 0) & (into < 1)
    weight = jnp.where(inside, weight, linear)
    own = inside.astype(jnp.float32)
  if not plan.two_sided:
    return weight, own
  shape = (n, b) if keys_inside else (b, n)
  q_index = (plan.first + i) * b + piece * n + r.offset[0]
  q_index += jax.lax.broadcasted_iota(jnp.int32, shape, axis)
  k_index = j * b + jax.lax.broadcasted_iota(jnp.int32, shape, 1 - axis)
  seen = k_index <= q_index
  return jnp.where(seen, weight, linear), jnp.where(seen, own, 0.0)


def _each(count, body):
  """Runs `body(n)` so many times; programs stay small."""
  if count == 1:
    body(0)
  elif count:
    pl.loop(0, count)(body)
