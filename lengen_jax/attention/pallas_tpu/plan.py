"""What a call of the kernels is about: sizes, bands of queries, places."""

import dataclasses
from typing import Any

import jax
from jax.experimental.pallas import tpu as pltpu

from lengen_jax import errors
from lengen_jax import partitioning
from lengen_jax.attention.pallas_tpu.lanes import LANES

# Tokens in a block. Larger ones are compiled for minutes.
_BLOCK = 512
# Rows of the batch that share a tile of the bias.
_ROWS = 8
# Of vector memory, what is planned for.
_ROOM = 0.9


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is known before anything is computed, of a band of queries.

  Attributes:
    form: of the bias: 'none', 'strip', 'anchored' or 'dense'.
    block: tokens in a block of queries, and in one of keys; b.
    first: index of the first block of queries.
    blocks_q: blocks of queries; 1 if the bias is dense.
    blocks_k: blocks of keys.
    rows: of the batch, in a program.
    head_dim: D.
    k_length: keys from there on are masked.
    causal: see `dot_product_attention`.
    window: likewise.
    scale: likewise.
    lowest: block of the lowest distance in a row of the table.
    spacing: queries from one anchor to the next.
    interpret: whether there is no TPU.
  """

  form: str
  block: int
  first: int
  blocks_q: int
  blocks_k: int
  rows: int
  head_dim: int
  k_length: int
  causal: bool
  window: int | None
  scale: float
  lowest: int
  spacing: int
  interpret: bool

  @property
  def lanes(self):
    """W."""
    return max(LANES, self.head_dim)

  @property
  def heads(self):
    """Heads in a program."""
    return self.lanes // self.head_dim

  @property
  def highest(self):
    """Block of the highest distance in a row of the table."""
    return self.first + self.blocks_q

  @property
  def piece(self):
    """Queries whose anchors are computed together."""
    if self.form == 'strip':
      return self.block
    return min(self.block, max(self.spacing, LANES))

  @property
  def intervals(self):
    """Intervals between anchors of a piece."""
    return 0 if self.form == 'strip' else -(-self.piece // self.spacing)

  @property
  def anchors(self):
    """Queries of a group whose bias a tile is made from."""
    return self.intervals * (self.block // self.piece) + 1

  @property
  def table_rows(self):
    """Rows of a table that a tile is made from."""
    if self.form == 'anchored':
      # The last one is for where rows bend.
      return self.anchors + 1
    return 1 if self.form == 'strip' else 0

  def halved(self):
    """The same with blocks of half the size."""
    return dataclasses.replace(
      self,
      block=self.block // 2,
      **{
        name: 2 * getattr(self, name)
        for name in ('first', 'blocks_q', 'blocks_k', 'lowest')
      },
    )

  @property
  def blocks_per_group(self):
    """Blocks of queries that have the same anchors."""
    if self.form == 'strip':
      return self.blocks_q
    return max(1, self.spacing // self.block)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Places:
  """Where queries and keys stand.

  Attributes:
    offset: int32 `[1]`, index of the first query among the keys.
    kink: float32 `[1 or B]`, the query at which rows of the bias bend, below 0
      for none.
    q_positions: `[Q]`, `[1 or B, Q]`, or Distances.
    k_positions: likewise, `[K]`.
    k_lengths: int32 `[B]` or None.
    q_segment_ids: int32 `[B, 1, N b]` or None.
    k_segment_ids: likewise.
  """

  offset: jax.Array
  kink: jax.Array
  q_positions: Any
  k_positions: Any
  k_lengths: Any
  q_segment_ids: Any
  k_segment_ids: Any


def block_size(length, heads=1, form='strip'):
  """Tokens in a block, for so many tokens in a row and heads in a program."""
  block = _BLOCK
  while _tiles(form, block, heads) > _ROOM * vector_memory():
    block //= 2
  return min(block, -(-length // LANES) * LANES)


def bands(length, block):
  """Bands of queries: form, block, first query, end, queries between anchors.

  FIRE's bias varies with the query's position i as a function of log i, so that
  anchors are an eighth of i apart, or less. The first queries have a bias of
  their own each. Each band costs time to compile, and memory for its anchors
  and all of their distances.
  """
  bands = [('dense', LANES, 0, LANES, 1)]
  first = LANES
  while first < length:
    end = (2 if _BLOCK <= first < 8 * _BLOCK else 4) * first
    bands.append(
      ('anchored', min(block, first), first, min(end, length), first // 8)
    )
    first = end
  return bands


def band_of(i):
  """The band of a query of a long row."""
  return bands(i + 1, _BLOCK)[-1]


def rows(plan, batch, itemsize):
  """Rows of the batch in a program: as many as vector memory has room for."""
  b = plan.block
  # q, k, v and two more, and the next ones; sums and what is known per query.
  per_row = 2 * 5 * itemsize * b * plan.lanes
  per_row += 4 * b * (plan.lanes + 2 * plan.heads * LANES)
  room = (_ROOM * vector_memory() - _fixed(plan)) // per_row
  rows = [n for n in range(1, _ROWS + 1) if batch % n == 0 and n <= room]
  return max(rows, default=1)


def fitting(plan):
  """The plan, or with smaller blocks where the table's gradient is so large.

  Raises:
    errors.ConfigError: it has no room at all.
  """
  while _fixed(plan) > _ROOM * vector_memory():
    if plan.block == LANES or plan.piece != plan.block:
      distances = (plan.highest - plan.lowest) * plan.block
      raise errors.ConfigError(
        f"implementation='pallas' has no room for the gradient of a bias over "
        f'{distances} distances in {vector_memory() / 2**20:.0f} MiB of vector '
        "memory; use 'blockwise', or heads of 128"
      )
    plan = plan.halved()
  return plan


def _fixed(plan):
  """Bytes of vector memory for a tile, and for the table's gradient."""
  blocks = plan.highest - plan.lowest
  table = 4 * plan.heads * plan.table_rows * blocks * plan.block
  return _tiles(plan.form, plan.block, plan.heads) + table


def _tiles(form, block, heads):
  """Bytes of the tiles of all pairs that are there at a time."""
  # The bias and its gradient; a dense one's come from outside and go there too,
  # each while the next is on its way.
  of_a_head = 6 if form == 'dense' else 2
  return 4 * (of_a_head * heads + 4) * block**2


def vector_memory():
  """Bytes of vector memory of a core."""
  if partitioning.platform() == 'tpu':
    return pltpu.get_tpu_info().vmem_capacity_bytes
  return 2**24
