"""Attention with all that a position encoding adds to it."""

from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax.attention import call as call_lib
from lengen_jax.attention.dot_product import dot_product_attention
from lengen_jax.positions import PerHead, Positions
from lengen_jax.types import Array


def with_encoding(
  encoding: encodings.Encoding,
  q: Array,
  k: Array,
  v: Array,
  *,
  q_positions: Positions | PerHead | None = None,
  k_positions: Positions | PerHead | None = None,
  causal: bool,
  lengths: Array | None = None,
  rotate: bool = True,
  scale: float | None = None,
  **options: Any,
) -> jax.Array:
  """Computes attention with an encoding's rotation, bias and content terms.

  Args:
    encoding: an Encoding that is bound to its parameters, as in `setup` or by
      `encoding.bind(variables)`.
    q: `[B, Q, H, D]`.
    k: `[B, K, G, D]`.
    v: `[B, K, G, D]`.
    q_positions: see `dot_product_attention`.
    k_positions: likewise.
    causal: whether keys after the query are masked.
    lengths: int32 `[B, 1]` or `[B, Q]`, the length of each sequence, for
      encodings that depend on it.
    rotate: False if q and k are rotated already, as in a cache.
    scale: factor on the logits; None for 1/sqrt(D) of the encoding.
    **options: other arguments of `dot_product_attention`.

  Returns:
    `[B, Q, H, D]` in the dtype of q.

  Raises:
    errors.ConfigError: see `dot_product_attention`.
  """
  if rotate:
    offset = options.get('q_offset', 0)
    q, k = rotated(encoding, q, k, q_positions, k_positions, lengths, offset)
    if k.shape[2] > v.shape[2]:
      v = jnp.repeat(v, k.shape[2] // v.shape[2], axis=2)
  return dot_product_attention(
    q,
    k,
    v,
    bias=encoding.bias_fn(bidirectional=not causal),
    content=encoding.content_fn(),
    q_positions=q_positions,
    k_positions=k_positions,
    causal=causal,
    scale=encoding.head_dim**-0.5 if scale is None else scale,
    **options,
  )


def rotated(
  encoding: encodings.Encoding,
  q: Array,
  k: Array,
  q_positions: Any,
  k_positions: Any,
  lengths: Array | None = None,
  q_offset: int | Array = 0,
) -> tuple[Array, Array]:
  """Returns rotated queries and keys; see `with_encoding`.

  With positions per head, keys are repeated for all query heads.
  """
  if encodings.kind(encoding) != 'rotation':
    return q, k
  if q_positions is None:
    q_positions, _ = call_lib.query_index(q_offset, *q.shape[:2])
  if k_positions is None:
    k_positions, _ = call_lib.query_index(0, *k.shape[:2])
  if encodings.is_per_head(q_positions):
    k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
  q_positions, k_positions = (
    p.value if isinstance(p, PerHead) else p for p in (q_positions, k_positions)
  )
  return encoding.rotate(q, k, q_positions, k_positions, lengths)
