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
# By name of a field of Program: an input, or an output's shape and dtype; the
# shape of a block; its index.
Specs = dict[str, tuple[Any, tuple, Index]]
# Memory for sums of tiles at a time, in bytes; at least one tile is summed.
MAX_SUM_BYTES = 2**27


def forward(plan: Plan, inputs: Inputs) -> tuple[Array, Array]:
  """Returns the output `[B, n, H D]`, and log-sum-exps `[B, H, 1, n]`.

  For queries that see no key they are 0, and MASKED.
  """
  q, sizes = inputs.q, forward_tile_size(plan)
  outputs = {
    'y': _tokens(plan, q, plan.length, sizes[0]),
    'lse': _numbers(plan, q, sizes[0]),
  }
  blocks = _inputs(plan, inputs, sizes, _query_block, by='queries')
  y, lse = _call(plan, kernels.forward, blocks, outputs)
  return y, lse


def query_gradients(plan: Plan, inputs: Inputs) -> tuple[Array, Table]:
  """Returns gradients of the range's queries, and of the table."""
  n, q, table = tile_size(plan), inputs.q, inputs.table
  outputs = {'dq': _tokens(plan, q, plan.length, n)}
  if plan.form == 'anchored':
    outputs['dweights'] = _numbers(plan, q, n)
  blocks = _inputs(plan, inputs, (n, n), _query_block, by='queries')
  dq, *dweights = _call(plan, kernels.query_gradient, blocks, outputs)
  if plan.form == 'none':
    return dq, Table()
  if plan.form == 'dense':
    return dq, Table(dense=_tile_gradients(plan, inputs))
  rows, weights = _distance_gradients(plan, inputs), None
  if dweights:
    weights = dweights[0].sum(1)
    if table.weights.shape[0] == 1:
      weights = weights.sum(0, keepdims=True)
  return dq, Table(rows=rows, weights=weights)


def key_gradients(plan: Plan, inputs: Inputs) -> tuple[Array, Array, None]:
  """Returns gradients of the keys and values that the range reads.

  The third result, the gradient of a bias per key, is None: these kernels do
  not support one.
  """
  n, k = tile_size(plan), inputs.k
  output = _tokens(plan, k, plan.blocks_k * plan.block, n)
  group = plan.heads_of(inputs.q) // plan.heads_of(k)
  blocks = _inputs(
    plan, inputs, (n, n), lambda i, h, b: (b, h, 0, i), by='keys', heads=group
  )
  outputs = {'dk': output, 'dv': output}
  dk, dv = _call(plan, kernels.key_gradient, blocks, outputs)
  return dk, dv, None


def _tile_gradients(plan: Plan, inputs: Inputs) -> Array:
  """Returns gradients of a dense bias, `[N, 1 or B, H, b, b]`."""
  n, shape = tile_size(plan), inputs.table.dense.shape
  tiles, heads = plan.block // n, shape[2]
  output = (
    jax.ShapeDtypeStruct(shape, jnp.float32),
    (None, None, None, n, n),
    lambda j, i, bh: (j // tiles, bh // heads, bh % heads, i, j % tiles),
  )
  (ddense,) = _call(
    plan,
    kernels.tile_gradient,
    _whole_rows(plan, inputs, shape[1]),
    {'ddense': output},
    (shape[0] * tiles, tiles, shape[1] * heads),
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
  shape = rows_of, heads, intervals, kinds, at_a_time, n, n
  output = (
    jax.ShapeDtypeStruct(shape, jnp.float32),
    (None, None, None, kinds, None, n, n),
    lambda u, a, bh: (bh // heads, bh % heads, a, 0, u, 0, 0),
  )

  def of_tiles(first: Array) -> Array:
    (sums,) = _call(
      plan,
      kernels.distance_gradient,
      {**blocks, 'first_apart': (first[None], (1,), lambda *at: (0,))},
      {'sums': output},
      (at_a_time, intervals, rows_of * heads),
    )
    return along_diagonals(sums)

  found = jax.lax.map(of_tiles, jnp.arange(0, apart, at_a_time))
  found = jnp.moveaxis(found, 0, 4)
  found = found.reshape(*found.shape[:4], -1, 2 * n - 1)
  found = by_distance(found[..., :apart, :])
  if plan.form == 'strip':
    return found[:, None, :, :, 0]
  near, far = found[:, :, :, 0], found[:, :, :, 1]
  # An anchor is the first of one interval and the last of the one before.
  none = jnp.zeros_like(near[:, :, :1])
  rows = jnp.concatenate([near, none], axis=2)
  rows += jnp.concatenate([none, far], axis=2)
  return rows[:, None]


def along_diagonals(tiles: Array) -> Array:
  """Returns the sum of each diagonal, `[..., n, n] -> [..., 2 n - 1]`.

  Diagonals are those of row - column = 1 - n, ..., n - 1.
  """
  *lead, n, _ = tiles.shape
  # Read in rows of one less, row r is moved by r.
  skewed = jnp.pad(tiles[..., ::-1], [(0, 0)] * (len(lead) + 1) + [(0, n)])
  skewed = skewed.reshape(*lead, -1)[..., : n * (2 * n - 1)]
  return skewed.reshape(*lead, n, 2 * n - 1).sum(-2)


def by_distance(diagonals: Array) -> Array:
  """Adds diagonal sums of tiles, `[..., U, 2 n - 1] -> [..., (U - 1) n + 1]`.

  Consecutive tiles are n distances apart. Each has 2 n - 1 distances, so
  neighbours have n - 1 distances in common, whose sums are added.
  """
  *lead, _, count = diagonals.shape
  n, nothing = (count + 1) // 2, [(0, 0)] * len(lead)
  low, high = diagonals[..., 1:, : n - 1], diagonals[..., :-1, n - 1 :]
  entries = high + jnp.pad(low, [*nothing, (0, 0), (1, 0)])
  return jnp.pad(entries.reshape(*lead, -1), [*nothing, (0, 1)])


def _tokens(plan: Plan, x: Array, length: int, n: int) -> tuple:
  """Returns the output `[B, length, H D]`, by n tokens of a head."""
  dtype = jnp.float32 if plan.is_partial else x.dtype
  shape = jax.ShapeDtypeStruct((x.shape[0], length, x.shape[2]), dtype)
  return shape, (None, n, plan.head_dim), lambda i, h, b: (b, i, h)


def _numbers(plan: Plan, q: Array, n: int) -> tuple:
  """Returns the output `[B, H, 1, length]`, by n queries of a head."""
  shape = q.shape[0], plan.heads_of(q), 1, plan.length
  output = jax.ShapeDtypeStruct(shape, jnp.float32)
  return output, (None, None, None, n), lambda i, h, b: (b, h, 0, i)


def _query_block(i: Array, h: Array, b: Array) -> tuple:
  return b, h, i, 0


def _whole_rows(plan: Plan, inputs: Inputs, rows_of: int) -> Specs:
  """Returns the inputs of programs that read all rows sharing a table.

  `rows_of` is the number of tables, 1 or B.
  """
  heads, n = plan.heads_of(inputs.q), tile_size(plan)
  rows = inputs.q.shape[0] // rows_of

  def place(u: Array, a: Array, bh: Array) -> tuple:
    return bh // heads, bh % heads, 0, 0

  return _inputs(plan, inputs, (n, n), place, rows=rows)


def _inputs(
  plan: Plan,
  inputs: Inputs,
  sizes: tuple[int, int],
  place: Index,
  *,
  by: str | None = None,
  rows: int | None = None,
  heads: int | None = None,
) -> Specs:
  """Returns inputs by name.

  Args:
    plan: the plan.
    inputs: the arrays.
    sizes: queries and keys in a tile.
    place: returns the block of rows, heads, queries and keys of a program.
    by: 'queries' or 'keys', the side of which a program has one tile.
    rows: rows of the batch in a program; None for one, without an axis.
    heads: query heads in a program that share its key head; likewise.
  """
  q, k, table, width = inputs.q, inputs.k, inputs.table, plan.head_dim
  group = 1 if heads else plan.heads_of(q) // plan.heads_of(k)
  n, q_length, k_length, first = plan.length, q.shape[1], k.shape[1], 0
  if by == 'queries':
    n, q_length, first = sizes[0], sizes[0], plan.before // sizes[0]
  if by == 'keys':
    k_length = sizes[1]
  found: Specs = {}

  def add(name: str, array: Array, block: tuple, index: Index) -> None:
    found[name] = array, block, lambda *at: index(*place(*at))

  q_width, some = width * (heads or 1), rows or 1
  add('q', q, (rows, q_length, q_width), lambda b, h, i, j: (b, first + i, h))
  for name, x in (('k', k), ('v', inputs.v)):
    block = rows, k_length, width
    add(name, x, block, lambda b, h, i, j: (b, j, h // group))
  if inputs.dy is not None:
    add('dy', inputs.dy, (rows, n, q_width), lambda b, h, i, j: (b, i, h))
    for name, x in (('lse', inputs.lse), ('delta', inputs.delta)):
      add(name, x, (rows, heads, None, n), lambda b, h, i, j: (b, h, 0, i))
  add('offset', inputs.offset, (1,), lambda *at: (0,))
  if inputs.k_lengths is not None:
    add('k_lengths', inputs.k_lengths, (some,), lambda b, *_: (b,))
  if inputs.k_segment_ids is not None:
    for name in ('q_segment_ids', 'k_segment_ids'):
      x = getattr(inputs, name)
      add(name, x, (some, None, x.shape[2]), lambda b, *_: (b, 0, 0))
    sides = [
      (ids[:, 0], size)
      for ids, size in zip(inputs.segment_ids(plan), sizes, strict=True)
    ]
    outer, inner = sides[::-1] if by == 'keys' else sides
    first_seen, last_seen = visibility.segment_blocks(*outer, *inner)
    block = (None, 1) if by else (rows, plan.length // sizes[0])
    for name, x in (('first_seen', first_seen), ('last_seen', last_seen)):
      add(name, x, block, lambda b, h, i, j: (b, j if by == 'keys' else i))
  # One table for all rows, or one for each.
  if table.dense is not None:
    x, own = table.dense, int(table.dense.shape[1] > 1)
    block = x.shape[0], None, heads or 1, *x.shape[3:]
    add('dense', x, block, lambda b, h, *_: (0, b * own, h, 0, 0))
  if table.rows is not None:
    x, own = table.rows[:, 0], int(table.rows.shape[0] > 1)
    x = kernels.LOG2_E * x.reshape(*x.shape[:2], -1)
    block = None, heads or 1, x.shape[2]
    add('rows', x, block, lambda b, h, *_: (b * own, h, 0))
  if table.weights is not None:
    x = table.weights
    add('weights', x, (None, None, x.shape[2]), lambda b, *_: (b * own, 0, 0))
  return found


def _call(
  plan: Plan,
  kernel: Callable[[Program], None],
  inputs: Specs,
  outputs: Specs,
  grid: tuple[int, ...] | None = None,
) -> list[Array]:
  """Calls a kernel and returns its outputs.

  By default a program computes one block of the tokens of a head.
  """
  names = [*inputs, *outputs]
  if grid is None:
    shape, (_, n, width), _ = next(iter(outputs.values()))
    batch, length, lanes = shape.shape
    grid = length // n, lanes // width, batch

  def body(*references: Any) -> None:
    kernel(Program(plan, **dict(zip(names, references, strict=True))))

  in_specs, out_specs = (
    [pl.BlockSpec(block, index) for _, block, index in specs.values()]
    for specs in (inputs, outputs)
  )
  return pl.pallas_call(
    body,
    out_shape=[shape for shape, *_ in outputs.values()],
    grid=grid,
    in_specs=in_specs,
    out_specs=out_specs,
    compiler_params=plgpu.CompilerParams(
      num_warps=_warps(plan, kernel), num_stages=2
    ),
    interpret=plan.interpret,
    name=f'attention_{kernel.__name__}',
  )(*(array for array, *_ in inputs.values()))


def _warps(plan: Plan, kernel: Callable[[Program], None]) -> int:
  """Returns warps of a program: one for 16 queries, and at least 4.

  Triton gives each warp of a product 16 rows of its tile; further warps would
  repeat the work of the first.
  """
  rows = tile_size(plan)
  if kernel is kernels.forward:
    rows, _ = forward_tile_size(plan)
  return max(4, rows // 16)
