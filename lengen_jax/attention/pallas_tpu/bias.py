"""The bias of a tile in a TPU kernel, and its gradient."""

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
import jax.numpy as jnp

from lengen_jax.attention.fused.plan import LANES
from lengen_jax.attention.pallas_tpu import toeplitz
from lengen_jax.attention.pallas_tpu.program import column, Program, wide


def begin(p: Program) -> None:
  """Prepares for the first tile of a block of queries, or of keys."""
  if p.plan.form == 'anchored' and p.keys_inside:
    p.weight_columns[...] = column(p.weights[0])
  if p.plan.alone:
    p.ready_for[0] = -1


def make(p: Program) -> None:
  """Computes the bias of a tile, or its strips, for `of`."""
  plan = p.plan
  if not plan.has_tiles:
    return
  if plan.alone:
    _lay_out(p)
    return
  for head in range(plan.heads):
    if plan.form == 'dense':
      tile = p.dense[0, 0, head]
      p.bias[head] = tile if p.keys_inside else tile.T
    else:
      _load_distances(p, head)
      _each(plan.block // plan.piece, functools.partial(_make_piece, p, head))


def of(p: Program, head: int) -> Array:
  """Returns the bias of a tile, `[b, b]`; requires `make`."""
  if not p.plan.alone:
    return p.bias[head]
  tile = _laid_out(p, head, 0)
  if p.plan.form == 'anchored':
    weight, _ = _weight(p, 0, 0)
    tile += weight * _laid_out(p, head, 1)
  return tile


def of_keys(p: Program, row: Array, head: int) -> Array:
  """Returns the bias per key of a tile, s (p_j - p).

  p_j is the position of key j, and p that of the first query. Both are sums of
  two numbers. The shape is `[1, b]`, or `[b, b]` if the rows of the tile are
  keys.
  """
  line = p.lines[row, head]
  value, error, slope = (line[:, n : n + 1] for n in range(3))
  distance = p.key_values[row, head] - value
  bias = slope * (distance + (p.key_errors[row, head] - error))
  return bias if p.keys_inside else column(bias, p.plan.block)


def _laid_out(p: Program, head: int, anchor: int) -> Array:
  """Returns a tile of the strips of `_lay_out`."""
  slot = jax.lax.rem(p.inner, jnp.int32(2))
  return toeplitz.of_halves(
    p.strips[head, anchor, slot], p.strips[head, anchor, 1 - slot]
  )


def _lay_out(p: Program) -> None:
  """Writes rows by distance, shifted for each query of 128, to `p.strips`.

  Of both halves of a tile's distances, the near half is the last tile's far
  half, unless this tile is the first of its block.
  """
  plan = p.plan
  slot = jax.lax.rem(p.inner, jnp.int32(2))
  # Blocks of queries share anchors for a while, or each has its own.
  same_anchors = p.keys_inside or plan.blocks_per_group > 1
  goes_on = p.ready_for[0] == p.inner
  if not p.keys_inside and same_anchors:
    in_group = jax.lax.rem(p.i, jnp.int32(plan.blocks_per_group))
    goes_on = jnp.logical_and(goes_on, in_group > 0)
  for head in range(plan.heads):
    _load_distances(p, head)
    rows = [p.distances[anchor : anchor + 1] for anchor in range(plan.anchors)]
    if plan.intervals:
      rows[1] -= rows[0]
    for anchor, row in enumerate(rows):
      if not same_anchors:
        whole = toeplitz.shifted(row)
        p.strips[head, anchor, slot] = whole[:, : plan.block]
        p.strips[head, anchor, 1 - slot] = whole[:, plan.block :]
        continue
      far = toeplitz.shifted(row[:, plan.block - LANES :])[:, LANES:]
      p.strips[head, anchor, 1 - slot] = far
      put_near = functools.partial(put_near_half, p, head, anchor, slot, row)
      pl.when(jnp.logical_not(goes_on))(put_near)
  p.ready_for[0] = p.inner + 1


def put_near_half(
  p: Program, head: int, anchor: int, slot: Array, row: Array
) -> None:
  """Writes the near half of a tile's strips."""
  p.strips[head, anchor, slot] = toeplitz.shifted(row)[:, : p.plan.block]


def _load_distances(p: Program, head: int) -> None:
  """Writes the two blocks of distances of a tile side by side."""
  b, anchors = p.plan.block, p.plan.anchors
  p.distances[:anchors, :b] = p.near[0, 0, head]
  p.distances[:anchors, b:] = p.far[0, 0, head]


def _make_piece(p: Program, head: int, piece: int | Array) -> None:
  """Writes the bias of a piece's queries."""
  plan = p.plan
  window, queries = _parts(p, piece)
  shape, where = (plan.piece, plan.block), (head, queries, slice(None))
  if not p.keys_inside:
    shape, where = shape[::-1], (head, slice(None), queries)
  first = piece * plan.intervals

  def change(interval: int | Array) -> Array:
    weight, _ = _weight(p, interval, piece)
    return weight * toeplitz.tile(_change(p, first + interval, window), *shape)

  tile = toeplitz.tile(p.distances[pl.ds(first, 1), window], *shape)
  if plan.intervals:
    tile += change(0)
  p.bias[where] = tile

  def add(interval: Array) -> None:
    p.bias[where] += change(interval)

  if plan.intervals > 1:
    pl.loop(1, plan.intervals)(add)


def _change(p: Program, anchor: int | Array, window: Any) -> Array:
  """Returns the next anchor's row minus an anchor's."""
  before, after = (p.distances[pl.ds(anchor + n, 1), window] for n in (0, 1))
  return after - before


def begin_gradient(p: Program) -> None:
  """Sets the table's gradient to zero before its first tile."""
  if not p.plan.has_tiles:
    return
  begins: bool | Array = True
  found = p.ddense
  if p.plan.form != 'dense':
    found = p.drows
    begins = jax.lax.rem(p.i, jnp.int32(p.plan.blocks_per_group)) == 0
    begins = jnp.logical_and(begins, p.j == 0)

  @pl.when(begins)
  def _() -> None:
    found[...] = jnp.zeros(found.shape, jnp.float32)


def add_gradient(p: Program) -> None:
  """Adds the gradient of a tile's bias, `p.dbias`, to the table's."""
  plan = p.plan
  near = plan.blocks_q - 1 - p.i + p.j
  for head in range(plan.heads):
    if plan.form == 'dense':
      p.ddense[0, 0, head] = p.dbias[head]
      continue
    _load_distances(p, head)
    p.ddistances[...] = jnp.zeros(p.ddistances.shape, jnp.float32)
    _each(
      plan.block // plan.piece, functools.partial(_add_piece_gradient, p, head)
    )
    halves = slice(plan.block), slice(plan.block, None)
    for n, half in enumerate(halves):
      for anchor in range(plan.anchors):
        p.drows[0, 0, head, anchor, pl.ds(near + n, 1)] += p.ddistances[
          anchor : anchor + 1, half
        ]


def _add_piece_gradient(p: Program, head: int, piece: int | Array) -> None:
  """Adds a piece's gradient to that of the tile's distances, and weights."""
  window, queries = _parts(p, piece)
  first = piece * p.plan.intervals
  dbias = p.dbias[head, queries]
  p.ddistances[pl.ds(first, 1), window] += toeplitz.untile(dbias)

  def add(interval: int | Array) -> None:
    weight, own = _weight(p, interval, piece)
    change = toeplitz.untile(weight * dbias)
    p.ddistances[pl.ds(first + interval, 1), window] -= change
    p.ddistances[pl.ds(first + interval + 1, 1), window] += change
    of_weights = functools.partial(
      add_weight_gradient, p, head, piece, interval, own * dbias
    )
    pl.when(p.weights_vary[p.i] != 0)(of_weights)

  _each(p.plan.intervals, add)


def add_weight_gradient(
  p: Program,
  head: int,
  piece: int | Array,
  interval: int | Array,
  dbias: Array,
) -> None:
  """Adds to the gradient of the queries' weights between anchors."""
  plan = p.plan
  window, queries = _parts(p, piece)
  if plan.alone:
    tile = _laid_out(p, head, 1)
  else:
    row = _change(p, piece * plan.intervals + interval, window)
    tile = toeplitz.tile(row, plan.piece, plan.block)
  product = dbias * tile
  in_lanes = functools.reduce(
    jnp.add,
    [product[:, lane : lane + LANES] for lane in range(0, plan.block, LANES)],
  )
  p.dweights[0, head, :, queries] += in_lanes.T.sum(0, keepdims=True)


def _parts(p: Program, piece: int | Array) -> tuple[Any, Any]:
  """Returns the slices of a piece: of the tile's distances, of its queries."""
  b, n = p.plan.block, p.plan.piece
  first: Any = b - (piece + 1) * n if p.keys_inside else piece * n
  if not isinstance(piece, int):
    first = pl.multiple_of(first, LANES)
  return pl.ds(first, b + n), pl.ds(piece * n, n)


def _weight(
  p: Program, interval: int | Array, piece: int | Array
) -> tuple[Array, Array]:
  """Returns how far queries of a piece are into an interval between anchors.

  The first result is weights from 0 to 1; the second is 1 where these are
  entries of `p.weights`, else 0. Both broadcast to the shape of the piece.
  """
  plan, axis = p.plan, 0 if p.keys_inside else 1
  n, b = plan.piece, plan.block
  _, queries = _parts(p, piece)
  if p.keys_inside:
    weight = wide(p.weight_columns[queries], b)
  else:
    weight = p.weights[0, :, queries]
  own = jnp.float32(1)
  if plan.intervals == 1 and not plan.two_sided:
    return weight, own
  # Index of the queries in the group of anchors, or in the piece.
  first = jax.lax.rem(p.i, jnp.int32(plan.blocks_per_group)) * b
  query = first + jax.lax.broadcasted_iota(jnp.int32, weight.shape, axis)
  into = (query - interval * plan.spacing).astype(jnp.float32) / plan.spacing
  linear = jnp.clip(into, 0.0, 1.0)
  if plan.intervals > 1:
    inside = (into >= 0) & (into < 1)
    weight = jnp.where(inside, weight, linear)
    own = inside.astype(jnp.float32)
  if not plan.two_sided:
    return weight, own
  shape = (n, b) if p.keys_inside else (b, n)
  q_index = p.first_q + piece * n
  q_index += jax.lax.broadcasted_iota(jnp.int32, shape, axis)
  k_index = p.j * b + jax.lax.broadcasted_iota(jnp.int32, shape, 1 - axis)
  seen = k_index <= q_index
  return jnp.where(seen, weight, linear), jnp.where(seen, own, 0.0)


def _each(count: int, body: Callable[[int | Array], None]) -> None:
  """Runs `body(n)` for n below `count`, in a loop to keep programs small."""
  if count == 1:
    body(0)
  elif count:
    pl.loop(0, count)(body)
