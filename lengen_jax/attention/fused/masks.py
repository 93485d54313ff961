"""Which tiles are needed, and which of their pairs are visible.

A tile has `queries` queries from `first_q` on (an index among the keys) and
`keys` keys from `first_k` on.
"""

import jax
import jax.numpy as jnp


def key_range(plan, first_q, queries, keys):
  """First and last block of so many keys that queries may see."""
  first, last = jnp.int32(0), jnp.int32(plan.blocks_k * plan.block // keys - 1)
  if plan.causal:
    last = jnp.minimum(last, _block(first_q + queries - 1, keys))
  elif plan.window is not None:
    reached = first_q + queries + plan.window - 2
    last = jnp.minimum(last, _block(reached, keys))
  if plan.window is not None:
    first = jnp.minimum(last, _block(first_q - plan.window + 1, keys))
  return first, last


def query_range(plan, first_k, keys, queries, offset):
  """First and last block of so many of the band's queries that may see keys."""
  first_k -= offset + plan.first * plan.block
  first, last = (
    jnp.int32(0),
    jnp.int32(plan.blocks_q * plan.block // queries - 1),
  )
  if plan.window is not None:
    reached = first_k + keys + plan.window - 2
    last = jnp.minimum(last, _block(reached, queries))
  if plan.causal:
    first = jnp.minimum(last, _block(first_k, queries))
  elif plan.window is not None:
    first = jnp.minimum(last, _block(first_k - plan.window + 1, queries))
  return first, last


def whole_keys(plan, first_q, queries, keys):
  """First and end of the blocks of keys that all of these queries see.

  Not looking at segments and lengths of rows; an int where it is known.
  """
  first, end = 0, plan.k_length // keys
  if plan.causal:
    end = jnp.minimum(end, _block(first_q + 1, keys))
  if plan.window is not None:
    first = _block(first_q + queries - 1 - plan.window + keys, keys)
    if not plan.causal:
      end = jnp.minimum(end, _block(first_q + plan.window, keys))
  return first, end


def whole_queries(plan, first_k, keys, queries, offset):
  """First and end of the blocks of the band's queries that see all keys."""
  whole = first_k + keys <= plan.k_length
  first_k -= offset + plan.first * plan.block
  last_k = first_k + keys - 1
  first, end = 0, plan.blocks_q * plan.block // queries
  if plan.causal:
    first = _block(last_k + queries - 1, queries)
  if plan.window is not None:
    end = jnp.minimum(end, _block(first_k + plan.window, queries))
    if not plan.causal:
      first = _block(last_k - plan.window + queries, queries)
  if plan.k_length < plan.blocks_k * plan.block:
    end = jnp.where(whole, end, 0)
  return first, end


def seen_blocks(ids, block, other_ids, other_block):
  """Blocks of other tokens of which some may be of a block's segments.

  What is between the first and the last of them counts too: tokens of a segment
  are mostly neighbours.

  Args:
    ids: segment ids of tokens, int32 `[B, 1, N block]`.
    block: how many are in a block.
    other_ids: of the others, `[B, 1, M other_block]`.
    other_block: how many of these are in a block.

  Returns:
    The first and the last block, int32 `[B, N]` each; 1 and 0 for none.
  """
  (low, high), (other_low, other_high) = (
    (blocks.min(2), blocks.max(2))
    for blocks in (
      ids.reshape(ids.shape[0], -1, block),
      other_ids.reshape(ids.shape[0], -1, other_block),
    )
  )
  meets = (low[:, :, None] <= other_high[:, None]) & (
    other_low[:, None] <= high[:, :, None]
  )
  some = meets.any(2)
  first = jnp.where(some, jnp.argmax(meets, axis=2), 1)
  last = meets.shape[2] - 1 - jnp.argmax(meets[:, :, ::-1], axis=2)
  last = jnp.where(some, last, 0)
  return first.astype(jnp.int32), last.astype(jnp.int32)


def _block(token, block):
  """The block of a token, 0 for those before the first."""
  return jax.lax.div(jnp.maximum(token, 0), jnp.int32(block))


def use(plan, first_q, queries, first_k, keys):
  """Whether anything in a tile is visible, and whether everything is."""
  last_q, last_k = first_q + queries - 1, first_k + keys - 1
  needed = whole = True
  if plan.k_length < plan.blocks_k * plan.block:
    needed, whole = first_k < plan.k_length, last_k < plan.k_length
  if plan.causal:
    needed &= first_k <= last_q
    whole &= last_k <= first_q
  if plan.window is not None:
    needed &= first_q - last_k < plan.window
    whole &= last_q - first_k < plan.window
    if not plan.causal:
      needed &= first_k - last_q < plan.window
      whole &= last_k - first_q < plan.window
  return needed, whole


def visible(plan, q_index, k_index, k_length=None):
  """Which pairs are visible, of indices that broadcast to a tile.

  Args:
    plan: the plan.
    q_index: of queries, among the keys.
    k_index: of keys.
    k_length: keys of the row, or None.
  """
  limit = plan.k_length
  if k_length is not None:
    limit = jnp.minimum(k_length, limit)
  visible = k_index < limit
  if plan.causal:
    visible &= k_index <= q_index
  if plan.window is not None:
    visible &= q_index - k_index < plan.window
    if not plan.causal:
      visible &= k_index - q_index < plan.window
  return visible
