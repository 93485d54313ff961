"""Which pairs of a query and a key are visible, and which tiles of pairs.

These masks depend on index, segment and length only, never on position values,
which may repeat; `bands` has those that do. All implementations, kernels
included, share these functions.

A tile is a block of queries against a block of keys. Functions on tiles take
indices as Python ints or int32 scalars and use `lax.div`, which also lowers
inside Pallas kernels.
"""

import dataclasses
import functools

import jax
from jax import Array
import jax.numpy as jnp

# An index or a number of blocks, known before compilation or not.
Int = int | Array


@dataclasses.dataclass(frozen=True)
class Mask:
  """The static part of a mask."""

  causal: bool  # Mask keys after the query.
  # Mask keys `window` or more before (if not causal, also after) the query.
  window: int | None = None
  # Number of first keys of each segment that stay visible beyond the window.
  sinks: int = 0
  k_length: int | None = None  # Mask keys from this index on: padding.
  # Mask pairs that are not in the band; see `Band.limits`.
  band: tuple[float, float] | None = None


def visible(
  mask: Mask,
  q_index: Array,
  k_index: Array,
  *,
  q_segment_ids: Array | None = None,
  k_segment_ids: Array | None = None,
  sink: Array | None = None,
  k_lengths: Array | None = None,
) -> Array | None:
  """Returns which pairs are visible, or None if all are.

  Indices of queries are among the keys. Pairs of different segments are masked,
  and keys from `k_lengths` on; keys that are a `sink` stay visible beyond the
  window. All arrays are int32, `sink` bool, and broadcast to the pairs' shape.
  """
  terms = []
  end = mask.k_length
  if k_lengths is not None:
    end = k_lengths if end is None else jnp.minimum(k_lengths, end)
  if end is not None:
    terms.append(k_index < end)
  if mask.causal:
    terms.append(k_index <= q_index)
  if mask.window is not None:
    near = q_index - k_index < mask.window
    if not mask.causal:
      near &= k_index - q_index < mask.window
    terms.append(near if sink is None else near | sink)
  if q_segment_ids is not None:
    terms.append(q_segment_ids == k_segment_ids)
  return functools.reduce(jnp.logical_and, terms) if terms else None


def some_blocks(
  mask: Mask,
  first: Int,
  last: Int,
  block: int,
  count: int,
  *,
  of_queries: bool = False,
) -> tuple[Array, Array]:
  """Returns the first and the last block of keys that queries may see.

  Blocks have `block` keys, and there are `count`. Queries have an index among
  the keys from `first` to `last`. With `of_queries`, the blocks are of queries
  that may see keys from `first` to `last`, relative to query 0 of block 0.
  """
  before, after = _reach(mask, None if mask.sinks else mask.window, of_queries)
  low, high = jnp.int32(0), jnp.int32(count - 1)
  if after is not None:
    high = jnp.minimum(high, _block(last + after, block))
  if before is not None:
    low = jnp.minimum(high, _block(first - before, block))
  return low, high


def whole_blocks(
  mask: Mask,
  first: Int,
  last: Int,
  block: int,
  count: int,
  *,
  of_queries: bool = False,
) -> tuple[Int, Int]:
  """Returns first and end of the blocks that are seen whole; see `some_blocks`.

  Segments, lengths of rows and, for blocks of queries, padding are ignored.
  """
  before, after = _reach(mask, mask.window, of_queries)
  low: Int = 0
  high: Int = count
  if mask.k_length is not None and not of_queries:
    high = mask.k_length // block
  if before is not None:
    low = _block(last - before + block - 1, block)
  if after is not None:
    high = jnp.minimum(high, _block(first + after + 1, block))
  return low, high


def tile_visibility(
  mask: Mask, first_q: Int, last_q: Int, first_k: Int, last_k: Int
) -> tuple[bool | Array, bool | Array]:
  """Returns whether any pair of a tile is visible, and whether all are.

  Segments, sinks and lengths of rows are not considered. A result is a Python
  bool where it does not depend on the tile.
  """
  some: bool | Array = True
  every: bool | Array = True
  if mask.k_length is not None:
    some, every = first_k < mask.k_length, last_k < mask.k_length
  before, after = _reach(mask, mask.window)
  if after is not None:
    some &= first_k - last_q <= after
    every &= last_k - first_q <= after
  if before is not None:
    some &= first_q - last_k <= before
    every &= last_q - first_k <= before
  return some, every


def segment_blocks(
  ids_BxN: Array, block: int, other_ids_BxM: Array, other_block: int
) -> tuple[Array, Array]:
  """Returns which blocks of other tokens may share a segment with each block.

  Segment ids are int32, of whole blocks. The result is the first and the last
  block, int32 `[B, N // block]` each; 1 and 0 where no block does. Blocks
  between them are included: tokens of a segment are mostly contiguous.
  """
  blocks = ids_BxN.reshape(ids_BxN.shape[0], -1, block)
  others = other_ids_BxM.reshape(ids_BxN.shape[0], -1, other_block)
  (low, high), (other_low, other_high) = (
    (ids.min(2), ids.max(2)) for ids in (blocks, others)
  )
  meets = (low[:, :, None] <= other_high[:, None]) & (
    other_low[:, None] <= high[:, :, None]
  )
  some = meets.any(2)
  first = jnp.where(some, jnp.argmax(meets, axis=2), 1)
  last = meets.shape[2] - 1 - jnp.argmax(meets[:, :, ::-1], axis=2)
  last = jnp.where(some, last, 0)
  return first.astype(jnp.int32), last.astype(jnp.int32)


def _reach(
  mask: Mask, window: int | None, of_queries: bool = False
) -> tuple[int | None, int | None]:
  """Returns how far before and after a query its keys are; None for all.

  With `of_queries`, how far before and after a key its queries are.
  """
  far = None if window is None else window - 1
  reach = far, 0 if mask.causal else far
  return reach[::-1] if of_queries else reach


def _block(index: Int, block: int) -> Array:
  """Returns the block of an index, 0 for negative ones."""
  return jax.lax.div(jnp.maximum(index, 0), jnp.int32(block))
