"""How much of attention a TPU's program does at a time."""

import dataclasses

from jax.experimental.pallas import tpu as pltpu

from lengen_jax import errors
from lengen_jax import partitioning
from lengen_jax.attention.fused import plan as plans
from lengen_jax.attention.fused.plan import LANES

# Of the first queries each has a bias of its own.
EXACT = LANES
# Rows of the batch that share a tile of the bias.
_ROWS = 8
# Of vector memory, what is planned for.
_ROOM = 0.9


@dataclasses.dataclass(frozen=True)
class Plan(plans.Plan):
  """See `fused.plan`.

  Attributes:
    rows: of the batch, in a program.
  """

  rows: int = 1

  @property
  def lanes(self):
    """W."""
    return max(LANES, self.head_dim)

  @property
  def heads(self):
    """Heads in a program."""
    return self.lanes // self.head_dim

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
  def alone(self):
    """Whether a tile's bias is of one row of the batch, and of few anchors.

    Then it is added where it is made, and what it is made from is kept for the
    next tile.
    """
    if self.form not in ('strip', 'anchored') or self.rows > 1:
      return False
    return self.piece == self.block and self.intervals <= 1

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


def head_width(num_heads, head_dim):
  """Numbers of a head, with zeros if heads do not fill registers."""
  if LANES % head_dim == 0 and num_heads % (LANES // head_dim) == 0:
    return head_dim
  return -(-head_dim // LANES) * LANES


def key_copies(num_heads, key_heads, width):
  """Copies of a head of keys, for heads of a group that share a register.

  A group in several registers has the same copies in each. Where a register has
  heads of several groups, all have a copy of their own.
  """
  group, heads = num_heads // key_heads, max(1, LANES // width)
  return group if group % heads else heads


@dataclasses.dataclass(frozen=True)
class Needs:
  """What a kernel has in vector memory.

  Attributes:
    blocks: of queries or keys, coming or going.
    sums: over blocks, float32.
    numbers: per query and head, each in all lanes of a register.
    tiles: of pairs, in a loop over rows of the batch; float32.
    tiles_per_head: likewise, for all rows.
    tables: whether it has the gradient of a table.
  """

  blocks: int
  sums: int
  numbers: int
  tiles: int
  tiles_per_head: int
  tables: bool = False


FORWARD = Needs(blocks=4, sums=1, numbers=2, tiles=3, tiles_per_head=1)
QUERIES = Needs(
  blocks=5, sums=1, numbers=2, tiles=4, tiles_per_head=2, tables=True
)
KEYS = Needs(blocks=6, sums=2, numbers=0, tiles=4, tiles_per_head=1)


def block_size(length, form, width, itemsize):
  """Tokens in a block, for so many tokens in a row and numbers in a head."""
  block, lanes = plans.BLOCK, max(LANES, width)
  heads = lanes // width

  def needed(needs):
    per_row = _per_row(needs, block, heads, lanes, itemsize)
    return _tiles(needs, form, block, heads) + per_row

  while max(map(needed, (FORWARD, QUERIES, KEYS))) > _room():
    block //= 2
  return min(block, -(-length // LANES) * LANES)


def with_rows(plan, needs, batch):
  """The plan with as many rows as vector memory has room for."""
  if not plan.alike:
    return plan
  shared = dataclasses.replace(plan, rows=2)
  per_row = _per_row(needs, plan.block, plan.heads, plan.lanes, plan.itemsize)
  room = (_room() - _fixed(shared, needs)) // per_row
  rows = [n for n in range(1, _ROWS + 1) if batch % n == 0 and n <= room]
  return dataclasses.replace(plan, rows=max(rows, default=1))


def fitting(plan):
  """The plan, or with smaller blocks where the table's gradient is so large.

  Raises:
    errors.ConfigError: it has no room at all.
  """

  def needed(plan):
    sizes = plan.block, plan.heads, plan.lanes, plan.itemsize
    return _fixed(plan, QUERIES) + _per_row(QUERIES, *sizes)

  while plan.form != 'dense' and needed(plan) > _room():
    if plan.block == LANES or plan.piece != plan.block:
      distances = (plan.highest - plan.lowest) * plan.block
      raise errors.ConfigError(
        f"implementation='pallas' has no room for the gradient of a bias over "
        f'{distances} distances in {vector_memory() / 2**20:.0f} MiB of vector '
        "memory; use 'blockwise', or heads of 128"
      )
    plan = plan.halved()
  return plan


def _per_row(needs, block, heads, lanes, itemsize):
  """Bytes of vector memory for a row of the batch."""
  # Each block is there twice: the next one is on its way.
  per_query = 2 * needs.blocks * itemsize * lanes
  per_query += 4 * needs.sums * lanes
  per_query += 4 * needs.numbers * heads * LANES
  return block * per_query


def _fixed(plan, needs):
  """Bytes of vector memory for a tile, and for the table's gradient."""
  needed = _tiles(needs, plan.form, plan.block, plan.heads)
  if plan.alone:
    # Instead of the tile of each head.
    strips = 2 * plan.anchors * LANES - plan.block
    needed += 4 * plan.heads * plan.block * strips
  if plan.form == 'anchored':
    # Weights of queries, in all lanes.
    needed += 4 * plan.block * LANES
  if needs.tables and plan.form in ('strip', 'anchored'):
    distances = (plan.highest - plan.lowest) * plan.block
    needed += 4 * plan.heads * plan.anchors * distances
  return needed


def _tiles(needs, form, block, heads):
  """Bytes of the tiles of all pairs that are there at a time."""
  # A dense one's come from outside and go there too, each while the next is on
  # its way.
  per_head = needs.tiles_per_head * (3 if form == 'dense' else 1)
  return 4 * (per_head * heads + needs.tiles) * block**2


def _room():
  """Bytes of vector memory that are planned for."""
  return _ROOM * vector_memory()


def vector_memory():
  """Bytes of vector memory of a core."""
  if partitioning.platform() == 'tpu':
    return pltpu.get_tpu_info().vmem_capacity_bytes
  return 2**24
