"""The bias of a tile in a TPU's program, and its gradient."""

import functools

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from lengen_jax.attention.fused import tables
from lengen_jax.attention.pallas_tpu import toeplitz


def begin(plan, r):
  """Says that what the next tile's bias is made from is not there."""
  if plan.alone:
    r.ready_for[0] = -1


def make(plan, r, i, j, bends, keys_inside=True):
  """Makes the bias of a tile, or what it is made from, for `of`.

  Args:
    plan: the plan.
    r: references.
    i: the block of queries.
    j: the block of keys.
    bends: whether rows may bend at the queries.
    keys_inside: whether a tile's rows are queries.
  """
  if plan.form == 'none':
    return
  if plan.alone and not bends:
    _lay_out(plan, r, i, j if keys_inside else i, keys_inside)
    return
  begin(plan, r)
  for head in range(plan.heads):
    if plan.form == 'dense':
      tile = r.dense[0, 0, head]
      r.bias[head] = tile if keys_inside else tile.T
    else:
      _load_distances(plan, r, head)
      make_piece = functools.partial(_make_piece, plan, r, i, head, keys_inside)
      _each(plan.block // plan.piece, make_piece)


def of(plan, r, i, j, head, bends, keys_inside=True):
  """The bias of a tile, `[b, b]`; see `make`."""
  if bends or not plan.alone:
    return r.bias[head]
  slot = jax.lax.rem(j if keys_inside else i, jnp.int32(2))
  near, *changes = (
    toeplitz.of_halves(
      r.strips[head, anchor, slot], r.strips[head, anchor, 1 - slot]
    )
    for anchor in range(plan.anchors)
  )
  for change in changes:
    near += _weight(plan, i, 0, 0 if keys_inside else 1) * change
  return near


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
    for n, half in _halves(plan):
      r.distances[plan.anchors :, half] = (r.near_bend, r.far_bend)[n][0, head]
    bend = r.distances[plan.anchors :, window]
    r.bias[where] += hat * toeplitz.tile(bend, *shape)

  where_bent(plan, r, i, piece, axis, add_bend)


def add_gradient(plan, r, i, j):
  """Adds the gradient of a tile's bias, `r.dbias`, to the table's."""
  near, b = plan.blocks_q - 1 - i + j, plan.block
  for head in range(plan.heads):
    if plan.form == 'dense':
      r.ddense[0, 0, head] = r.dbias[head]
      continue
    r.ddistances[...] = jnp.zeros(r.ddistances.shape, jnp.float32)
    add_piece = functools.partial(_add_piece_gradient, plan, r, i, head)
    _each(plan.block // plan.piece, add_piece)
    for n, half in _halves(plan):
      for anchor in range(plan.anchors):
        r.drows[0, 0, head, anchor, pl.ds(near + n, 1)] += r.ddistances[
          anchor : anchor + 1, half
        ]
    if plan.form == 'anchored':
      bent, *_ = _bent(plan, r, i * b, b)
      pl.when(bent)(functools.partial(_add_bend_gradient, plan, r, head, near))


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


def _add_bend_gradient(plan, r, head, near):
  """Adds to what stays in the chip's main memory, so seldom is it needed."""
  for n, half in _halves(plan):
    # Of each block one row of eight is used: less cannot be copied.
    where = r.dbend.at[r.of_rows, r.first_head + head, near + n]
    pltpu.sync_copy(where, r.copied)
    r.copied[:1] += r.ddistances[plan.anchors :, half]
    pltpu.sync_copy(r.copied, where)


def _halves(plan):
  """The two blocks of distances of a tile."""
  return enumerate((slice(plan.block), slice(plan.block, None)))


def where_bent(plan, r, i, piece, axis, add):
  """Runs `add(hat)` if rows bend between anchors of a piece's queries."""
  if plan.form != 'anchored':
    return
  n = plan.piece
  first = i * plan.block + piece * n
  bent, kink, before, after = _bent(plan, r, first, n)

  @pl.when(bent)
  def _():
    shape = (n, 1) if axis == 0 else (1, n)
    query = first + jax.lax.broadcasted_iota(jnp.int32, shape, axis)
    add(tables.hat(query.astype(jnp.float32), kink, before, after))


def at_kink(plan, r, i):
  """Whether rows bend at a block of queries; False where `make` can tell."""
  if plan.form != 'anchored' or not plan.alone:
    return False
  bent, *_ = _bent(plan, r, i * plan.block, plan.block)
  return bent


def _bent(plan, r, first, queries):
  """Whether rows bend at queries of a band; the kink, the anchors around it."""
  kink = r.kink[r.first_row if r.kink.shape[0] > 1 else 0]
  kink -= plan.first * plan.block
  before = jnp.floor(kink / plan.spacing) * plan.spacing
  after = before + plan.spacing
  first = jnp.asarray(first, jnp.float32)
  bent = (kink >= 0) & (before < first + queries) & (after > first)
  return bent, kink, before, after


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
