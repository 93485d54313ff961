"""Calls of the kernels: which part of each array a program has."""

import types

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp

from lengen_jax.attention.fused import masks
from lengen_jax.attention.pallas_gpu import bias
from lengen_jax.attention.pallas_gpu import kernels
from lengen_jax.attention.pallas_gpu.plan import forward_tile_size
from lengen_jax.attention.pallas_gpu.plan import tile_size

# Where a program finds what there is one of for each of its tiles.
_OF_TILE = (None, 1), lambda i, h, b: (b, i)
# Bytes of the sums of tiles that are there at a time, if not of one tile more.
_SUMS = 2**27


def forward(plan, q, k, v, table, places):
  """The output, and the logarithm of each softmax's sum, `[B, H, 1, Q]`."""
  n, _ = forward_tile_size(plan)
  batch, length, heads = q.shape[0], _length(plan), _heads(plan, q)
  group = heads // _heads(plan, k)
  shape = batch, length, q.shape[2]
  y, log_sum = _call(
    plan,
    kernels.forward,
    (length // n, heads, batch),
    {
      'q': (q, (None, n, plan.head_dim), _of_queries(plan, n)),
      **_keys(plan, k, v, group),
      **_shared(places, table, lambda i, h, b: (b, h)),
      **_seen(plan, places, forward_tile_size(plan), _OF_TILE),
    },
    {
      'y': (shape, q.dtype, (None, n, plan.head_dim), _of_block),
      'log_sum': (
        (batch, heads, 1, length),
        jnp.float32,
        (None, None, None, n),
        _per_query,
      ),
    },
  )
  return y, log_sum


def query_gradients(plan, q, k, v, table, places, **of_queries):
  """Gradients to the band's queries, and to the table.

  Args:
    plan: the plan.
    q: `[B, Q, H D]`.
    k: `[B, K, G D]`, G groups of heads.
    v: likewise.
    table: what `tables.make` gave.
    places: the places.
    **of_queries: of the band, `dy`, `log_sum` and `centre`.
  """
  n = tile_size(plan)
  batch, length, heads = q.shape[0], _length(plan), _heads(plan, q)
  group = heads // _heads(plan, k)
  own = (None, n, plan.head_dim)
  outputs = {'dq': (of_queries['dy'].shape, q.dtype, own, _of_block)}
  if plan.form == 'anchored':
    outputs['dweights'] = (
      (batch, heads, 1, length),
      jnp.float32,
      (None, None, None, n),
      _per_query,
    )
  dq, *dweights = _call(
    plan,
    kernels.query_gradient,
    (length // n, heads, batch),
    {
      'q': (q, own, _of_queries(plan, n)),
      'dy': (of_queries['dy'], own, _of_block),
      'log_sum': (of_queries['log_sum'], (None, None, None, n), _per_query),
      'centre': (of_queries['centre'], (None, None, None, n), _per_query),
      **_keys(plan, k, v, group),
      **_shared(places, table, lambda i, h, b: (b, h)),
      **_seen(plan, places, (n, n), _OF_TILE),
    },
    outputs,
  )
  given = (plan, q, k, v, table, places, of_queries)
  if plan.form == 'none':
    return dq, {}
  gradients = _tile_gradients if plan.form == 'dense' else _distance_gradients
  dtable = gradients(*given)
  if dweights:
    found = dweights[0].sum(1)
    if table['weights'].shape[0] == 1:
      found = found.sum(0, keepdims=True)
    dtable['weights'] = found
  return dq, dtable


def key_gradients(plan, q, k, v, table, places, **of_queries):
  """Gradients to the keys and values that the band sees; see above."""
  n = tile_size(plan)
  batch, groups = q.shape[0], _heads(plan, k)
  group = _heads(plan, q) // groups
  width = group * plan.head_dim
  shape = batch, plan.blocks_k * plan.block, k.shape[2]
  own = (None, n, plan.head_dim)
  per_query = (None, group, None, _length(plan))

  def of_group(i, h, b):
    return b, 0, h

  def per_group(i, h, b):
    return b, h, 0, 0

  return _call(
    plan,
    kernels.key_gradient,
    (shape[1] // n, groups, batch),
    {
      'q': (q, (None, q.shape[1], width), of_group),
      'dy': (of_queries['dy'], (None, _length(plan), width), of_group),
      'log_sum': (of_queries['log_sum'], per_query, per_group),
      'centre': (of_queries['centre'], per_query, per_group),
      'k': (k, own, _of_block),
      'v': (v, own, _of_block),
      **_shared(places, table, lambda i, h, b: (b, h), heads=group),
      **_seen(plan, places, (n, n), _OF_TILE, by_keys=True),
    },
    {
      'dk': (shape, k.dtype, own, _of_block),
      'dv': (shape, v.dtype, own, _of_block),
    },
  )


def _tile_gradients(plan, q, k, v, table, places, of_queries):
  """Gradients to tiles of a bias, `[N, 1 or B, H, b, b]`."""
  n, b = tile_size(plan), plan.block
  shape = table['dense'].shape
  (ddense,) = _call(
    plan,
    kernels.tile_gradient,
    (shape[0] * b // n, b // n, shape[1] * shape[2]),
    _rows_with_a_table(plan, q, k, v, table, places, of_queries, shape[1]),
    {
      'ddense': (
        shape,
        jnp.float32,
        (None, None, None, n, n),
        lambda j, i, bh: (
          j // (b // n),
          bh // shape[2],
          bh % shape[2],
          i,
          j % (b // n),
        ),
      )
    },
  )
  return {'dense': ddense}


def _distance_gradients(plan, q, k, v, table, places, of_queries):
  """Gradients to rows by distance, `[1 or B, 1, H, A, T + 1]`, by name."""
  n, heads = tile_size(plan), _heads(plan, q)
  rows_of, *_, entries = table['rows'].shape
  # An interval between anchors has two rows.
  intervals, kinds = 1, 1
  if plan.form == 'anchored':
    intervals, kinds = plan.anchors - 1, 2
  apart = (entries - 1) // n + 1
  # With a copy that is padded to twice the size.
  bytes_per_tile = 3 * 4 * rows_of * heads * intervals * kinds * n**2
  at_a_time = min(apart, max(1, _SUMS // bytes_per_tile))
  inputs = _rows_with_a_table(plan, q, k, v, table, places, of_queries, rows_of)

  def of_tiles(first):
    inputs['first_apart'] = first[None], (1,), lambda *at: (0,)
    (sums,) = _call(
      plan,
      kernels.distance_gradient,
      (at_a_time, intervals, rows_of * heads),
      inputs,
      {
        'sums': (
          (rows_of, heads, intervals, kinds, at_a_time, n, n),
          jnp.float32,
          (None, None, None, kinds, None, n, n),
          lambda u, a, bh: (bh // heads, bh % heads, a, 0, u, 0, 0),
        )
      },
    )
    return _along_diagonals(sums)

  found = jax.lax.map(of_tiles, jnp.arange(0, apart, at_a_time))
  found = jnp.moveaxis(found, 0, 4)
  found = found.reshape(*found.shape[:4], -1, 2 * n - 1)
  found = _by_distance(found[..., :apart, :])
  if plan.form == 'strip':
    return {'rows': found[:, None, :, :, 0]}
  near, far = found[:, :, :, 0], found[:, :, :, 1]
  # Of anchors, as the first and as the last of an interval.
  none = jnp.zeros_like(near[:, :, :1])
  rows = jnp.concatenate([near, none], axis=2)
  rows += jnp.concatenate([none, far], axis=2)
  return {'rows': rows[:, None]}


def _along_diagonals(tiles):
  """`[..., n, n]` as `[..., 2 n - 1]`: sums where r - c is 1 - n, and so on."""
  *lead, n, _ = tiles.shape
  # Read in rows of one less, row r is moved by r.
  skewed = jnp.pad(tiles[..., ::-1], [(0, 0)] * (len(lead) + 1) + [(0, n)])
  skewed = skewed.reshape(*lead, -1)[..., : n * (2 * n - 1)]
  return skewed.reshape(*lead, n, 2 * n - 1).sum(-2)


def _by_distance(diagonals):
  """`[..., U, 2 n - 1]`, of tiles n apart, as `[..., (U - 1) n + 1]`."""
  *lead, _, count = diagonals.shape
  n, nothing = (count + 1) // 2, [(0, 0)] * len(lead)
  low, high = diagonals[..., 1:, : n - 1], diagonals[..., :-1, n - 1 :]
  entries = high + jnp.pad(low, [*nothing, (0, 0), (1, 0)])
  return jnp.pad(entries.reshape(*lead, -1), [*nothing, (0, 1)])


def _rows_with_a_table(plan, q, k, v, table, places, of_queries, rows_of):
  """Inputs of a program for all rows of the batch with a table in common."""
  heads, width = _heads(plan, q), plan.head_dim
  group = heads // _heads(plan, k)
  rows = q.shape[0] // rows_of

  def of_head(u, a, bh):
    return bh // heads, 0, bh % heads

  def of_group(u, a, bh):
    return bh // heads, 0, bh % heads // group

  def per_query(u, a, bh):
    return bh // heads, bh % heads, 0, 0

  inputs = {
    'q': (q, (rows, q.shape[1], width), of_head),
    'dy': (of_queries['dy'], (rows, _length(plan), width), of_head),
    'k': (k, (rows, k.shape[1], width), of_group),
    'v': (v, (rows, k.shape[1], width), of_group),
  }
  for name in ('log_sum', 'centre'):
    shape = rows, None, None, _length(plan)
    inputs[name] = of_queries[name], shape, per_query
  n = tile_size(plan)
  part = (rows, _length(plan) // n), lambda u, a, bh: (bh // heads, 0)
  shared = _shared(
    places, table, lambda u, a, bh: (bh // heads, bh % heads), rows=rows
  )
  return inputs | shared | _seen(plan, places, (n, n), part)


def _length(plan):
  """Queries of the band."""
  return plan.blocks_q * plan.block


def _heads(plan, x):
  return x.shape[2] // plan.head_dim


def _of_block(i, h, b):
  return b, i, h


def _of_queries(plan, n):
  """Where a block of the band is among all queries."""
  before = plan.first * plan.block // n
  return lambda i, h, b: (b, before + i, h)


def _per_query(i, h, b):
  return b, h, 0, i


def _keys(plan, k, v, group):
  """Keys and values of a head's group, as inputs by name."""
  shape = None, k.shape[1], plan.head_dim
  return {
    name: (x, shape, lambda i, h, b: (b, 0, h // group))
    for name, x in (('k', k), ('v', v))
  }


def _shared(places, table, of_grid, *, rows=1, heads=1):
  """What else a program reads, as inputs by name.

  Args:
    places: the Places.
    table: what `tables.make` gave.
    of_grid: from a place in the grid to the block of rows and of heads.
    rows: of the batch, in a program.
    heads: likewise.
  """
  found = {'offset': (places.offset, (1,), lambda *at: (0,))}
  if places.k_lengths is not None:
    found['k_lengths'] = (
      places.k_lengths,
      (rows,),
      lambda *at: (of_grid(*at)[0],),
    )
  for name in ('q_segment_ids', 'k_segment_ids'):
    ids = getattr(places, name)
    if ids is not None:
      shape = rows, None, ids.shape[2]
      found[name] = ids, shape, lambda *at: (of_grid(*at)[0], 0, 0)

  def row(array, axis, at):
    return of_grid(*at)[0] if array.shape[axis] > 1 else 0

  if 'dense' in table:
    x = table['dense']
    found['dense'] = (
      x,
      (x.shape[0], None, heads, *x.shape[3:]),
      lambda *at: (0, row(x, 1, at), of_grid(*at)[1], 0, 0),
    )
  if 'rows' in table:
    y = table['rows'][:, 0]
    y = bias.LOG2_E * y.reshape(*y.shape[:2], -1)
    found['rows'] = (
      y,
      (None, heads, y.shape[2]),
      lambda *at: (row(y, 0, at), of_grid(*at)[1], 0),
    )
  if 'weights' in table:
    weights = table['weights']
    found['weights'] = (
      weights,
      (None, None, weights.shape[2]),
      lambda *at: (row(weights, 0, at), 0, 0),
    )
  return found


def _seen(plan, places, sizes, part, *, by_keys=False):
  """First and last tile of keys that queries may see, as inputs by name.

  Args:
    plan: the plan.
    places: the Places.
    sizes: queries and keys in a tile.
    part: block and index map of a program.
    by_keys: tiles of queries that keys may see instead.
  """
  if places.k_segment_ids is None:
    return {}
  # Packed rows are one band.
  k_ids = places.k_segment_ids[..., : plan.blocks_k * plan.block]
  sides = (places.q_segment_ids, sizes[0]), (k_ids, sizes[1])
  one, other = sides[::-1] if by_keys else sides
  found = masks.seen_blocks(*one, *other)
  names = 'first_seen', 'last_seen'
  return {name: (x, *part) for name, x in zip(names, found, strict=True)}


def _call(plan, kernel, grid, inputs, outputs):
  """Calls a kernel, whose references it finds by name.

  Args:
    plan: the plan.
    kernel: a function of a Plan and references.
    grid: numbers of programs.
    inputs: name to array, block and index map.
    outputs: name to shape, dtype, block and index map.

  Returns:
    A list of outputs.
  """
  names = [*inputs, *outputs]

  def body(*references):
    named = dict(zip(names, references, strict=True))
    kernel(plan, types.SimpleNamespace(**named))

  return pl.pallas_call(
    body,
    out_shape=[
      jax.ShapeDtypeStruct(shape, dtype)
      for shape, dtype, *_ in outputs.values()
    ],
    grid=grid,
    in_specs=[pl.BlockSpec(*spec) for _, *spec in inputs.values()],
    out_specs=[pl.BlockSpec(*spec) for _, _, *spec in outputs.values()],
    compiler_params=plgpu.CompilerParams(
      num_warps=_warps(plan, kernel), num_stages=2
    ),
    interpret=plan.interpret,
    name=f'attention_{kernel.__name__}',
  )(*(array for array, *_ in inputs.values()))


def _warps(plan, kernel):
  """Warps of a program: twice as many where a tile would not fit registers."""
  wide = plan.itemsize * plan.head_dim > 128
  if kernel is kernels.forward or plan.form == 'anchored' or wide:
    return 8
  return 4
