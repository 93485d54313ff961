"""How much of attention a program on a TPU computes at a time."""

import dataclasses

from jax.experimental.pallas import tpu as pltpu

from lengen_jax import errors, partitioning
from lengen_jax.attention.fused import plan as plans
from lengen_jax.attention.fused.plan import LANES

# Number of first queries whose biases are computed exactly.
EXACT = LANES
# Largest number of rows of the batch that share a tile of the bias.
_ROWS = 8
# Fraction of vector memory that is planned for.
_ROOM = 0.9


@dataclasses.dataclass(frozen=True)
class Plan(plans.Plan):
  """See `fused.plan`."""

  rows: int = 1  # Rows of the batch in a program.

  @property
  def lanes(self) -> int:
    """Width of the heads of a program, W: at least the lanes of a register."""
    return max(LANES, self.head_dim)

  @property
  def heads(self) -> int:
    """Heads in a program."""
    return self.lanes // self.head_dim

  @property
  def piece(self) -> int:
    """Queries whose anchors are computed together."""
    if self.form == 'strip':
      return self.block
    return min(self.block, max(self.spacing, LANES))

  @property
  def intervals(self) -> int:
    """Intervals between anchors of a piece."""
    return 0 if self.form == 'strip' else -(-self.piece // self.spacing)

  @property
  def alone(self) -> bool:
    """Whether a tile's bias is for one row of the batch, from few anchors.

    Such a bias is added where it is computed, and its strips are kept for the
    next tile.
    """
    if self.form not in ('strip', 'anchored') or self.rows > 1:
      return False
    return self.piece == self.block and self.intervals <= 1

  def halved(self) -> 'Plan':
    """Returns the same plan with blocks of half the size."""
    names = 'first', 'blocks_q', 'blocks_k', 'lowest'
    doubled = {name: 2 * getattr(self, name) for name in names}
    return dataclasses.replace(self, block=self.block // 2, **doubled)

  @property
  def blocks_per_group(self) -> int:
    """Blocks of queries that share their anchors."""
    if self.form == 'strip':
      return self.blocks_q
    return max(1, self.spacing // self.block)


def head_width(num_heads: int, head_dim: int) -> int:
  """Returns the size of a head, padded unless heads fill registers."""
  if LANES % head_dim == 0 and num_heads % (LANES // head_dim) == 0:
    return head_dim
  return -(-head_dim // LANES) * LANES


def key_copies(num_heads: int, key_heads: int, width: int) -> int:
  """Returns copies of a key head, for query heads that share a register.

  If a group fills several registers, each has the same copies. If a register
  holds heads of several groups, every head has a separate copy.
  """
  group, heads = num_heads // key_heads, max(1, LANES // width)
  return group if group % heads else heads


@dataclasses.dataclass(frozen=True)
class Needs:
  """Numbers of arrays, by kind, that a kernel holds in vector memory."""

  inputs: int  # Blocks of queries or keys.
  outputs: int  # Likewise; float32 if the plan is partial.
  sums: int  # Sums over blocks, float32.
  numbers: int  # Numbers per query and head, in all lanes of a register.
  tiles: int  # Tiles of pairs in a loop over rows of the batch, float32.
  tiles_per_head: int  # Tiles for all rows, float32.
  tables: bool = False  # Whether it holds the gradient of a table.


FORWARD = Needs(
  inputs=3, outputs=1, sums=1, numbers=2, tiles=3, tiles_per_head=1
)
QUERIES = Needs(
  inputs=4,
  outputs=1,
  sums=1,
  numbers=2,
  tiles=4,
  tiles_per_head=2,
  tables=True,
)
KEYS = Needs(inputs=4, outputs=2, sums=2, numbers=0, tiles=4, tiles_per_head=1)


def block_size(length: int, form: str, width: int, itemsize: int) -> int:
  """Returns the tokens in a block, for rows of `length` tokens."""
  block, lanes = plans.BLOCK, max(LANES, width)
  heads = lanes // width
  sizes = itemsize, 4 if form == 'dense' else itemsize

  def needed(needs: Needs) -> int:
    per_row = _per_row(needs, block, heads, lanes, *sizes)
    return _tiles(needs, form, block, heads) + per_row

  while max(map(needed, (FORWARD, QUERIES, KEYS))) > _room():
    block //= 2
  return min(block, -(-length // LANES) * LANES)


def with_rows(plan: Plan, needs: Needs, batch: int) -> Plan:
  """Returns the plan with as many rows as fit vector memory."""
  if not plan.shared_positions:
    return plan
  several = dataclasses.replace(plan, rows=2)
  per_row = _per_row_of(plan, needs)
  room = (_room() - _fixed(several, needs)) // per_row
  rows = [n for n in range(1, _ROWS + 1) if batch % n == 0 and n <= room]
  return dataclasses.replace(plan, rows=max(rows, default=1))


def fitting(plan: Plan) -> Plan:
  """Returns the plan, with smaller blocks if the table's gradient needs room.

  Raises:
    errors.ConfigError: the gradient does not fit at any size.
  """

  def needed(plan: Plan) -> int:
    return _fixed(plan, QUERIES) + _per_row_of(plan, QUERIES)

  while plan.form != 'dense' and needed(plan) > _room():
    if plan.block == LANES or plan.piece != plan.block:
      raise errors.ConfigError(
        "implementation='pallas' has no room for the gradient of a bias over "
        f'{plan.distances} distances in {vector_memory() / 2**20:.0f} MiB of '
        "vector memory; use 'blockwise', or heads of 128"
      )
    plan = plan.halved()
  return plan


def _per_row_of(plan: Plan, needs: Needs) -> int:
  sizes = plan.itemsize, 4 if plan.is_partial else plan.itemsize
  return _per_row(needs, plan.block, plan.heads, plan.lanes, *sizes)


def _per_row(
  needs: Needs,
  block: int,
  heads: int,
  lanes: int,
  itemsize: int,
  output_itemsize: int,
) -> int:
  """Returns bytes of vector memory per row of the batch."""
  # Blocks are double-buffered.
  blocks = 2 * (needs.inputs * itemsize + needs.outputs * output_itemsize)
  numbers = needs.sums * lanes + needs.numbers * heads * LANES
  return block * (blocks * lanes + 4 * numbers)


def _fixed(plan: Plan, needs: Needs) -> int:
  """Returns bytes of vector memory for a tile, and for the table's gradient."""
  needed = _tiles(needs, plan.form, plan.block, plan.heads)
  if plan.alone:
    # Strips instead of the tile of each head.
    strips = 2 * plan.anchors * LANES - plan.block
    needed += 4 * plan.heads * plan.block * strips
  if plan.form == 'anchored':
    # Weights of queries, in all lanes.
    needed += 4 * plan.block * LANES
  if needs.tables and plan.form in ('strip', 'anchored'):
    needed += 4 * plan.heads * plan.anchors * plan.distances
  return needed


def _tiles(needs: Needs, form: str, block: int, heads: int) -> int:
  """Returns bytes of the tiles of pairs that are held at a time."""
  # Dense ones are inputs and outputs too, double-buffered.
  per_head = needs.tiles_per_head * (3 if form == 'dense' else 1)
  return 4 * (per_head * heads + needs.tiles) * block**2


def _room() -> float:
  """Returns bytes of vector memory that are planned for."""
  return _ROOM * vector_memory()


def vector_memory() -> int:
  """Returns bytes of vector memory of a core."""
  if partitioning.platform() == 'tpu':
    return pltpu.get_tpu_info().vmem_capacity_bytes
  return 2**24
