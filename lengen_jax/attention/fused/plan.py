"""Arguments of the kernels: the plan of a call, and its arrays."""

import dataclasses
from typing import Any

from flax import struct
from jax import Array

from lengen_jax.attention import visibility

# Tokens in a block of queries or keys: larger ones compile for minutes on TPUs.
BLOCK = 512
# Sizes are multiples of this: the lanes of a TPU's registers.
LANES = 128


@dataclasses.dataclass(frozen=True)
class Plan:
  """Static sizes and options of a band of queries.

  Attributes:
    form: form of the bias, 'none', 'strip', 'anchored' or 'dense'.
    block: tokens in a block of queries, and in one of keys; b.
    first: index of the first block of queries.
    blocks_q: number of blocks of queries; 1 if the bias is dense.
    blocks_k: number of blocks of keys.
    head_dim: D, padded as the chip requires.
    itemsize: bytes of an entry of queries, keys and values.
    mask: causality, window and padding.
    scale: factor on the logits.
    lowest: block of the lowest distance in a row of the table.
    spacing: queries from one anchor to the next.
    two_sided: whether keys after the query interpolate between anchors with
      their own weight; see `BiasFn.row_weights`.
    shared_positions: whether positions are the same in all rows of the batch.
    interpret: whether kernels are interpreted, without the chip.
  """

  form: str
  block: int
  first: int
  blocks_q: int
  blocks_k: int
  head_dim: int
  itemsize: int
  mask: visibility.Mask
  scale: float
  lowest: int
  spacing: int
  two_sided: bool
  shared_positions: bool
  interpret: bool

  @property
  def highest(self) -> int:
    """Block of the highest distance in a row of the table."""
    return self.first + self.blocks_q

  @property
  def length(self) -> int:
    """Queries of the band."""
    return self.blocks_q * self.block

  @property
  def before(self) -> int:
    """Queries before the band."""
    return self.first * self.block

  @property
  def distances(self) -> int:
    """Distances in a row of the table, without the highest."""
    return (self.highest - self.lowest) * self.block

  @property
  def blocks_per_group(self) -> int:
    """Blocks of queries that share their anchors: all, unless overridden."""
    return self.blocks_q

  @property
  def anchors(self) -> int:
    """Anchors of a group; the last one is the next group's first."""
    if self.form != 'anchored':
      return 1
    return -(-self.blocks_per_group * self.block // self.spacing) + 1

  def heads_of(self, x: Array) -> int:
    """Returns the number of heads in `[B, N, H D]`."""
    return x.shape[2] // self.head_dim


class Table(struct.PyTreeNode):
  """What kernels make the bias of tiles from; all None without a bias.

  Attributes:
    rows: by distance, `[1 or B, P, H, A, T + 1]`: one row of a bias that
      depends on distance alone, or P groups of the rows of A anchors.
    weights: `[1 or B, 1, n]`, how far each query of the band is from the anchor
      before to the one after; None without anchors.
    dense: tiles of one block of queries with all keys, `[N, 1 or B, H, b, b]`.
  """

  rows: Any = None
  weights: Any = None
  dense: Any = None


class Inputs(struct.PyTreeNode):
  """Arrays of a call for a band of queries.

  Attributes:
    q: all queries, `[B, Q, H D]`, Q a multiple of the block.
    k: `[B, K, G D]`, G key heads, in the dtype of q.
    v: like k.
    offset: int32 `[1]`, index of the first query among the keys.
    k_lengths: int32 `[B]` or None.
    q_segment_ids: int32 `[B, 1, Q]` or None.
    k_segment_ids: int32 `[B, 1, K]` or None.
    table: the Table.
    dy: gradient of the band's output, `[B, n, H D]`; None, like those below, in
      the forward pass.
    lse: log-sum-exp of each softmax, float32 `[B, H, 1, n]`.
    delta: sum_j p_ij dp_ij, which the softmax's gradient subtracts; like lse.
    weights_vary: bool `[n]`, whether weights of anchors depend on parameters;
      None without anchors.
  """

  q: Any
  k: Any
  v: Any
  offset: Any
  k_lengths: Any
  q_segment_ids: Any
  k_segment_ids: Any
  table: Table
  dy: Any = None
  lse: Any = None
  delta: Any = None
  weights_vary: Any = None

  def segment_ids(self, plan: Plan) -> tuple[Array, Array]:
    """Returns segment ids of queries, and of the keys that the band reads."""
    # Packed rows are one band.
    end = plan.blocks_k * plan.block
    return self.q_segment_ids, self.k_segment_ids[..., :end]
