"""Calls of the TPU kernels: which block of each array a program reads."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from lengen_jax.attention import visibility
from lengen_jax.attention.fused.plan import Inputs, LANES, Table
from lengen_jax.attention.pallas_tpu import kernels, program
from lengen_jax.attention.pallas_tpu import plan as plans
from lengen_jax.attention.pallas_tpu.plan import Plan

Shape = tuple[int, ...]
# By name: (array, block) of inputs, (shape, block) of outputs.
Specs = dict[str, tuple[Any, pl.BlockSpec]]
# The block of an array for (heads, rows, block of queries, block of keys).
Index = Callable[[Array, Array, Array, Array], tuple]


def forward(plan: Plan, inputs: Inputs) -> tuple[Array, Array]:
  """Returns the output `[B, n, H D]`, and log-sum-exps `[B, H, 1, n]`."""
  batch, _, width = inputs.q.shape
  plan = plans.with_rows(plan, plans.FORWARD, batch)
  grid = _Grid(plan, inputs, keys_inside=True)
  heads = plan.heads_of(inputs.q)
  y, lse = _call(
    kernels.forward,
    grid,
    outputs={
      'y': (_shape((batch, plan.length, width), inputs.q), grid.queries(0)),
      'lse': (_shape((batch, heads, 1, plan.length)), grid.per_query()),
    },
    scratch={
      'largest': grid.per_head,
      'total': grid.per_head,
      'sum': grid.summed,
    },
  )
  return y, lse


def query_gradients(plan: Plan, inputs: Inputs) -> tuple[Array, Table]:
  """Returns gradients of the band's queries, and of the table."""
  batch, table = inputs.q.shape[0], inputs.table
  plan = plans.with_rows(plans.fitting(plan), plans.QUERIES, batch)
  grid = _Grid(plan, inputs, keys_inside=True)
  outputs = {'dq': (_shape(inputs.dy.shape, inputs.q), grid.queries(0))}
  outputs |= grid.table_gradients(batch)
  scratch: dict[str, Shape] = {
    'lse_columns': grid.per_head,
    'delta_columns': grid.per_head,
    'sum': grid.summed,
  }
  if plan.form != 'none':
    scratch['dbias'] = (plan.heads, plan.block, plan.block)
    if plan.form != 'dense':
      scratch['ddistances'] = (plan.anchors, 2 * plan.block)
  found = dict(
    zip(
      outputs,
      _call(kernels.query_gradient, grid, outputs, scratch),
      strict=True,
    )
  )
  if plan.form == 'none':
    return found['dq'], Table()
  if plan.form == 'dense':
    return found['dq'], Table(dense=_summed(found['ddense'], table.dense, 1))
  weights = None
  if table.weights is not None:
    weights = _summed(found['dweights'].sum(1), table.weights, 0)
  # In the order of the inputs: from the highest distance, without the lowest.
  like = table.rows
  rows = found['drows'].reshape(-1, *like.shape[1:-1], like.shape[-1] - 1)
  rows = jnp.pad(rows, ((0, 0),) * (like.ndim - 1) + ((0, 1),))
  return found['dq'], Table(
    rows=_summed(rows, like, 0)[..., ::-1], weights=weights
  )


def key_gradients(plan: Plan, inputs: Inputs) -> tuple[Array, Array]:
  """Returns gradients of the keys and values that the band reads."""
  plan = plans.with_rows(plan, plans.KEYS, inputs.q.shape[0])
  grid = _Grid(plan, inputs, keys_inside=False)
  k = inputs.k
  shape = _shape((k.shape[0], plan.blocks_k * plan.block, k.shape[2]), k)
  dk, dv = _call(
    kernels.key_gradient,
    grid,
    outputs={'dk': (shape, grid.keys()), 'dv': (shape, grid.keys())},
    scratch={'dk_sum': grid.summed, 'dv_sum': grid.summed},
  )
  return dk, dv


def _summed(gradient: Array, like: Array, axis: int) -> Array:
  """Returns the gradient, summed over rows of the batch that share a table."""
  if like.shape[axis] > 1:
    return gradient
  return gradient.sum(axis, keepdims=True)


def _shape(shape: Shape, like: Array | None = None) -> jax.ShapeDtypeStruct:
  """Returns an output in the dtype of another array, or in float32."""
  dtype = jnp.float32 if like is None else like.dtype
  return jax.ShapeDtypeStruct(shape, dtype)


def _call(
  kernel: Callable[[program.Program], None],
  grid: '_Grid',
  outputs: Specs,
  scratch: dict[str, Shape],
) -> list[Array]:
  """Calls a kernel and returns its outputs.

  Outputs, and float32 scratch shapes, are by the name of a field of Program.
  """
  plan, inputs, keys_inside = grid.plan, grid.inputs, grid.keys_inside
  prefetch = {'offset': inputs.offset, **grid.segment_blocks()}
  if 'dweights' in outputs:
    vary = inputs.weights_vary.reshape(plan.blocks_q, plan.block)
    prefetch['weights_vary'] = vary.any(1).astype(jnp.int32)
  if inputs.k_lengths is not None:
    prefetch['k_lengths'] = inputs.k_lengths
  scratch = {**scratch, **grid.bias_scratch()}
  blocks = grid.blocks()
  names = [*prefetch, *blocks, *outputs, *scratch, 'ready_for']

  def body(*references: Any) -> None:
    # Within loops the place in the grid is not available.
    outer, inner = pl.program_id(2), pl.program_id(3)
    i, j = outer, inner
    if not keys_inside:
      _, i = program.query_block(plan, inner)
      j = outer
    kernel(
      program.Program(
        plan,
        keys_inside,
        i=i,
        j=j,
        is_first=inner == 0,
        is_last=inner == grid.sizes[1] - 1,
        first_row=pl.program_id(1) * plan.rows,
        **dict(zip(names, references, strict=True)),
      )
    )

  batch, _, width = (inputs.q if keys_inside else inputs.k).shape
  shapes, out_specs = zip(*outputs.values(), strict=True)
  order: list[Any] = ['parallel', 'parallel', 'parallel', 'arbitrary']
  if len(outputs) > 1 and kernel is kernels.query_gradient:
    # The table's gradient is summed over blocks of queries.
    order[2] = 'arbitrary'
  return pl.pallas_call(
    body,
    out_shape=shapes,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(prefetch),
      grid=(width // plan.lanes, batch // plan.rows, *grid.sizes),
      in_specs=[spec for _, spec in blocks.values()],
      out_specs=out_specs,
      scratch_shapes=[
        *(pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()),
        pltpu.SMEM((1,), jnp.int32),
      ],
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=tuple(order),
      vmem_limit_bytes=int(0.95 * plans.vector_memory()),
    ),
    interpret=plan.interpret,
    name=f'attention_{kernel.__name__}',
  )(*prefetch.values(), *(array for array, _ in blocks.values()))


@dataclasses.dataclass(frozen=True)
class _Grid:
  """The grid of a kernel, and the blocks of arrays that its programs read.

  The grid is (heads, rows, queries, keys), or (heads of keys, rows, keys, heads
  with these keys and queries). Where a tile is fully masked, its neighbour's
  blocks stay, so that nothing is fetched.

  Attributes:
    plan: the plan.
    inputs: the arrays.
    keys_inside: whether keys are the last axis of the grid.
  """

  plan: Plan
  inputs: Inputs
  keys_inside: bool

  @property
  def group(self) -> int:
    """Query heads per key head."""
    return self.inputs.q.shape[2] // self.inputs.k.shape[2]

  @property
  def sizes(self) -> tuple[int, int]:
    """The last two axes of the grid."""
    p = self.plan
    if self.keys_inside:
      return p.blocks_q, p.blocks_k
    return p.blocks_k, self.group * p.blocks_q

  @property
  def per_head(self) -> Shape:
    """Shape of a number per query and head, in all lanes."""
    p = self.plan
    return p.rows, p.heads, p.block, LANES

  @property
  def summed(self) -> Shape:
    """Shape of a sum over blocks."""
    return self.plan.rows, self.plan.block, self.plan.lanes

  def segment_blocks(self) -> dict[str, Array]:
    """Returns the blocks that may share a segment, row after row, by name."""
    if self.inputs.k_segment_ids is None:
      return {}
    sides = [ids[:, 0] for ids in self.inputs.segment_ids(self.plan)]
    outer, inner = sides if self.keys_inside else sides[::-1]
    b = self.plan.block
    first, last = visibility.segment_blocks(outer, b, inner, b)
    return {'first_seen': first.reshape(-1), 'last_seen': last.reshape(-1)}

  def bias_scratch(self) -> dict[str, Shape]:
    """Returns shapes of a tile of the bias and of its distances, by name."""
    p = self.plan
    if p.form == 'none':
      return {}
    scratch: dict[str, Shape] = {'bias': (p.heads, p.block, p.block)}
    if p.alone:
      scratch = {'strips': (p.heads, p.anchors, 2, LANES, p.block)}
    if p.form != 'dense':
      scratch['distances'] = (p.anchors, 2 * p.block)
    if p.form == 'anchored' and self.keys_inside:
      scratch['weight_columns'] = p.block, LANES
    return scratch

  def blocks(self) -> Specs:
    """Returns inputs by name."""
    p, inputs = self.plan, self.inputs
    found: Specs = {
      'q': (inputs.q, self.queries(p.first)),
      'k': (inputs.k, self.keys()),
      'v': (inputs.v, self.keys()),
    }
    if inputs.dy is not None:
      found['dy'] = inputs.dy, self.queries(0)
      found['lse'] = inputs.lse, self.per_query()
      found['delta'] = inputs.delta, self.per_query()
    found |= self._table()
    if inputs.q_segment_ids is not None:
      shape = p.rows, 1, p.block
      found['q_segment_ids'] = (
        inputs.q_segment_ids,
        self._spec(shape, lambda h, b, i, j: (b, 0, p.first + i)),
      )
      found['k_segment_ids'] = (
        inputs.k_segment_ids,
        self._spec(shape, lambda h, b, i, j: (b, 0, j)),
      )
    return found

  def queries(self, first: int) -> pl.BlockSpec:
    """Returns the blocks of queries, the first of which is given."""
    return self._spec(self.summed, lambda h, b, i, j: (b, first + i, h))

  def keys(self) -> pl.BlockSpec:
    """Returns the blocks of keys."""

    def block(h: Array, b: Array, i: Array, j: Array) -> tuple:
      return b, j, jax.lax.div(h, jnp.int32(self.group))

    return self._spec(self.summed, block)

  def per_query(self) -> pl.BlockSpec:
    """Returns the blocks of numbers per query and head."""
    p = self.plan
    return self._spec(
      (p.rows, p.heads, 1, p.block), lambda h, b, i, j: (b, h, 0, i)
    )

  def _spec(self, shape: Shape, index: Index) -> pl.BlockSpec:
    """Returns blocks of a shape; `index` is of queries i and keys j."""
    p, packed = self.plan, self.inputs.k_segment_ids is not None

    def of_grid(
      h: Array, b: Array, outer: Array, inner: Array, offset: Any, *more: Any
    ) -> tuple:
      if not self.keys_inside:
        member, inner = program.query_block(p, inner)
        h = h * self.group + member
      first, last = program.inner_range(p, outer, offset[0], self.keys_inside)
      if packed:
        seen = program.seen_range(
          p, more[:2], b * p.rows, p.rows, outer, self.keys_inside
        )
        first, last = jnp.maximum(first, seen[0]), jnp.minimum(last, seen[1])
      inner = jnp.clip(inner, first, last)
      i, j = (outer, inner) if self.keys_inside else (inner, outer)
      return index(h, b, i, j)

    return pl.BlockSpec(shape, of_grid)

  def _table(self) -> Specs:
    """Returns the table as inputs by name.

    Of rows, the two blocks of distances in a tile: largest first where queries
    are the rows of a tile, smallest first where keys are.
    """
    p, table = self.plan, self.inputs.table
    if p.form == 'none':
      return {}
    if p.form == 'dense':
      own = table.dense.shape[1] > 1
      spec = self._spec(
        (1, 1, p.heads, p.block, p.block),
        lambda h, b, i, j: (j, b if own else 0, h, 0, 0),
      )
      return {'dense': (table.dense, spec)}
    own = table.rows.shape[0] > 1

    def half(block: Callable[[Array, Array], Array]) -> pl.BlockSpec:
      return self._spec(
        (1, 1, p.heads, p.anchors, p.block),
        lambda h, b, i, j: (
          b if own else 0,
          self._group(i),
          h,
          0,
          block(i, j),
        ),
      )

    if self.keys_inside:
      rows = table.rows[..., ::-1][..., :-1]
      near = half(lambda i, j: p.blocks_q - 1 - i + j)
      far = half(lambda i, j: p.blocks_q - i + j)
    else:
      rows = table.rows[..., :-1]
      near = half(lambda i, j: p.first + i - j - 1 - p.lowest)
      far = half(lambda i, j: p.first + i - j - p.lowest)
    found = {'near': (rows, near), 'far': (rows, far)}
    if table.weights is not None:
      weights = self._spec(
        (1, 1, p.block), lambda h, b, i, j: (b if own else 0, 0, i)
      )
      found['weights'] = table.weights, weights
    return found

  def _group(self, i: Array) -> Array:
    """Returns the group of anchors of a block of queries."""
    return jax.lax.div(i, jnp.int32(self.plan.blocks_per_group))

  def table_gradients(self, batch: int) -> Specs:
    """Returns the table's gradients as outputs, `[..., batch // rows, ...]`."""
    p, table = self.plan, self.inputs.table
    if p.form == 'none':
      return {}
    if p.form == 'dense':
      keys, _, heads, *tile = table.dense.shape
      spec = pl.BlockSpec(
        (1, 1, p.heads, *tile), lambda h, b, i, j, *_: (j, b, h, 0, 0)
      )
      return {'ddense': (_shape((keys, batch // p.rows, heads, *tile)), spec)}
    _, groups, heads, anchors, distances = table.rows.shape
    own = anchors, (distances - 1) // p.block, p.block
    spec = pl.BlockSpec(
      (1, 1, p.heads, *own),
      lambda h, b, i, j, *_: (b, self._group(i), h, 0, 0, 0),
      # It stays for many programs, and is large for long rows.
      pipeline_mode=pl.Buffered(1),
    )
    shape = batch // p.rows, groups, heads, *own
    found = {'drows': (_shape(shape), spec)}
    if table.weights is not None:
      spec = pl.BlockSpec(
        (1, p.heads, 1, p.block), lambda h, b, i, j, *_: (b, h, 0, i)
      )
      shape = batch // p.rows, heads, 1, p.length
      found['dweights'] = _shape(shape), spec
    return found
