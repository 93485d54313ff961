"""Arguments of the kernels: the plan of a call, and its arrays."""

import dataclasses
from typing import Any

from flax import struct
import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax.attention import call as call_lib
from lengen_jax.attention import visibility
from lengen_jax.attention.call import AttentionCall

# Tokens in a block of queries or keys: larger ones compile for minutes on TPUs.
BLOCK = 512
# Sizes are multiples of this: the lanes of a TPU's registers.
LANES = 128


@dataclasses.dataclass(frozen=True)
class Plan:
  """Static sizes and options of a range of queries."""

  # Form of the bias: 'none', 'keys', 'strip', 'anchored' or 'dense'.
  form: str
  block: int  # Tokens in a block of queries, and in one of keys; b.
  first: int  # Index of the first block of queries.
  blocks_q: int  # Number of blocks of queries; 1 if the bias is dense.
  blocks_k: int  # Number of blocks of keys; of a chunk if the bias is dense.
  head_dim: int  # D, padded as the chip requires.
  itemsize: int  # Bytes of an entry of queries, keys and values.
  mask: visibility.Mask
  scale: float  # Factor on the logits.
  lowest: int  # Block of the lowest distance in a row of the table.
  spacing: int  # Queries from one anchor to the next.
  # Whether keys after the query have their own weight between anchors; see
  # `BiasFn.row_weights`.
  two_sided: bool
  shared_positions: bool  # Whether positions are equal in all rows.
  interpret: bool  # Whether kernels are interpreted, without the chip.

  @property
  def is_partial(self) -> bool:
    """Whether outputs of several calls are summed; they are float32 then."""
    return self.form == 'dense'

  @property
  def has_tiles(self) -> bool:
    """Whether the bias of a tile is computed for all rows of the batch."""
    return self.form not in ('none', 'keys')

  @property
  def highest(self) -> int:
    """Block of the highest distance in a row of the table."""
    return self.first + self.blocks_q

  @property
  def length(self) -> int:
    """Queries of the range."""
    return self.blocks_q * self.block

  @property
  def before(self) -> int:
    """Queries before the range."""
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
    """Number of anchors per group, with the first anchor of the next group."""
    if self.form != 'anchored':
      return 1
    return -(-self.blocks_per_group * self.block // self.spacing) + 1

  def heads_of(self, x: Array) -> int:
    """Returns the number of heads in `[B, N, H D]`."""
    return x.shape[2] // self.head_dim

  def delta(self, y_BxnxHD: Array, dy_BxnxHD: Array) -> Array:
    """Returns sum_j p_ij dp_ij of each softmax, float32 `[B, H, 1, n]`."""
    product = y_BxnxHD.astype(jnp.float32) * dy_BxnxHD.astype(jnp.float32)
    shape = *product.shape[:2], -1, self.head_dim
    return jnp.swapaxes(product.reshape(shape).sum(-1), 1, 2)[:, :, None]


class Table(struct.PyTreeNode):
  """What kernels make the bias of tiles from; all None without a bias."""

  # By distance, [1 or B, P, H, A, T + 1]: one row of a bias that depends on
  # distance alone, or P groups of the rows of A anchors.
  rows: Any = None
  # [1 or B, 1, n], interpolation weights of the queries of the range, see
  # `bias_forms.interpolation_weights`; None without anchors.
  weights: Any = None
  # Tiles of one block of queries with the N blocks of keys of a chunk,
  # [N, 1 or B, H, b, b].
  dense: Any = None
  # Positions of keys per head, value and error, float32 [B, H, 1, K]: the bias
  # of a key is linear in them.
  key_values: Any = None
  key_errors: Any = None
  # [B, H, 1, n / b LANES]: of each block of queries, value and error of the
  # first position, and the slope of the head; the other lanes are 0.
  lines: Any = None


class Inputs(struct.PyTreeNode):
  """Arrays of a call for a range of queries."""

  q: Any  # All queries, [B, Q, H D], Q a multiple of the block.
  k: Any  # [B, K, G D], G key heads, in the dtype of q.
  v: Any
  offset: Any  # int32 [1], index of the first query among the keys.
  k_lengths: Any  # int32 [B] or None.
  q_segment_ids: Any  # int32 [B, 1, Q] or None.
  k_segment_ids: Any  # int32 [B, 1, K] or None.
  table: Table
  # The rest is for the backward pass.
  dy: Any = None  # Gradient of the range's output, [B, n, H D].
  lse: Any = None  # Log-sum-exp of each softmax, float32 [B, H, 1, n].
  delta: Any = None  # sum_j p_ij dp_ij, in the gradient of the softmax.
  weights_vary: Any = None  # bool [n], whether `weights` depend on parameters.

  @classmethod
  def create(cls, plan: Plan, call: AttentionCall, table: Table) -> 'Inputs':
    """Returns the arrays of a call for the forward pass."""
    q_ids, k_ids = jax.tree.map(
      lambda ids: call_lib.pad(ids, plan.block)[:, None],
      (call.queries.segment_ids, call.keys.segment_ids),
    )
    offset = call.queries.index[0, :1] - call.keys.index[0, :1]
    vectors = call.q, call.k, call.v
    return cls(*vectors, offset, call.keys.lengths, q_ids, k_ids, table)

  def with_gradients(
    self, plan: Plan, y_BxnxHD: Array, lse: Array, dy_BxnxHD: Array
  ) -> 'Inputs':
    """Returns the arrays for the backward pass, except `weights_vary`."""
    delta = plan.delta(y_BxnxHD, dy_BxnxHD)
    return self.replace(dy=dy_BxnxHD, lse=lse, delta=delta)

  def segment_ids(self, plan: Plan) -> tuple[Array, Array]:
    """Returns segment ids of queries, and of the keys that the range reads."""
    # Packed rows are one range.
    end = plan.blocks_k * plan.block
    return self.q_segment_ids, self.k_segment_ids[..., :end]
