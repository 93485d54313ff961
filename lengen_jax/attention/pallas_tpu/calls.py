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
# By name of a field of Program: an input, or an output's shape and dtype; its
# blocks.
Specs = dict[str, tuple[Any, pl.BlockSpec]]
# The block of an array for (heads, rows, block of queries, block of keys).
Index = Callable[[Array, Array, Array, Array], tuple]


def forward(plan: Plan, inputs: Inputs) -> tuple[Array, Array]:
  """Returns the output `[B, n, H D]`, and log-sum-exps `[B, H, 1, n]`.

  For queries that see no key they are 0, and MASKED.
  """
  batch, _, width = inputs.q.shape
  grid = _Grid(plans.with_rows(plan, plans.FORWARD, batch), inputs, True)
  heads = plan.heads_of(inputs.q)
  found = grid.call(
    kernels.forward,
    outputs={
      'y': (_output(plan, inputs.q, plan.length), grid.queries(0)),
      'lse': (_shape(batch, heads, 1, plan.length), grid.per_query()),
    },
    scratch={
      'largest': grid.per_head,
      'total': grid.per_head,
      'sum': grid.summed,
    },
  )
  return found['y'], found['lse']


def query_gradients(plan: Plan, inputs: Inputs) -> tuple[Array, Table]:
  """Returns gradients of the range's queries, and of the table."""
  q, table = inputs.q, inputs.table
  plan = plans.with_rows(plans.fitting(plan), plans.QUERIES, q.shape[0])
  grid = _Grid(plan, inputs, True)
  outputs = {'dq': (_output(plan, q, plan.length), grid.queries(0))}
  scratch: dict[str, Shape] = {
    'lse_columns': grid.per_head,
    'delta_columns': grid.per_head,
    'sum': grid.summed,
  }
  if plan.has_tiles:
    outputs |= grid.table_gradients()
    scratch['dbias'] = (plan.heads, plan.block, plan.block)
    if plan.form != 'dense':
      scratch['ddistances'] = (plan.anchors, 2 * plan.block)
  found = grid.call(kernels.query_gradient, outputs, scratch)

  def summed(gradient: Array, like: Array, axis: int) -> Array:
    # Over rows of the batch that share a table.
    if like.shape[axis] > 1:
      return gradient
    return gradient.sum(axis, keepdims=True)

  dense = rows = weights = None
  if table.dense is not None:
    dense = summed(found['ddense'], table.dense, 1)
  if table.weights is not None:
    weights = summed(found['dweights'].sum(1), table.weights, 0)
  if table.rows is not None:
    # In the order of the inputs: from the highest distance, without the lowest.
    *lead, distances = table.rows.shape[1:]
    rows = found['drows'].reshape(-1, *lead, distances - 1)
    rows = jnp.pad(rows, ((0, 0),) * (rows.ndim - 1) + ((0, 1),))
    rows = summed(rows, table.rows, 0)[..., ::-1]
  return found['dq'], Table(rows, weights, dense)


def key_gradients(
  plan: Plan, inputs: Inputs
) -> tuple[Array, Array, Array | None]:
  """Returns gradients of the keys and values that the range reads.

  The third result is the gradient of a bias per key, float32 `[B, H, 1, K]`, if
  the form of the bias is 'keys', else None.
  """
  k = inputs.k
  grid = _Grid(plans.with_rows(plan, plans.KEYS, k.shape[0]), inputs, False)
  shape = _output(plan, k, plan.blocks_k * plan.block)
  outputs = {'dk': (shape, grid.keys()), 'dv': (shape, grid.keys())}
  if plan.form == 'keys':
    heads = plan.heads_of(inputs.q)
    of_bias = _shape(k.shape[0], heads, 1, shape.shape[1])
    outputs['dkey_bias'] = of_bias, grid.per_key()
  found = grid.call(
    kernels.key_gradient,
    outputs=outputs,
    scratch={'dk_sum': grid.summed, 'dv_sum': grid.summed},
  )
  return found['dk'], found['dv'], found.get('dkey_bias')


def _shape(*shape: int) -> jax.ShapeDtypeStruct:
  """Returns a float32 output."""
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def _output(plan: Plan, x: Array, length: int) -> jax.ShapeDtypeStruct:
  """Returns an output like queries or keys x, `[B, length, H D]`."""
  dtype = jnp.float32 if plan.is_partial else x.dtype
  return jax.ShapeDtypeStruct((x.shape[0], length, x.shape[2]), dtype)


@dataclasses.dataclass(frozen=True)
class _Grid:
  """The grid of a kernel, and the blocks of arrays that its programs read.

  The grid is (heads, rows, queries, keys), or (heads of keys, rows, keys, heads
  with these keys and queries). Where a tile is fully masked, its neighbour's
  blocks stay, so that nothing is fetched.
  """

  plan: Plan
  inputs: Inputs
  keys_inside: bool  # Whether keys are the last axis of the grid.

  @property
  def group(self) -> int:
    """Query heads per key head."""
    return self.inputs.q.shape[2] // self.inputs.k.shape[2]

  def group_of(self, i: Array) -> Array:
    """Returns the group of anchors of a block of queries."""
    return jax.lax.div(i, jnp.int32(self.plan.blocks_per_group))

  @property
  def per_head(self) -> Shape:
    """Shape of a number per query and head, in all lanes."""
    p = self.plan
    return p.rows, p.heads, p.block, LANES

  @property
  def summed(self) -> Shape:
    """Shape of a sum over blocks."""
    return self.plan.rows, self.plan.block, self.plan.lanes

  def call(
    self,
    kernel: Callable[[program.Program], None],
    outputs: Specs,
    scratch: dict[str, Shape],
  ) -> dict[str, Array]:
    """Calls a kernel and returns its outputs; scratch is float32."""
    plan, inputs, keys_inside = self.plan, self.inputs, self.keys_inside
    sizes = plan.blocks_q, plan.blocks_k
    if not keys_inside:
      sizes = plan.blocks_k, self.group * plan.blocks_q
    blocks, prefetch = self._blocks(), {'offset': inputs.offset}
    if inputs.k_segment_ids is not None:
      sides = [(x[:, 0], plan.block) for x in inputs.segment_ids(plan)]
      outer, inner = sides if keys_inside else sides[::-1]
      first, last = visibility.segment_blocks(*outer, *inner)
      prefetch['first_seen'] = first.reshape(-1)
      prefetch['last_seen'] = last.reshape(-1)
    if 'dweights' in outputs:
      vary = inputs.weights_vary.reshape(plan.blocks_q, plan.block)
      prefetch['weights_vary'] = vary.any(1).astype(jnp.int32)
    if inputs.k_lengths is not None:
      prefetch['k_lengths'] = inputs.k_lengths
    scratch = {**scratch, **self._bias_scratch()}
    names = [*prefetch, *blocks, *outputs, *scratch, 'ready_for']

    def body(*references: Any) -> None:
      # Within loops the place in the grid is not available.
      i, j = outer, inner = pl.program_id(2), pl.program_id(3)
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
          is_last=inner == sizes[1] - 1,
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
    found = pl.pallas_call(
      body,
      out_shape=shapes,
      grid_spec=pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(prefetch),
        grid=(width // plan.lanes, batch // plan.rows, *sizes),
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
    return dict(zip(outputs, found, strict=True))

  def _bias_scratch(self) -> dict[str, Shape]:
    """Returns shapes of a tile of the bias and of its distances, by name."""
    p = self.plan
    if not p.has_tiles:
      return {}
    scratch: dict[str, Shape] = {'bias': (p.heads, p.block, p.block)}
    if p.alone:
      scratch = {'strips': (p.heads, p.anchors, 2, LANES, p.block)}
    if p.form != 'dense':
      scratch['distances'] = (p.anchors, 2 * p.block)
    if p.form == 'anchored' and self.keys_inside:
      scratch['weight_columns'] = p.block, LANES
    return scratch

  def queries(self, first: int) -> pl.BlockSpec:
    """Returns the blocks of queries, from the block of index `first` on."""
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

  def per_key(self) -> pl.BlockSpec:
    """Returns the blocks of numbers per key and query head."""
    p = self.plan
    return self._spec(
      (p.rows, p.heads, 1, p.block), lambda h, b, i, j: (b, h, 0, j)
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

  def _blocks(self) -> Specs:
    """Returns inputs by name."""
    p, inputs, table = self.plan, self.inputs, self.inputs.table
    found: Specs = {
      'q': (inputs.q, self.queries(p.first)),
      'k': (inputs.k, self.keys()),
      'v': (inputs.v, self.keys()),
    }

    def add(name: str, array: Array, shape: Shape, index: Index) -> None:
      found[name] = array, self._spec(shape, index)

    if inputs.dy is not None:
      found['dy'] = inputs.dy, self.queries(0)
      found['lse'] = inputs.lse, self.per_query()
      found['delta'] = inputs.delta, self.per_query()
    if table.dense is not None:
      several = table.dense.shape[1] > 1
      add(
        'dense',
        table.dense,
        (1, 1, p.heads, p.block, p.block),
        lambda h, b, i, j: (j, b if several else 0, h, 0, 0),
      )
    own = int(table.rows is not None and table.rows.shape[0] > 1)
    if table.rows is not None:
      # The two blocks of distances in a tile: largest first where queries are
      # the rows of a tile, smallest first where keys are.
      rows = table.rows[..., ::-1] if self.keys_inside else table.rows
      rows = rows[..., :-1]

      def half(n: int) -> Index:
        def of(h: Array, b: Array, i: Array, j: Array) -> tuple:
          at = p.first + i - j - 1 + n - p.lowest
          if self.keys_inside:
            at = p.blocks_q - 1 + n - i + j
          return b * own, self.group_of(i), h, 0, at

        return of

      shape = 1, 1, p.heads, p.anchors, p.block
      add('near', rows, shape, half(0))
      add('far', rows, shape, half(1))
    if table.lines is not None:
      found['key_values'] = table.key_values, self.per_key()
      found['key_errors'] = table.key_errors, self.per_key()
      shape = p.rows, p.heads, 1, LANES
      add('lines', table.lines, shape, lambda h, b, i, j: (b, h, 0, i))
    if table.weights is not None:
      shape = 1, 1, p.block
      add('weights', table.weights, shape, lambda h, b, i, j: (b * own, 0, i))
    if inputs.q_segment_ids is not None:
      q_ids, k_ids = inputs.q_segment_ids, inputs.k_segment_ids
      shape = p.rows, 1, p.block
      add('q_segment_ids', q_ids, shape, lambda h, b, i, j: (b, 0, p.first + i))
      add('k_segment_ids', k_ids, shape, lambda h, b, i, j: (b, 0, j))
    return found

  def table_gradients(self) -> Specs:
    """Returns the table's gradients as outputs, `[..., batch // rows, ...]`."""
    p, table = self.plan, self.inputs.table
    programs = self.inputs.q.shape[0] // p.rows
    if p.form == 'dense':
      keys, _, heads, *tile = table.dense.shape
      spec = pl.BlockSpec(
        (1, 1, p.heads, *tile), lambda h, b, i, j, *_: (j, b, h, 0, 0)
      )
      return {'ddense': (_shape(keys, programs, heads, *tile), spec)}
    _, groups, heads, anchors, distances = table.rows.shape
    own = anchors, (distances - 1) // p.block, p.block
    spec = pl.BlockSpec(
      (1, 1, p.heads, *own),
      lambda h, b, i, j, *_: (b, self.group_of(i), h, 0, 0, 0),
      # It stays for many programs, and is large for long rows.
      pipeline_mode=pl.Buffered(1),
    )
    found = {'drows': (_shape(programs, groups, heads, *own), spec)}
    if table.weights is not None:
      spec = pl.BlockSpec(
        (1, p.heads, 1, p.block), lambda h, b, i, j, *_: (b, h, 0, i)
      )
      found['dweights'] = _shape(programs, heads, 1, p.length), spec
    return found
