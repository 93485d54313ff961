"""Calls of the GPU kernels: which block of each array a program reads."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp

from lengen_jax.attention import visibility
from lengen_jax.attention.fused.plan import Inputs, Table
from lengen_jax.attention.pallas_gpu import kernels
from lengen_jax.attention.pallas_gpu.kernels import Program
from lengen_jax.attention.pallas_gpu.plan import (
  forward_tile_size,
  Plan,
  tile_size,
)

# The block of an array for a place in the grid.
Index = Callable[..., tuple]
# By name of a field of Program: array, shape of a block, index.
Specs = dict[str, tuple[Any, tuple, Index]]
# Of outputs: shape, dtype, shape of a block, index.
Outputs = dict[str, tuple[tuple[int, ...], Any, tuple, Index]]
# The block of one number for each of a program's tiles.
_OF_TILE = (None, 1), lambda i, h, b: (b, i)
# Memory for sums of tiles at a time, in bytes; at least one tile is summed.
MAX_SUM_BYTES = 2**27


def forward(plan: Plan, inputs: Inputs) -> tuple[Array, Array]:
  """Returns the output `[B, n, H D]`, and log-sum-exps `[B, H, 1, n]`."""
  sizes = n, _ = forward_tile_size(plan)
  q = inputs.q
  batch, heads = q.shape[0], plan.heads_of(q)
  y, lse = _call(
    plan,
    kernels.forward,
    (plan.length // n, heads, batch),
    _query_blocks(plan, inputs, sizes),
    {
      'y': (
        (batch, plan.length, q.shape[2]),
        q.dtype,
        (None, n, plan.head_dim),
        _of_block,
      ),
      'lse': _per_query(plan, batch, heads, n),
    },
  )
  return y, lse


def query_gradients(plan: Plan, inputs: Inputs) -> tuple[Array, Table]:
  """Returns gradients of the band's queries, and of the table."""
  n, q = tile_size(plan), inputs.q
  batch, heads = q.shape[0], plan.heads_of(q)
  own = (None, n, plan.head_dim)
  numbers = _per_query(plan, batch, heads, n)
  outputs: Outputs = {'dq': (inputs.dy.shape, q.dtype, own, _of_block)}
  if plan.form == 'anchored':
    outputs['dweights'] = numbers
  dq, *dweights = _call(
    plan,
    kernels.query_gradient,
    (plan.length // n, heads, batch),
    {
      **_query_blocks(plan, inputs, (n, n)),
      'dy': (inputs.dy, own, _of_block),
      'lse': (inputs.lse, *numbers[2:]),
      'delta': (inputs.delta, *numbers[2:]),
    },
    outputs,
  )
  if plan.form == 'none':
    return dq, Table()
  if plan.form == 'dense':
    return dq, Table(dense=_tile_gradients(plan, inputs))
  rows, found = _distance_gradients(plan, inputs), None
  if dweights:
    found = dweights[0].sum(1)
    if inputs.table.weights.shape[0] == 1:
      found = found.sum(0, keepdims=True)
  return dq, Table(rows=rows, weights=found)


def key_gradients(plan: Plan, inputs: Inputs) -> tuple[Array, Array]:
  """Returns gradients of the keys and values that the band reads."""
  n, q, k = tile_size(plan), inputs.q, inputs.k
  batch, groups = q.shape[0], plan.heads_of(k)
  group = plan.heads_of(q) // groups
  width = group * plan.head_dim
  shape = batch, plan.blocks_k * plan.block, k.shape[2]
  own = (None, n, plan.head_dim)
  per_query = (None, group, None, plan.length)

  def of_group(i: Array, h: Array, b: Array) -> tuple:
    return b, 0, h

  def per_group(i: Array, h: Array, b: Array) -> tuple:
    return b, h, 0, 0

  dk, dv = _call(
    plan,
    kernels.key_gradient,
    (shape[1] // n, groups, batch),
    {
      'q': (q, (None, q.shape[1], width), of_group),
      'dy': (inputs.dy, (None, plan.length, width), of_group),
      'lse': (inputs.lse, per_query, per_group),
      'delta': (inputs.delta, per_query, per_group),
      'k': (k, own, _of_block),
      'v': (inputs.v, own, _of_block),
      **_shared(inputs, _batch_and_head, heads=group),
      **_seen(plan, inputs, (n, n), _OF_TILE, by_keys=True),
    },
    {
      'dk': (shape, k.dtype, own, _of_block),
      'dv': (shape, k.dtype, own, _of_block),
    },
  )
  return dk, dv


def _tile_gradients(plan: Plan, inputs: Inputs) -> Array:
  """Returns gradients of a dense bias, `[N, 1 or B, H, b, b]`."""
  n, shape = tile_size(plan), inputs.table.dense.shape
  tiles, heads = plan.block // n, shape[2]
  (ddense,) = _call(
    plan,
    kernels.tile_gradient,
    (shape[0] * tiles, tiles, shape[1] * heads),
    _whole_rows(plan, inputs, shape[1]),
    {
      'ddense': (
        shape,
        jnp.float32,
        (None, None, None, n, n),
        lambda j, i, bh: (j // tiles, bh // heads, bh % heads, i, j % tiles),
      )
    },
  )
  return ddense


def _distance_gradients(plan: Plan, inputs: Inputs) -> Array:
  """Returns gradients of rows by distance, `[1 or B, 1, H, A, T + 1]`."""
  n, heads = tile_size(plan), plan.heads_of(inputs.q)
  rows_of, *_, entries = inputs.table.rows.shape
  # An interval between anchors has two rows.
  intervals, kinds = 1, 1
  if plan.form == 'anchored':
    intervals, kinds = plan.anchors - 1, 2
  apart = (entries - 1) // n + 1
  # A tile and a copy that is padded to twice the size.
  bytes_per_tile = 3 * 4 * rows_of * heads * intervals * kinds * n**2
  at_a_time = min(apart, max(1, MAX_SUM_BYTES // bytes_per_tile))
  blocks = _whole_rows(plan, inputs, rows_of)

  def of_tiles(first: Array) -> Array:
    (sums,) = _call(
      plan,
      kernels.distance_gradient,
      (at_a_time, intervals, rows_of * heads),
      {**blocks, 'first_apart': (first[None], (1,), lambda *at: (0,))},
      {
        'sums': (
          (rows_of, heads, intervals, kinds, at_a_time, n, n),
          jnp.float32,
          (None, None, None, kinds, None, n, n),
          lambda u, a, bh: (bh // heads, bh % heads, a, 0, u, 0, 0),
        )
      },
    )
    return along_diagonals(sums)

  found = jax.lax.map(of_tiles, jnp.arange(0, apart, at_a_time))
  found = jnp.moveaxis(found, 0, 4)
  found = found.reshape(*found.shape[:4], -1, 2 * n - 1)
  found = by_distance(found[..., :apart, :])
  if plan.form == 'strip':
    return found[:, None, :, :, 0]
  near, far = found[:, :, :, 0], found[:, :, :, 1]
  # Of anchors, as the first and as the last of an interval.
  none = jnp.zeros_like(near[:, :, :1])
  rows = jnp.concatenate([near, none], axis=2)
  rows += jnp.concatenate([none, far], axis=2)
  return rows[:, None]


def along_diagonals(tiles: Array) -> Array:
  """Returns sums over r - c = 1 - n, ..., n - 1, `[..., 2 n - 1]`."""
  *lead, n, _ = tiles.shape
  # Read in rows of one less, row r is moved by r.
  skewed = jnp.pad(tiles[..., ::-1], [(0, 0)] * (len(lead) + 1) + [(0, n)])
  skewed = skewed.reshape(*lead, -1)[..., : n * (2 * n - 1)]
  return skewed.reshape(*lead, n, 2 * n - 1).sum(-2)


def by_distance(diagonals: Array) -> Array:
  """Returns `[..., (U - 1) n + 1]` for `[..., U, 2 n - 1]` of tiles n apart."""
  *lead, _, count = diagonals.shape
  n, nothing = (count + 1) // 2, [(0, 0)] * len(lead)
  low, high = diagonals[..., 1:, : n - 1], diagonals[..., :-1, n - 1 :]
  entries = high + jnp.pad(low, [*nothing, (0, 0), (1, 0)])
  return jnp.pad(entries.reshape(*lead, -1), [*nothing, (0, 1)])


def _whole_rows(plan: Plan, inputs: Inputs, rows_of: int) -> Specs:
  """Returns inputs of a program for all rows with one of 1 or B tables."""
  q, heads, width = inputs.q, plan.heads_of(inputs.q), plan.head_dim
  group = heads // plan.heads_of(inputs.k)
  rows = q.shape[0] // rows_of

  def of_head(u: Array, a: Array, bh: Array) -> tuple:
    return bh // heads, 0, bh % heads

  def of_group(u: Array, a: Array, bh: Array) -> tuple:
    return bh // heads, 0, bh % heads // group

  def per_query(u: Array, a: Array, bh: Array) -> tuple:
    return bh // heads, bh % heads, 0, 0

  keys, numbers = (rows, inputs.k.shape[1], width), (rows, None, None)
  n = tile_size(plan)
  return {
    'q': (q, (rows, q.shape[1], width), of_head),
    'dy': (inputs.dy, (rows, plan.length, width), of_head),
    'k': (inputs.k, keys, of_group),
    'v': (inputs.v, keys, of_group),
    'lse': (inputs.lse, (*numbers, plan.length), per_query),
    'delta': (inputs.delta, (*numbers, plan.length), per_query),
    **_shared(inputs, lambda u, a, bh: (bh // heads, bh % heads), rows=rows),
    **_seen(
      plan,
      inputs,
      (n, n),
      ((rows, plan.length // n), lambda u, a, bh: (bh // heads, 0)),
    ),
  }


def _batch_and_head(i: Array, h: Array, b: Array) -> tuple:
  return b, h


def _of_block(i: Array, h: Array, b: Array) -> tuple:
  return b, i, h


def _per_query(
  plan: Plan, batch: int, heads: int, n: int
) -> tuple[tuple[int, ...], Any, tuple, Index]:
  """Returns the output of a number per query and head."""
  return (
    (batch, heads, 1, plan.length),
    jnp.float32,
    (None, None, None, n),
    lambda i, h, b: (b, h, 0, i),
  )


def _query_blocks(plan: Plan, inputs: Inputs, sizes: tuple[int, int]) -> Specs:
  """Returns inputs of a program for a block of queries, with all keys."""
  n, width, (q, k, v) = sizes[0], plan.head_dim, (inputs.q, inputs.k, inputs.v)
  before, group = plan.before // n, q.shape[2] // k.shape[2]
  keys = None, k.shape[1], width
  return {
    'q': (q, (None, n, width), lambda i, h, b: (b, before + i, h)),
    'k': (k, keys, lambda i, h, b: (b, 0, h // group)),
    'v': (v, keys, lambda i, h, b: (b, 0, h // group)),
    **_shared(inputs, _batch_and_head),
    **_seen(plan, inputs, sizes, _OF_TILE),
  }


def _shared(
  inputs: Inputs, of_grid: Index, *, rows: int = 1, heads: int = 1
) -> Specs:
  """Returns offset, lengths, segments and the table, as inputs by name.

  A program has `rows` rows and `heads` heads; `of_grid` maps its place in the
  grid to their blocks.
  """
  found: Specs = {'offset': (inputs.offset, (1,), lambda *at: (0,))}
  if inputs.k_lengths is not None:
    found['k_lengths'] = (
      inputs.k_lengths,
      (rows,),
      lambda *at: (of_grid(*at)[0],),
    )
  for name, ids in (
    ('q_segment_ids', inputs.q_segment_ids),
    ('k_segment_ids', inputs.k_segment_ids),
  ):
    if ids is not None:
      shape = rows, None, ids.shape[2]
      found[name] = ids, shape, lambda *at: (of_grid(*at)[0], 0, 0)

  def row(array: Array, axis: int, at: tuple) -> Any:
    return of_grid(*at)[0] if array.shape[axis] > 1 else 0

  table = inputs.table
  if table.dense is not None:
    x = table.dense
    found['dense'] = (
      x,
      (x.shape[0], None, heads, *x.shape[3:]),
      lambda *at: (0, row(x, 1, at), of_grid(*at)[1], 0, 0),
    )
  if table.rows is not None:
    y = table.rows[:, 0]
    y = kernels.LOG2_E * y.reshape(*y.shape[:2], -1)
    found['rows'] = (
      y,
      (None, heads, y.shape[2]),
      lambda *at: (row(y, 0, at), of_grid(*at)[1], 0),
    )
  if table.weights is not None:
    weights = table.weights
    found['weights'] = (
      weights,
      (None, None, weights.shape[2]),
      lambda *at: (row(weights, 0, at), 0, 0),
    )
  return found


def _seen(
  plan: Plan,
  inputs: Inputs,
  sizes: tuple[int, int],
  part: tuple[tuple, Index],
  *,
  by_keys: bool = False,
) -> Specs:
  """Returns the first and the last tile of keys that may share a segment.

  Tiles have `sizes` queries and keys. Of queries for keys, if `by_keys`.
  """
  if inputs.k_segment_ids is None:
    return {}
  ids = inputs.segment_ids(plan)
  sides = [(x[:, 0], size) for x, size in zip(ids, sizes, strict=True)]
  outer, inner = sides[::-1] if by_keys else sides
  first, last = visibility.segment_blocks(*outer, *inner)
  return {'first_seen': (first, *part), 'last_seen': (last, *part)}


def _call(
  plan: Plan,
  kernel: Callable[[Program], None],
  grid: tuple[int, ...],
  inputs: Specs,
  outputs: Outputs,
) -> list[Array]:
  """Calls a kernel and returns its outputs."""
  names = [*inputs, *outputs]

  def body(*references: Any) -> None:
    kernel(Program(plan, **dict(zip(names, references, strict=True))))

  return pl.pallas_call(
    body,
    out_shape=[
      jax.ShapeDtypeStruct(shape, dtype)
      for shape, dtype, *_ in outputs.values()
    ],
    grid=grid,
    in_specs=[
      pl.BlockSpec(shape, index) for _, shape, index in inputs.values()
    ],
    out_specs=[
      pl.BlockSpec(shape, index) for *_, shape, index in outputs.values()
    ],
    compiler_params=plgpu.CompilerParams(
      num_warps=_warps(plan, kernel), num_stages=2
    ),
    interpret=plan.interpret,
    name=f'attention_{kernel.__name__}',
  )(*(array for array, *_ in inputs.values()))


def _warps(plan: Plan, kernel: Callable[[Program], None]) -> int:
  """Returns warps of a program: more where a tile would not fit registers."""
  wide = plan.itemsize * plan.head_dim > 128
  if kernel is kernels.forward or plan.form == 'anchored' or wide:
    return 8
  return 4
