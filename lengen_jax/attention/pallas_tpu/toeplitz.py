"""Tiles from vectors by distance, inside a TPU kernel.

A tile of n rows and m columns has n + m - 1 distances; laid out along the lanes
of a vector `[1, n + m]` they become the tile by shifting row r by r. Vector
units shift 8 rows at once, by one amount: three masked shifts separate the rows
of a group of 8, and one shift each moves 16 groups to their places. (Later TPUs
than v4 can shift each row by a different amount.)

Sizes are multiples of LANES.
"""

import functools

import jax
from jax import Array
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from lengen_jax.attention.fused.plan import LANES

_SUBLANES = 8


def tile(vector: Array, rows: int, columns: int) -> Array:
  """Returns `[n, m]`; entry (r, c) is entry c - r + n of the vector."""
  strip, firsts = shifted(vector), range(rows, 0, -LANES)
  return jnp.concatenate([strip[:, n : n + columns] for n in firsts], axis=0)


def of_halves(near: Array, far: Array) -> Array:
  """Returns the tile `[n, n]` of a vector, from the halves of `shifted`."""
  n = near.shape[1]
  groups = [
    jnp.concatenate([near[:, first:], far[:, :first]], axis=1)
    for first in range(n - LANES, 0, -LANES)
  ]
  return jnp.concatenate([far, *groups], axis=0)


def untile(tile: Array) -> Array:
  """Returns the transpose of `tile`: sums along diagonals, `[1, n + m]`."""
  rows, columns = (size // LANES for size in tile.shape)
  # Pieces of 128 rows at the same distance, for each distance.
  summed = []
  for block in range(rows + columns):
    pieces = [
      tile[_lanes(group), _lanes(block - rows + group)]
      for group in range(rows)
      if 0 <= block - rows + group < columns
    ]
    nothing = jnp.zeros((LANES, LANES), jnp.float32)
    summed.append(functools.reduce(jnp.add, pieces) if pieces else nothing)
  return _unshifted(jnp.concatenate(summed, axis=1))


def _lanes(n: int) -> slice:
  return slice(n * LANES, (n + 1) * LANES)


def shifted(vector: Array) -> Array:
  """Returns `[1, w]` as `[LANES, w]`, row r rotated r to the right."""
  width = vector.shape[1]
  x = jnp.broadcast_to(vector, (_SUBLANES, width))
  row = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
  for bit in (1, 2, 4):
    x = jnp.where(row & bit != 0, pltpu.roll(x, bit, 1), x)
  shifts = range(_SUBLANES, LANES, _SUBLANES)
  return jnp.concatenate([x, *(pltpu.roll(x, n, 1) for n in shifts)], axis=0)


def _unshifted(x: Array) -> Array:
  """Returns the transpose of `shifted`."""
  width = x.shape[1]
  y = x[:_SUBLANES]
  for shift in range(_SUBLANES, LANES, _SUBLANES):
    y = y + pltpu.roll(x[shift : shift + _SUBLANES], width - shift, 1)
  row = jax.lax.broadcasted_iota(jnp.int32, y.shape, 0)
  for bit in (1, 2, 4):
    y = jnp.where(row & bit != 0, pltpu.roll(y, width - bit, 1), y)
  return y.sum(0, keepdims=True)
