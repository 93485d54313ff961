"""Attention with all that a position encoding adds to it."""

from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors, specs
from lengen_jax.attention import call as call_lib
from lengen_jax.attention import checks
from lengen_jax.attention.dot_product import dot_product_attention
from lengen_jax.positions import Distances, PerHead, Positions
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
  """Computes attention with all that an encoding adds: rotation, bands, bias.

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
    rotate: False if q and k are rotated already, as in a cache. Encodings with
      bands require unrotated q and k.
    scale: factor on the logits; None for 1/sqrt(D) of the encoding.
    **options: other arguments of `dot_product_attention`.

  Returns:
    `[B, Q, H, D]` in the dtype of q.

  Raises:
    errors.ConfigError: the encoding is not bound, or its sizes differ from
      those of q; or see `dot_product_attention`.
    errors.CombinationError: the encoding acts at the input of a model, or does
      not support the positions.
    errors.LengthError: the encoding depends on the length, and `lengths` is
      None or does not match the keys.
  """
  _check_encoding(encoding, q)
  bands, offset = (), options.get('q_offset', 0)
  if encodings.kind(encoding) == 'bands':
    k, i, j = _to_rotate(encoding, q, k, q_positions, k_positions, offset)
    bands = encoding.bands(q, k, i, j)
  elif rotate:
    q, k = rotated(encoding, q, k, q_positions, k_positions, lengths, offset)
  if k.shape[2] > v.shape[2]:
    v = jnp.repeat(v, k.shape[2] // v.shape[2], axis=2)
  return dot_product_attention(
    q,
    k,
    v,
    bias=encoding.bias_fn(bidirectional=not causal),
    content=encoding.content_fn(),
    bands=bands,
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
  """Returns rotated queries `[B, Q, H, D]` and keys `[B, K, G, D]`.

  `pope` doubles D. With positions per head, keys are repeated for all query
  heads: G is H. If the encoding does not rotate, returns q and k unchanged.
  Arguments and errors are those of `with_encoding`.
  """
  if encodings.kind(encoding) != 'rotation':
    return q, k
  k, i, j = _to_rotate(encoding, q, k, q_positions, k_positions, q_offset)
  return encoding.rotate(q, k, i, j, lengths)


def _to_rotate(
  encoding: encodings.Encoding,
  q: Array,
  k: Array,
  q_positions: Any,
  k_positions: Any,
  q_offset: int | Array,
) -> tuple[Array, Array, Array]:
  """Returns keys, and checked positions of queries and keys, as arrays.

  With positions per head, keys are repeated for all query heads.
  """
  q_positions, k_positions = (
    checks.checked_positions(
      name,
      call_lib.Side(call_lib.query_index(first, *x.shape[:2])[0], given),
      len(x),
      q.shape[2],
      contiguous=False,
    )
    for name, x, given, first in (
      ('q', q, q_positions, q_offset),
      ('k', k, k_positions, 0),
    )
  )
  per_head = [isinstance(p, PerHead) for p in (q_positions, k_positions)]
  if isinstance(q_positions, Distances) or any(per_head) != all(per_head):
    raise errors.CombinationError(
      f'{specs.name(encoding)} rotates queries and keys; it requires positions '
      'of tokens, per head for both or for neither; got '
      f'{type(q_positions).__name__} and {type(k_positions).__name__}'
    )
  if all(per_head):
    k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    q_positions, k_positions = q_positions.value, k_positions.value
  return k, q_positions, k_positions


def _check_encoding(encoding: Any, q: Array) -> None:
  """Raises unless an encoding is bound, and fits the queries."""
  if not isinstance(encoding, encodings.Encoding) or encoding.scope is None:
    raise errors.ConfigError(
      'encoding must be an Encoding bound to its parameters, got '
      f'{errors.shown(encoding)}; encodings.create(spec, '
      '...).bind(variables) makes one'
    )
  name = specs.name(encoding)
  if encoding.embeds:
    raise errors.CombinationError(
      f'{name} acts at the input of a model, not in attention; call its '
      'embed(x, positions) on the input'
    )
  sizes = encoding.num_heads, encoding.head_dim
  widths = encoding.head_dim, *[2 * encoding.head_dim] * encoding.widens
  if q.ndim == 4 and (q.shape[2] != sizes[0] or q.shape[3] not in widths):
    raise errors.ConfigError(
      f'{name} was created with num_heads={sizes[0]} and head_dim={sizes[1]}; '
      f'queries have {q.shape[2]} and {q.shape[3]}; make them equal'
    )
