"""What a call of the kernels is about: sizes, bands of queries, places."""

import dataclasses
from typing import Any

import jax

# Tokens in a block of queries or keys: larger ones compile for minutes on TPUs.
BLOCK = 512
# Of which sizes are multiples: the lanes of a TPU's registers.
LANES = 128


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is known before anything is computed, of a band of queries.

  Attributes:
    form: of the bias: 'none', 'strip', 'anchored' or 'dense'.
    block: tokens in a block of queries, and in one of keys; b.
    first: index of the first block of queries.
    blocks_q: blocks of queries; 1 if the bias is dense.
    blocks_k: blocks of keys.
    head_dim: D.
    itemsize: bytes of a number of queries, keys and values.
    k_length: keys from there on are masked.
    causal: see `dot_product_attention`.
    window: likewise.
    scale: likewise.
    lowest: block of the lowest distance in a row of the table.
    spacing: queries from one anchor to the next.
    two_sided: whether keys after the query have a bias between anchors of their
      own; see `BiasFn.row_weights`.
    alike: whether positions are the same in all rows of the batch.
    interpret: whether the chip is not there.
  """

  form: str
  block: int
  first: int
  blocks_q: int
  blocks_k: int
  head_dim: int
  itemsize: int
  k_length: int
  causal: bool
  window: int | None
  scale: float
  lowest: int
  spacing: int
  two_sided: bool
  alike: bool
  interpret: bool

  @property
  def highest(self):
    """Block of the highest distance in a row of the table."""
    return self.first + self.blocks_q

  @property
  def blocks_per_group(self):
    """Blocks of queries that have the same anchors: all, or as a chip has."""
    return self.blocks_q

  @property
  def anchors(self):
    """Anchors of a group; the last one is the next group's first."""
    if self.form != 'anchored':
      return 1
    return -(-self.blocks_per_group * self.block // self.spacing) + 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Places:
  """Where queries and keys stand.

  Attributes:
    offset: int32 `[1]`, index of the first query among the keys.
    q_positions: `[Q]`, `[1 or B, Q]`, or Distances.
    k_positions: likewise, `[K]`.
    k_lengths: int32 `[B]` or None.
    q_segment_ids: int32 `[B, 1, N b]` or None.
    k_segment_ids: likewise.
    weights_vary: of the band's queries, bool `[n]`, whether how far they are
      between anchors depends on parameters; None but for gradients.
  """

  offset: jax.Array
  q_positions: Any
  k_positions: Any
  k_lengths: Any
  q_segment_ids: Any
  k_segment_ids: Any
  weights_vary: Any = None


def bands(length, block, exact, two_sided=False):
  """Bands of queries: form, block, first query, end, queries between anchors.

  FIRE's bias varies with the query's position i as a function of log i, so that
  anchors are a fourth of i apart, or less: an eighth where little is averaged
  over, or where keys after the query are visible, of which rows are further
  from straight. The first queries have a bias of their own each. Each band
  costs time to compile, and memory for its anchors and all of their distances.

  Args:
    length: tokens of a row.
    block: tokens in a block, where a band has so many.
    exact: so many first queries have a bias of their own.
    two_sided: whether keys after the query are visible.
  """
  first = min(exact, length)
  bands = [('dense', first, 0, first, 1)]
  while first < length:
    end = (2 if BLOCK <= first < 8 * BLOCK else 4) * first
    parts = 8 if two_sided or first < BLOCK else 4
    bands.append(
      ('anchored', min(block, first), first, min(end, length), first // parts)
    )
    first = end
  return bands
