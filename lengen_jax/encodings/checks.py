"""Checks that an encoding supports given positions, or a position scheme."""

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors, specs
from lengen_jax.encodings.base import (
  check_distances,
  Encoding,
  no_distances,
)
from lengen_jax.positions import (
  Distances,
  PerHead,
  Positions,
  PositionScheme,
)
from lengen_jax.positions.contextual import Contextual


def kind(encoding: Encoding) -> str:
  """Returns 'rotation', 'bands', 'embedding', 'content' or 'bias'."""
  if encoding.needs_content:
    return 'content'
  if type(encoding).bands is not Encoding.bands:
    return 'bands'
  if type(encoding).rotate is not Encoding.rotate:
    return 'rotation'
  return 'embedding' if encoding.embeds else 'bias'


def check_positions(
  encoding: Encoding,
  positions: Positions | PerHead | None,
  length: int | None = None,
) -> None:
  """Checks that an encoding supports positions; None is 0 .. length - 1.

  Values of traced arrays are not checked.

  Raises:
    errors.LengthError: a position is negative or not below
      `encoding.max_position`, if the encoding has this limit.
    errors.CombinationError: the dtype of the positions is not an integer or
      float of 32 or 64 bits, or the encoding does not support positions per
      head, fractional positions, Distances or the number of rows of positions.
  """
  name = specs.name(encoding)
  if isinstance(positions, PerHead):
    if encoding.embeds or not encoding.fractional_positions:
      raise errors.CombinationError(
        f'{name} does not support positions per head; use one that takes '
        'fractional positions in attention'
      )
    return
  if isinstance(positions, Distances):
    check_distances(encoding, positions)
    return
  if positions is not None:
    dtype = positions.dtype
    if dtype not in (jnp.int32, jnp.float32, jnp.int64, jnp.float64):
      reason = '; convert them, as by positions.astype(jnp.int32)'
      if jnp.issubdtype(dtype, jnp.floating):
        reason = ', because 16-bit floats cannot represent them'
      raise errors.CombinationError(
        f'positions are {dtype}; they must be int32 or float32{reason}'
      )
    if encoding.embeds and positions.ndim == 3:
      _check_rows(encoding, len(positions))
    whole = jnp.issubdtype(dtype, jnp.integer)
    if not whole and not encoding.fractional_positions:
      raise errors.CombinationError(
        f'{name} takes whole positions only, got {dtype}; use a position '
        'scheme with integer values'
      )
  if encoding.max_position is None or isinstance(positions, jax.core.Tracer):
    return
  if positions is None:
    positions = np.arange(length)
  # In numpy: inside jit, jnp would trace even concrete arrays.
  positions = np.asarray(positions)
  _check_range(encoding, int(positions.min(initial=0)))
  _check_range(encoding, int(positions.max(initial=0)))


def check_scheme(encoding: Encoding, scheme: PositionScheme) -> None:
  """Checks that an encoding supports a position scheme, or its part of it.

  Raises:
    errors.CombinationError: naming both and the reason.
  """
  name, scheme = specs.name(encoding), _part(encoding, scheme)
  if encoding.embeds and not scheme.needs_roles:
    _check_rows(encoding, 1)
  if scheme.fractional and not encoding.fractional_positions:
    raise errors.CombinationError(
      f'{scheme} has fractional positions and {name} requires integers'
    )
  if scheme.gives_distances and not encoding.takes_distances:
    raise errors.CombinationError(f'{scheme}: {no_distances(encoding)}')
  if scheme.interpolates and encoding.interpolates:
    raise errors.CombinationError(
      f'{scheme} interpolates positions and so does {name}; configure it in '
      'one of them'
    )
  limit, highest = encoding.max_position, scheme.max_position
  if limit is not None and highest is not None and highest > limit:
    raise errors.CombinationError(
      f'{scheme} draws positions below {highest} and {name} has max_position='
      f'{limit}; give {name} max_position={highest} or more'
    )


def check_contextual(encoding: Encoding, scheme: Contextual) -> None:
  """Checks that an encoding supports a contextual position scheme.

  Raises:
    errors.CombinationError: naming both and the reason.
  """
  if scheme.is_none:
    return
  name, reason = specs.name(encoding), None
  if encoding.embeds:
    reason = 'acts at the input of the model, before layers compute positions'
  elif not encoding.fractional_positions:
    reason = 'takes whole positions only'
  elif not encoding.tileable:
    reason = 'depends on the number of keys'
  if reason:
    raise errors.CombinationError(
      f'{name} {reason} and does not support {specs.describe(scheme)}; use '
      "another encoding or contextual_positions='none'"
    )


def check_width(encoding: Encoding, user: str) -> None:
  """Checks that an encoding keeps the width of queries and keys.

  Args:
    user: what requires it, for the error.

  Raises:
    errors.CombinationError: naming the encoding, the user and alternatives.
  """
  if encoding.widens:
    raise errors.CombinationError(
      f'{specs.describe(encoding)} makes queries and keys wider than head_dim='
      f'{encoding.head_dim}, which {user} does not support; use rope, or '
      'attention.with_encoding'
    )


def check_extent(
  encoding: Encoding, scheme: PositionScheme, length: int, train: bool
) -> None:
  """Checks that positions of segments of `length` tokens have table entries.

  Raises:
    errors.LengthError: naming the position and the limit.
  """
  extent = _part(encoding, scheme).extent(length, train)
  _check_range(encoding, max(0, extent - 1))


def check_roles(encoding: Encoding, scheme: PositionScheme, rows: int) -> None:
  """Checks that an encoding supports a scheme for `rows` rows of roles.

  Raises:
    errors.CombinationError: naming both and the reason.
  """
  scheme = _part(encoding, scheme)
  if not scheme.needs_roles:
    return
  if encoding.embeds:
    _check_rows(encoding, rows)
  elif rows > 1 and specs.name(encoding) != 'nope':
    raise errors.CombinationError(
      f'{scheme} has {rows} rows of positions and {specs.name(encoding)}, as '
      'all encodings in attention, takes one; write its own scheme as a second '
      f'part: {scheme} + standard'
    )


def _part(encoding: Encoding, scheme: PositionScheme) -> PositionScheme:
  """Returns the part of a scheme whose positions an encoding gets."""
  return scheme.at_input if encoding.embeds else scheme.in_attention


def _check_rows(encoding: Encoding, rows: int) -> None:
  takes = encoding.position_rows
  if takes is not None and takes != rows:
    raise errors.CombinationError(
      f'{specs.describe(encoding)} adds {takes} rows of positions and gets '
      f'{rows}; give it rows={rows}, or use sinusoidal'
    )


def _check_range(encoding: Encoding, position: int) -> None:
  limit = encoding.max_position
  if limit is None or 0 <= position < limit:
    return
  fix = f'give it max_position={position + 1} or more, or use shorter sequences'
  if position < 0:
    fix = 'positions begin at 0'
  raise errors.LengthError(
    f'{specs.name(encoding)}(max_position={limit}) has no entry for position '
    f'{position}; {fix}'
  )
