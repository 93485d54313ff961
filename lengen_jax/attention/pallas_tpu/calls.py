"""Calls of the kernels: which part of each array a program has."""

import dataclasses
import types

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from lengen_jax.attention.fused import masks as fused_masks
from lengen_jax.attention.fused.plan import LANES
from lengen_jax.attention.pallas_tpu import kernels
from lengen_jax.attention.pallas_tpu import masks
from lengen_jax.attention.pallas_tpu import plan as plans
from lengen_jax.attention.pallas_tpu.plan import Plan


def forward(plan, q, k, v, table, places):
  """The output, and the logarithm of each softmax's sum, `[B, H, 1, Q]`."""
  batch, _, width = q.shape
  plan = plans.with_rows(plan, plans.FORWARD, batch)
  specs = _Specs.create(plan, q, k, places, keys_inside=True)
  length, heads = plan.blocks_q * plan.block, width // plan.head_dim
  return _call(
    kernels.forward,
    specs,
    specs.inputs(table, places, q=q, k=k, v=v),
    outputs={
      'y': (_shape((batch, length, width), q), specs.queries(0)),
      'log_sum': (_shape((batch, heads, 1, length)), specs.per_query()),
    },
    scratch={
      'largest': specs.per_head,
      'total': specs.per_head,
      'sum': specs.summed,
      **specs.bias_scratch,
    },
    places=places,
  )


def query_gradients(plan, q, k, v, table, places, **of_queries):
  """Gradients to the band's queries, and to the table.

  Args:
    plan: the plan.
    q: `[B, Q, H D]`.
    k: `[B, K, G D]`, G groups of heads, with `plan.key_copies` of each.
    v: likewise.
    table: what `tables.make` gave.
    places: the places.
    **of_queries: of the band, `dy`, `log_sum` and `centre`.
  """
  plan = plans.with_rows(plans.fitting(plan), plans.QUERIES, q.shape[0])
  specs = _Specs.create(plan, q, k, places, keys_inside=True)
  outputs = {'dq': (_shape(of_queries['dy'].shape, q), specs.queries(0))}
  outputs |= specs.table_gradients(table, q.shape[0])
  scratch = {
    'log_sums': specs.per_head,
    'centres': specs.per_head,
    'sum': specs.summed,
    **specs.bias_scratch,
  }
  if table:
    scratch['dbias'] = (plan.heads, plan.block, plan.block)
    if plan.form != 'dense':
      scratch['ddistances'] = scratch['distances']
  dq, *found = _call(
    kernels.query_gradient,
    specs,
    specs.inputs(table, places, q=q, k=k, v=v, **of_queries),
    outputs=outputs,
    scratch=scratch,
    places=places,
  )
  names = [name[1:] for name in outputs if name != 'dq']
  found = dict(zip(names, found, strict=True))
  if not found:
    return dq, {}
  if 'dense' in found:
    return dq, {'dense': _summed(found['dense'], table['dense'], 1)}
  if 'weights' in found:
    found['weights'] = _summed(found['weights'].sum(1), table['weights'], 0)
  # As it was read: from the highest distance down, without the lowest.
  like = table['rows']
  rows = found['rows'].reshape(-1, *like.shape[1:-1], like.shape[-1] - 1)
  rows = jnp.pad(rows, ((0, 0),) * (like.ndim - 1) + ((0, 1),))
  return dq, found | {'rows': _summed(rows, like, 0)[..., ::-1]}


def _summed(gradient, like, axis):
  """The gradient, summed over rows of the batch that have the same table."""
  if like.shape[axis] > 1:
    return gradient
  return gradient.sum(axis, keepdims=True)


def key_gradients(plan, q, k, v, table, places, **of_queries):
  """Gradients to the keys and values that the band sees; see above."""
  plan = plans.with_rows(plan, plans.KEYS, q.shape[0])
  specs = _Specs.create(plan, q, k, places, keys_inside=False)
  shape = (q.shape[0], plan.blocks_k * plan.block, k.shape[2])
  return _call(
    kernels.key_gradient,
    specs,
    specs.inputs(table, places, q=q, k=k, v=v, **of_queries),
    outputs={
      'dk': (_shape(shape, k), specs.keys()),
      'dv': (_shape(shape, v), specs.keys()),
    },
    scratch={
      'dk_sum': specs.summed,
      'dv_sum': specs.summed,
      **specs.bias_scratch,
    },
    places=places,
  )


def _shape(shape, like=None):
  """Of an output in the dtype of another array, or in float32."""
  dtype = jnp.float32 if like is None else like.dtype
  return jax.ShapeDtypeStruct(shape, dtype)


def _call(kernel, specs, inputs, *, outputs, scratch, places):
  """Calls a kernel, whose references it finds by name.

  Args:
    kernel: a function of a Plan and references.
    specs: the _Specs.
    inputs: name to (array, BlockSpec).
    outputs: name to (ShapeDtypeStruct, BlockSpec).
    scratch: name to a shape of float32 in vector memory.
    places: the Places.

  Returns:
    A list of outputs.
  """
  plan = specs.plan
  prefetch = {'offset': places.offset, **specs.seen_blocks(places)}
  if 'dweights' in outputs:
    vary = places.weights_vary.reshape(plan.blocks_q, plan.block)
    prefetch['weights_vary'] = vary.any(1).astype(jnp.int32)
  if places.k_lengths is not None:
    prefetch['k_lengths'] = places.k_lengths
  names = [*prefetch, *inputs, *outputs, *scratch, 'ready_for']

  def body(*references):
    named = dict(zip(names, references, strict=True))
    # Not to be asked for within a loop.
    first_row = pl.program_id(1) * plan.rows
    kernel(plan, types.SimpleNamespace(first_row=first_row, **named))

  batch, _, width = inputs['q' if specs.keys_inside else 'k'][0].shape
  shapes, out_specs = zip(*outputs.values(), strict=True)
  order = ['parallel', 'parallel', 'parallel', 'arbitrary']
  if len(outputs) > 1 and kernel is kernels.query_gradient:
    # The table's gradient is summed over blocks of queries.
    order[2] = 'arbitrary'
  return pl.pallas_call(
    body,
    out_shape=shapes,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(prefetch),
      grid=(width // plan.lanes, batch // plan.rows, *specs.blocks),
      in_specs=[spec for _, spec in inputs.values()],
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
  )(*prefetch.values(), *(array for array, _ in inputs.values()))


@dataclasses.dataclass(frozen=True)
class _Specs:
  """Which part of an array a program of the grid has.

  The grid is (heads, rows, queries, keys), or (heads of keys, rows, keys, heads
  with these keys and queries). Where a tile is not needed, its neighbours'
  parts stay, so that nothing is fetched.

  Attributes:
    plan: the plan.
    keys_inside: whether keys are the last axis of the grid.
    group: how many times as wide queries are as keys.
    packed: whether there are segments.
  """

  plan: Plan
  keys_inside: bool
  group: int
  packed: bool

  @classmethod
  def create(cls, plan, q, k, places, *, keys_inside):
    packed = places.k_segment_ids is not None
    return cls(plan, keys_inside, q.shape[2] // k.shape[2], packed)

  @property
  def blocks(self):
    p = self.plan
    if self.keys_inside:
      return p.blocks_q, p.blocks_k
    return p.blocks_k, self.group * p.blocks_q

  def _at(self, index):
    """An index map from `index(h, b, i, j)`, i and j of queries and of keys."""
    p = self.plan

    def of_grid(h, b, outer, inner, offset, *more):
      if self.keys_inside:
        first, last = masks.key_range(p, outer, offset[0])
      else:
        member, inner = masks.query_block(p, inner)
        h = h * self.group + member
        first, last = masks.query_range(p, outer, offset[0])
      if self.packed:
        seen = masks.of_segments(
          p, more[:2], b * p.rows, outer, self.keys_inside
        )
        first, last = jnp.maximum(first, seen[0]), jnp.minimum(last, seen[1])
      inner = jnp.clip(inner, first, last)
      i, j = (outer, inner) if self.keys_inside else (inner, outer)
      return index(h, b, i, j)

    return of_grid

  def seen_blocks(self, places):
    """Blocks whose segments may meet, row after row, by name."""
    if not self.packed:
      return {}
    p = self.plan
    # Packed rows are one band.
    k_segment_ids = places.k_segment_ids[..., : p.blocks_k * p.block]
    sides = places.q_segment_ids, k_segment_ids
    one, other = sides if self.keys_inside else sides[::-1]
    first, last = fused_masks.seen_blocks(one, p.block, other, p.block)
    return {'first_seen': first.reshape(-1), 'last_seen': last.reshape(-1)}

  @property
  def per_head(self):
    """Shape of a number per query and head, in all lanes."""
    p = self.plan
    return p.rows, p.heads, p.block, LANES

  @property
  def summed(self):
    """Shape of a sum over blocks."""
    return self.plan.rows, self.plan.block, self.plan.lanes

  @property
  def bias_scratch(self):
    """Shapes of a tile of the bias and of its distances, by name."""
    p = self.plan
    if p.form == 'none':
      return {}
    if p.alone:
      scratch = {'strips': (p.heads, p.anchors, 2, LANES, p.block)}
    else:
      scratch = {'bias': (p.heads, p.block, p.block)}
    if p.form != 'dense':
      scratch['distances'] = (p.anchors, 2 * p.block)
    if p.form == 'anchored' and self.keys_inside:
      scratch['weight_columns'] = p.block, LANES
    return scratch

  def inputs(self, table, places, **arrays):
    """Name to (array, BlockSpec)."""
    specs = {
      'q': self.queries(self.plan.first),
      'k': self.keys(),
      'v': self.keys(),
      'dy': self.queries(0),
      'log_sum': self.per_query(),
      'centre': self.per_query(),
    }
    return {
      **{name: (array, specs[name]) for name, array in arrays.items()},
      **self.table_inputs(table),
      **self.segments(places),
    }

  def queries(self, first):
    return pl.BlockSpec(
      self.summed, self._at(lambda h, b, i, j: (b, first + i, h))
    )

  def keys(self):

    def block(h, b, i, j):
      return b, j, jax.lax.div(h, jnp.int32(self.group))

    return pl.BlockSpec(self.summed, self._at(block))

  def per_query(self):
    p = self.plan
    return pl.BlockSpec(
      (p.rows, p.heads, 1, p.block), self._at(lambda h, b, i, j: (b, h, 0, i))
    )

  def segments(self, places):
    """Segment ids as inputs, by name."""
    if places.q_segment_ids is None:
      return {}
    p = self.plan
    shape = (p.rows, 1, p.block)
    return {
      'q_segment_ids': (
        places.q_segment_ids,
        pl.BlockSpec(shape, self._at(lambda h, b, i, j: (b, 0, p.first + i))),
      ),
      'k_segment_ids': (
        places.k_segment_ids,
        pl.BlockSpec(shape, self._at(lambda h, b, i, j: (b, 0, j))),
      ),
    }

  def table_inputs(self, table):
    """The two blocks of distances in a tile, as inputs by name.

    By falling distance where queries are the rows of a tile, by rising distance
    where keys are.
    """
    p = self.plan
    if p.form == 'none':
      return {}
    own = next(iter(table.values())).shape[p.form == 'dense'] > 1
    if p.form == 'dense':
      spec = pl.BlockSpec(
        (1, 1, p.heads, p.block, p.block),
        self._at(lambda h, b, i, j: (j, b if own else 0, h, 0, 0)),
      )
      return {'dense': (table['dense'], spec)}

    def spec(block):
      return pl.BlockSpec(
        (1, 1, p.heads, p.anchors, p.block),
        self._at(
          lambda h, b, i, j: (
            b if own else 0,
            self._group(i),
            h,
            0,
            block(i, j),
          )
        ),
      )

    if self.keys_inside:
      rows = table['rows'][..., ::-1][..., :-1]
      near = spec(lambda i, j: p.blocks_q - 1 - i + j)
      far = spec(lambda i, j: p.blocks_q - i + j)
    else:
      rows = table['rows'][..., :-1]
      near = spec(lambda i, j: p.first + i - j - 1 - p.lowest)
      far = spec(lambda i, j: p.first + i - j - p.lowest)
    found = {'near': (rows, near), 'far': (rows, far)}
    if 'weights' in table:
      weights = pl.BlockSpec(
        (1, 1, p.block), self._at(lambda h, b, i, j: (b if own else 0, 0, i))
      )
      found['weights'] = table['weights'], weights
    return found

  def _group(self, i):
    """Which group of anchors a block of queries has."""
    return jax.lax.div(i, jnp.int32(self.plan.blocks_per_group))

  def table_gradients(self, table, batch):
    """A table's gradients as outputs by name, `[..., batch // rows, ...]`."""
    p = self.plan
    if p.form == 'none':
      return {}
    if p.form == 'dense':
      keys, _, heads, *tile = table['dense'].shape
      shape = (keys, batch // p.rows, heads, *tile)
      spec = pl.BlockSpec(
        (1, 1, p.heads, *tile), lambda h, b, i, j, *_: (j, b, h, 0, 0)
      )
      return {'ddense': (_shape(shape), spec)}
    _, groups, heads, anchors, distances = table['rows'].shape
    blocks = (distances - 1) // p.block
    shape = (anchors, blocks, p.block)
    spec = pl.BlockSpec(
      (1, 1, p.heads, *shape),
      lambda h, b, i, j, *_: (b, self._group(i), h, 0, 0, 0),
      # It stays for many programs, and is large for long rows.
      pipeline_mode=pl.Buffered(1),
    )
    shape = (batch // p.rows, groups, heads, *shape)
    found = {'drows': (_shape(shape), spec)}
    if 'weights' in table:
      shape = (batch // p.rows, heads, 1, p.blocks_q * p.block)
      spec = pl.BlockSpec(
        (1, p.heads, 1, p.block), lambda h, b, i, j, *_: (b, h, 0, i)
      )
      found['dweights'] = _shape(shape), spec
    return found
