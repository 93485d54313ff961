"""Positions, segments and lengths of a batch of tokens, in one struct.

Shapes: B batch, L length, N selected tokens.
"""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.positions import base, kinds
from lengen_jax.types import Array


class Tokens(struct.PyTreeNode):
  """Positions, segments and lengths of the tokens of a batch.

  Attributes:
    positions: int32 or float32, `[1 or B, L]`, `[layers, 1 or B, L]`,
      Distances or PerHead. In decoding, the positions of all slots of the
      cache. None for the standard positions of rows with one segment each.
    index: int32 `[1 or B, L]`, index of each token in its segment. In decoding,
      its slot in the cache.
    segment_ids: int32 `[B, L]`; None if each row is one segment.
    lengths: int32 `[1 or B, 1 or L]`, length of each token's segment, or None.
      In decoding, the planned length.
    contiguous: whether differences of positions equal differences of indices
      within each segment.
    input_positions: positions for the encoding at the input of the model, if
      they differ; `[1 or B, L]`, or several rows `[R, 1 or B, L]`.
  """

  positions: Any
  index: Any
  segment_ids: Any = None
  lengths: Any = None
  contiguous: bool = struct.field(pytree_node=False, default=False)
  input_positions: Any = None

  @classmethod
  def create(
    cls,
    shape: tuple[int, ...],
    positions: 'kinds.Assigned | Tokens | None' = None,
    *,
    segment_ids: Array | None = None,
    lengths: Array | None = None,
    contiguous: bool = False,
  ) -> 'Tokens':
    """Checks the arguments of a model or layer and combines them.

    Args:
      shape: (B, L).
      positions: output of a position scheme, `[L]`, `[1 or B, L]`,
        `[layers, 1 or B, L]`, Distances or Parts; or per head, float32
        `[B, L, H]` or PerHead; None for the standard positions. Tokens are
        returned unchanged.
      segment_ids: int32 `[B, L]` of packed rows.
      lengths: int32 `[1 or B, 1 or L]`, length of each token's segment.
      contiguous: see Tokens. Standard positions are always contiguous.

    Raises:
      errors.ConfigError: an argument does not fit the shape.
    """
    if isinstance(positions, Tokens):
      if segment_ids is not None or lengths is not None:
        raise errors.ConfigError(
          'segment_ids and lengths are part of Tokens; leave them out'
        )
      return positions
    input_positions = None
    if isinstance(positions, kinds.Parts):
      input_positions = position_array(positions.at_input)
      check_tokens(shape, input_positions, None, None)
      if input_positions.ndim == 3 and len(input_positions) == 1:
        input_positions = input_positions[0]
      positions = positions.in_attention
    if positions is not None:
      positions = _per_head(position_array(positions), shape)
    check_tokens(shape, positions, segment_ids, lengths)
    index = position_index(shape[1], segment_ids)
    contiguous |= positions is None
    if positions is None and segment_ids is not None:
      positions = index
    return cls(
      positions, index, segment_ids, lengths, contiguous, input_positions
    )

  def with_positions(self) -> 'Tokens':
    """Returns the tokens with the standard positions in place of None."""
    if self.positions is not None:
      return self
    return self.replace(positions=self.index)

  def with_lengths(self) -> 'Tokens':
    """Returns the tokens with the lengths of their segments in place of None.

    Without segment ids, each row is one segment.
    """
    if self.lengths is not None:
      return self
    return self.replace(lengths=self.segment_ends() + 1)

  @property
  def per_layer(self) -> bool:
    """Whether positions differ per layer."""
    leaves = jax.tree.leaves(self.positions)
    if not leaves or isinstance(self.positions, kinds.PerHead):
      return False
    return leaves[0].ndim > 2

  def layer(self, i: int) -> 'Tokens':
    """Returns the tokens with the positions of layer i."""
    if not self.per_layer:
      return self
    positions = jax.tree.map(
      lambda leaf: leaf[i] if leaf.ndim > 2 else leaf, self.positions
    )
    return self.replace(positions=positions)

  def layers(self, period: int) -> tuple[kinds.Positions, ...]:
    """Returns positions of layers j, j + period, ..., for each j below period.

    If positions differ per layer, each array has a leading axis of these
    layers.
    """
    if not self.per_layer:
      return (self.positions,) * period
    count = jax.tree.leaves(self.positions)[0].shape[0]

    def stacked(leaf: Array) -> jax.Array:
      # Index and start of Distances are equal in all layers.
      return jnp.broadcast_to(leaf, (count, *leaf.shape[-2:]))

    every = jax.tree.map(stacked, self.positions)
    return tuple(
      jax.tree.map(lambda leaf, j=j: leaf[j::period], every)
      for j in range(period)
    )

  def selected(self) -> kinds.Positions:
    """Returns the positions of the tokens at `index`, out of all slots."""
    return kinds.take(self.positions, self.index)

  def at_input(self, decoding: bool) -> Any:
    """Returns the positions for the encoding at the input of the model.

    If `decoding`, they are selected out of all slots.
    """
    positions = self.input_positions
    if positions is None:
      positions = self.layer(0).positions
    return kinds.take(positions, self.index) if decoding else positions

  def segment_ends(self) -> jax.Array:
    """Returns the last index of each token's segment, int32 `[1 or B, L]`."""
    ends = self.lengths
    if ends is None and self.segment_ids is None:
      ends = jnp.full((1, 1), self.index.shape[1])
    elif ends is None:
      ends = base.segment_lengths(self.segment_ids)
    shape = jnp.broadcast_shapes(ends.shape, self.index.shape)
    return jnp.broadcast_to(ends - 1, shape)


def position_index(length: int, segment_ids: Array | None) -> jax.Array:
  """Returns each token's index in its segment, int32 `[1, L]` or `[B, L]`."""
  if segment_ids is not None:
    return base.segment_positions(segment_ids)
  return jax.lax.broadcasted_iota(jnp.int32, (1, length), 1)


def check_tokens(
  shape: tuple[int, ...],
  positions: kinds.Positions | kinds.PerHead | None,
  segment_ids: Array | None,
  lengths: Array | None,
) -> None:
  """Checks that arguments of `Tokens.create` fit the shape of the tokens.

  Raises:
    errors.ConfigError: a shape or dtype does not fit.
  """
  batch, length = shape
  either, all_tokens = {1, batch}, {length}
  name, dtype = 'positions', jnp.number  # type: str, Any
  if isinstance(positions, kinds.Distances):
    name, dtype, positions = 'r of Distances', jnp.integer, positions.r
  elif isinstance(positions, kinds.PerHead):
    if positions.shape[:2] not in ((1, length), shape):
      raise errors.ConfigError(
        f'positions per head are {positions.shape}; {batch} rows of {length} '
        f'tokens require ({batch}, {length}, heads)'
      )
    positions = None
  elif positions is not None and positions.shape == (length,):
    positions = None
  checks: tuple[tuple[str, Any, set[int], set[int], Any, int], ...] = (
    ('segment_ids', segment_ids, {batch}, all_tokens, jnp.integer, 2),
    ('lengths', lengths, either, {1, length}, jnp.integer, 2),
    (name, positions, either, all_tokens, dtype, 3),
  )
  for name, value, rows, columns, dtype, max_ndim in checks:
    if value is None:
      continue
    got: Any = getattr(value, 'shape', type(value).__name__)
    fits = isinstance(got, tuple) and 2 <= len(got) <= max_ndim
    if not fits or got[-2] not in rows or got[-1] not in columns:
      raise errors.ConfigError(
        f'{name}: got {got}; {batch} rows of {length} tokens require '
        f'{" or ".join(map(str, sorted(rows)))} rows of '
        f'{" or ".join(map(str, sorted(columns)))}'
      )
    if not jnp.issubdtype(value.dtype, dtype):
      what = 'numbers' if dtype is jnp.number else 'integers'
      raise errors.ConfigError(f'{name} are {value.dtype}; they must be {what}')


def _per_head(positions: Any, shape: tuple[int, ...]) -> Any:
  """Returns positions, as PerHead if they are float32 `[B, L, H]`."""
  if isinstance(positions, kinds.Distances | kinds.PerHead):
    return positions
  batch, length = shape
  by_layer = positions.shape[-2:] in ((1, length), shape)
  is_per_head = positions.ndim == 3 and positions.shape[:2] == (batch, length)
  if is_per_head and positions.dtype == jnp.float32 and not by_layer:
    return kinds.PerHead(positions)
  return positions


def check_one_layer(positions: Any) -> None:
  """Raises errors.ConfigError on positions of several layers."""
  if positions is None or isinstance(positions, kinds.PerHead):
    return
  if len(positions.shape) > 2:
    raise errors.ConfigError(
      f'got positions of {positions.shape[0]} layers for one layer; pass '
      'positions[i] to layer i'
    )


def position_array(positions: Any) -> Any:
  """Returns positions as a jax array in 32 bits.

  Distances and PerHead are returned unchanged.

  Raises:
    errors.ConfigError: not an array of numbers, or a scheme or its spec.
  """
  if isinstance(positions, kinds.Distances | kinds.PerHead):
    return positions
  if isinstance(positions, str | base.PositionScheme):
    raise errors.ConfigError(
      f'positions={positions!r} is a scheme or its spec; pass the result of '
      'calling positions.create(spec)'
    )
  try:
    return kinds.in_32_bits(jnp.asarray(positions))
  except (TypeError, ValueError) as error:
    raise errors.ConfigError(
      f'positions must be an array of numbers: {error}'
    ) from error
