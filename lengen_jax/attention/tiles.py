"""Tiles of pairs: blocks of queries and of keys, and what is visible in them.

Shapes: N blocks of queries or keys, q and k tokens in a block.
"""

import dataclasses
import math
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from lengen_jax import partitioning
from lengen_jax import positions as position_schemes


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is known before anything is computed."""

  block_q: int
  block_k: int
  blocks_q: int
  blocks_k: int
  k_length: int
  causal: bool
  window: int | None
  sinks: int
  scale: float
  bias_form: str


@struct.dataclass
class Tokens:
  """What masks and positions are, of all queries or all keys.

  Attributes:
    index: int32 `[N, 1 or B, block]`, among the keys.
    positions: `[N, 1 or B, block]`, or Distances whose index is like that.
    segment_ids: int32 `[N, B, block]` or None.
    sink: bool `[N, 1 or B, block]`, keys that stay visible; or None.
    lengths: int32 `[B]`, keys from there on are masked; or None.
  """

  index: Any
  positions: Any
  segment_ids: Any = None
  sink: Any = None
  lengths: Any = None


def block_size():
  """Tokens in a block: what a core's cache holds, or a matrix unit likes."""
  return 128 if partitioning.platform() == 'cpu' else 512


def mask(plan, one, other):
  """Which keys of a tile are visible, bool `[1 or B, q, k]`."""
  behind = one.index[:, :, None] - other.index[:, None, :]
  visible = (other.index < plan.k_length)[:, None, :]
  if plan.causal:
    visible &= behind >= 0
  if plan.window is not None:
    near = jnp.abs(behind) < plan.window
    if other.sink is not None:
      near |= other.sink[:, None, :]
    visible &= near
  if one.segment_ids is not None:
    visible &= one.segment_ids[:, :, None] == other.segment_ids[:, None, :]
  if other.lengths is not None:
    visible &= (other.index < other.lengths[:, None])[:, None, :]
  return visible


def key_range(plan, one):
  """Blocks of keys that a block of queries may see: first, and end."""
  first, end = 0, plan.blocks_k
  if plan.causal:
    end = jnp.minimum(end, one.index.max() // plan.block_k + 1)
  elif plan.window is not None and not plan.sinks:
    last = one.index.max() + plan.window - 1
    end = jnp.minimum(end, last // plan.block_k + 1)
  if plan.window is not None and not plan.sinks:
    nearest = jnp.maximum(one.index.min() - plan.window + 1, 0)
    first = nearest // plan.block_k
  return first, end


def query_range(plan, queries, other):
  """Blocks of queries that may see a block of keys: first, and end."""
  offset = queries.index[0, :, 0]
  first, end = 0, plan.blocks_q
  reach = math.inf if plan.window is None or plan.sinks else plan.window - 1
  if plan.causal:
    first = (other.index.min() - offset.max()) // plan.block_q
  elif reach < math.inf:
    first = (other.index.min() - reach - offset.max()) // plan.block_q
  if reach < math.inf:
    last = (other.index.max() + reach - offset.min()) // plan.block_q
    end = jnp.clip(last + 1, 0, end)
  return jnp.clip(first, 0, plan.blocks_q), end


def is_needed(plan, block, others, swapped=False):
  """Whether a tile has anything visible in it, or None if all in range do.

  Conservative: a tile that is not needed is masked altogether.
  """
  has_sinks = plan.window is not None and plan.sinks
  if block.segment_ids is None and not has_sinks:
    return None

  def needed(n):
    other = jax.tree.map(lambda x: x[n], _without_positions(others))
    one = _without_positions(block)
    if swapped:
      one, other = other, one
    answer = True
    if one.segment_ids is not None:
      answer &= one.segment_ids.min() <= other.segment_ids.max()
      answer &= other.segment_ids.min() <= one.segment_ids.max()
    if has_sinks:
      far = one.index.min() - other.index.max() >= plan.window
      answer &= ~far | other.sink.any()
    return answer

  return needed


def _without_positions(tokens):
  return tokens.replace(positions=None, lengths=None)


def read(x, n, block):
  """Block n of `[B, N block, H, D]` as `[B, H, block, D]`."""
  x = jax.lax.dynamic_slice_in_dim(x, n * block, block, axis=1)
  return jnp.swapaxes(x, 1, 2)


def write(x, new, n):
  """Puts a block back where `read` finds it."""
  new = jnp.swapaxes(new, 1, 2).astype(x.dtype)
  return jax.lax.dynamic_update_slice_in_dim(x, new, n * new.shape[1], axis=1)


def token_block(tokens, n):
  lengths, positions = tokens.lengths, tokens.positions
  block = jax.tree.map(lambda x: x[n], _without_positions(tokens))
  if isinstance(positions, position_schemes.Distances):
    start = positions.start
    positions = positions.replace(
      index=positions.index[n], start=None if start is None else start[n]
    )
  else:
    positions = positions[n]
  return block.replace(positions=positions, lengths=lengths)


def position_blocks(positions, block):
  if not isinstance(positions, position_schemes.Distances):
    return blocks(jnp.atleast_2d(positions), block)
  index = positions.index
  if index is None:
    index = jnp.arange(positions.r.shape[-1], dtype=jnp.int32)[None]
  return positions.replace(
    index=blocks(index, block), start=blocks(positions.start, block)
  )


def blocks(x, block):
  """`[B, n, ...]` as `[N, B, block, ...]`, the last one padded with zeros."""
  if x is None:
    return None
  x = padded(x, block)
  return jnp.swapaxes(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 0, 1)


def padded(x, block):
  """`[B, n, ...]` with zeros up to a multiple of a block."""
  missing = -x.shape[1] % block
  return jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2))
