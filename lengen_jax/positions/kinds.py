"""Positions of tokens: per token, per pair, per head, or in two parts.

Shapes: B batch, L length, N selected tokens, H heads, R rows of positions.
"""

import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from lengen_jax.types import Array


@struct.dataclass
class Distances:
  """Distances between pairs of tokens, instead of one position per token.

  The signed distance of pair (i, j) of a segment is sign(i - j) r_|i - j|.

  Attributes:
    r: int32 `[B, L]`, or `[layers, B, L]` for different distances per layer;
      0 = r_0 < r_1 < ... at the tokens of a segment.
    index: int32 `[1 or B, N]`, row index of each selected token; None for all
      tokens, in order.
    start: int32 `[1 or B, N]`, row index of the first token of their segment;
      None for 0.
    size: exclusive upper bound of the distances; None if unknown.
  """

  r: Any
  index: Any = None
  start: Any = None
  size: int | None = struct.field(pytree_node=False, default=None)

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of r."""
    return self.r.shape

  def at(self, index: Array) -> 'Distances':
    """Selects the tokens at `index`, int32 `[1 or B, N]`."""
    start: Any = None if self.start is None else take(self.start, index)
    return dataclasses.replace(self, index=index, start=start)

  def rows(self, keys: 'Distances') -> tuple[jax.Array, jax.Array]:
    """Returns the index into r of each pair's distance, and i - j.

    `self` selects the queries and `keys`, with the same r, the keys. Both
    results are int32 `[1 or B, Q, K]`.
    """
    length = self.r.shape[-1]
    everywhere = jnp.arange(length, dtype=jnp.int32)[None]
    i = everywhere if self.index is None else self.index
    j = everywhere if keys.index is None else keys.index
    start = jnp.zeros_like(i) if self.start is None else self.start
    apart = i[:, :, None] - j[:, None, :]
    # Pairs of different segments are masked; the clip keeps them in range.
    row = jnp.clip(start[:, :, None] + jnp.abs(apart), 0, length - 1)
    return row, apart

  def to(self, keys: 'Distances') -> jax.Array:
    """Returns the signed distance of each pair, float32 `[B, Q, K]`."""
    row, apart = self.rows(keys)
    sign = jnp.sign(apart).astype(jnp.float32)
    distance = jnp.take_along_axis(self.r[:, None], row, axis=2)
    return sign * distance.astype(jnp.float32)


@struct.dataclass
class PerHead:
  """A position per token and query head, which may depend on contents.

  Positions are sums of two float32 numbers: near 1e5, one float32 has steps of
  1/128, which is too coarse for sums over many tokens.

  Attributes:
    value: float32 `[1 or B, N, H]`. Differentiable.
    error: float32, the position minus `value`; None for 0. Not differentiable.
  """

  value: Any
  error: Any = None

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the values."""
    return self.value.shape

  def to(self, keys: 'PerHead') -> jax.Array:
    """Returns the signed distance of each pair, float32 `[..., Q, K]`.

    Tokens are on the last axis: `[..., Q]` for self, `[..., K]` for `keys`.
    """
    distance = self.value[..., :, None] - keys.value[..., None, :]
    if self.error is None or keys.error is None:
      return distance
    error = self.error[..., :, None] - keys.error[..., None, :]
    return distance + jax.lax.stop_gradient(error)


@struct.dataclass
class Parts:
  """Positions for the input of a model, and others for attention.

  Attributes:
    at_input: int32 or float32 `[1 or B, L]`, or several rows of positions
      `[R, 1 or B, L]`, for the encoding that acts at the input.
    in_attention: `[1 or B, L]`, `[layers, 1 or B, L]` or Distances; None for
      the standard positions.
  """

  at_input: Any
  in_attention: Any = None


# The positions of one part, and what a position scheme returns.
Positions = Array | Distances
Assigned = Positions | Parts


def in_32_bits(positions: Any) -> Any:
  """Returns positions with int64 as int32 and float64 as float32."""
  narrow = {'int64': jnp.int32, 'float64': jnp.float32}
  return jax.tree.map(
    lambda x: x.astype(narrow.get(x.dtype.name, x.dtype)), positions
  )


def take(positions: Array | Distances, index: Array) -> Array | Distances:
  """Selects positions at indices `[1 or B, N]` of each row.

  Indices outside a row are clipped to it.

  Positions are `[1 or B, L]`, `[R, 1 or B, L]` or Distances.
  """
  if isinstance(positions, Distances):
    return positions.at(index)
  index = index if positions.ndim == 2 else index[None]
  return jnp.take_along_axis(positions, index, axis=-1, mode='clip')
