"""What a model is told of its tokens: positions, segments, lengths."""

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax import positions as position_schemes


def position_index(length, segment_ids):
  """Index of each token in its segment, int32 `[1, L]` or packed `[B, L]`."""
  if segment_ids is not None:
    return position_schemes.segment_positions(segment_ids)
  return jax.lax.broadcasted_iota(jnp.int32, (1, length), 1)


def check_tokens(shape, positions, segment_ids, lengths):
  """Raises unless what is said of tokens goes with their shape.

  Args:
    shape: (B, L), of the tokens.
    positions: `[L]`, `[1 or B, L]`, or `[layers, 1 or B, L]`; or Distances.
    segment_ids: integers, `[B, L]`.
    lengths: integers, `[1 or B, 1 or L]`.

  Raises:
    errors.ConfigError: naming what does not.
  """
  batch, length = shape

  def check(name, value, rows, columns, dtype, last=2):
    if value is None:
      return
    fits = (
      hasattr(value, 'shape')
      and value.ndim >= min(last, 2)
      and (value.ndim < 2 or value.shape[-2] in rows)
      and value.shape[-1] in columns
      and value.ndim <= last
    )
    if not fits:
      got = getattr(value, 'shape', type(value).__name__)
      raise errors.ConfigError(
        f'{name}: got {got}; for {batch} rows of {length} tokens there must be '
        f'{" or ".join(map(str, sorted({*rows})))} rows of '
        f'{" or ".join(map(str, sorted({*columns})))}'
      )
    if not jnp.issubdtype(value.dtype, dtype):
      raise errors.ConfigError(
        f'{name} are {value.dtype}; they must be whole numbers'
      )

  check('segment_ids', segment_ids, (batch,), (length,), jnp.integer)
  check('lengths', lengths, (1, batch), (1, length), jnp.integer)
  if isinstance(positions, position_schemes.Distances):
    check('r of Distances', positions.r, (1, batch), (length,), jnp.integer, 3)
  elif positions is not None and positions.ndim != 1:
    check('positions', positions, (1, batch), (length,), jnp.number, 3)
  elif positions is not None and positions.shape != (length,):
    check('positions', positions, (1, batch), (length,), jnp.number)


def check_vectors(name, x):
  """Raises unless a layer's input is `[B, L, E]`."""
  if getattr(x, 'ndim', None) != 3:
    got = getattr(x, 'shape', type(x).__name__)
    raise errors.ConfigError(f'{name} must be an array [B, L, E]; got {got}')


def check_one_layer(positions):
  """Raises on positions of several layers, which one cannot choose from."""
  several = positions
  if isinstance(positions, position_schemes.Distances):
    several = positions.r
  if several.ndim > 2:
    raise errors.ConfigError(
      f'positions of {several.shape[0]} layers for one; pass positions[i] to '
      'layer i'
    )


def position_array(positions):
  """Positions as jax has them: numpy's 64 bits become 32."""
  if isinstance(positions, position_schemes.Distances):
    return positions
  if isinstance(positions, str):
    raise errors.ConfigError(
      f'positions={positions!r} is a spec; pass the positions that '
      'positions.create(spec) gives'
    )
  if isinstance(positions, position_schemes.PositionScheme):
    raise errors.ConfigError(
      f'positions={positions} is a scheme; call it, and pass what it gives'
    )
  if isinstance(positions, jax.Array):
    return positions
  try:
    return jnp.asarray(positions)
  except (TypeError, ValueError) as error:
    raise errors.ConfigError(
      f'positions must be an array of numbers: {error}'
    ) from error
