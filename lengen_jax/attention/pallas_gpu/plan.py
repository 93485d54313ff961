"""How much of attention a GPU's program does at a time."""

from lengen_jax.attention.fused import plan as plans
from lengen_jax.attention.fused.plan import Plan

# Of the first queries each has a bias of its own: from there on anchors are as
# far apart as tiles are wide, or further.
EXACT = plans.BLOCK


def head_width(num_heads, head_dim):
  """Numbers of a head, with zeros up to a power of 2."""
  del num_heads
  return max(16, 1 << (head_dim - 1).bit_length())


def key_copies(num_heads, key_heads, width):
  """Copies of a head of keys: heads of a group have it in common."""
  del num_heads, key_heads, width
  return 1


def block_size(length, form, width, itemsize):
  """Tokens in a block, for so many tokens in a row."""
  del form, width, itemsize
  lanes = plans.LANES
  return min(plans.BLOCK, -(-length // lanes) * lanes)


def tile_size(plan):
  """Queries, and keys, in a tile of the backward kernels."""
  return 64 if plan.itemsize * plan.head_dim <= 256 else 32


def forward_tile_size(plan):
  """Queries and keys in a tile of the forward kernel."""
  return 2 * tile_size(plan), tile_size(plan)


__all__ = [
  'EXACT',
  'Plan',
  'block_size',
  'forward_tile_size',
  'head_width',
  'key_copies',
  'tile_size',
]
