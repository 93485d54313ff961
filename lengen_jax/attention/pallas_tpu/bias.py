"""The bias of a tile in a TPU's program, and its gradient."""

import functools

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from lengen_jax.attention.fused import tables
from lengen_jax.attention.pallas_tpu import toeplitz


def make(plan, r, i, keys_inside=True):
  """Puts the bias of a tile into `r.bias`, `[heads, b, b]`."""
  if plan.form == 'none':
    return
  for head in range(plan.heads):
    if plan.form == 'dense':
      tile = r.dense[0, 0, head]
      r.bias[head] = tile if keys_inside else tile.T
    else:
      for n, half in _halves(plan):
        rows = (r.near, r.far)[n]
        r.distances[: plan.anchors, half] = rows[0, 0, head]
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
