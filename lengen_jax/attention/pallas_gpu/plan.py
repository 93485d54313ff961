"""Block sizes of the GPU kernels."""

from lengen_jax.attention.fused import plan as plans
from lengen_jax.attention.fused.plan import Plan as Plan

# Number of first queries whose biases are computed exactly. Beyond them,
# anchors are at least as far apart as tiles are wide.
EXACT = plans.BLOCK


def head_width(num_heads: int, head_dim: int) -> int:
  """Returns the size of a head, padded to a power of 2."""
  del num_heads
  return max(16, 1 << (head_dim - 1).bit_length())


def key_copies(num_heads: int, key_heads: int, width: int) -> int:
  """Returns the number of copies of a key head: always 1 on a GPU.

  Query heads of a group read the same key head.
  """
  del num_heads, key_heads, width
  return 1


def block_size(length: int, form: str, width: int, itemsize: int) -> int:
  """Returns the tokens in a block, for a number of tokens in a row."""
  del form, width, itemsize
  lanes = plans.LANES
  return min(plans.BLOCK, -(-length // lanes) * lanes)


def tile_size(plan: Plan) -> int:
  """Returns the queries, and keys, in a tile of the backward kernels."""
  return 64 if plan.itemsize * plan.head_dim <= 256 else 32


def forward_tile_size(plan: Plan) -> tuple[int, int]:
  """Returns the queries and keys in a tile of the forward kernel.

  A tile of the bias takes shared memory in float32, and one of anchors twice
  that.
  """
  n = tile_size(plan)
  return (n, n) if plan.form in ('anchored', 'dense') else (2 * n, n)
