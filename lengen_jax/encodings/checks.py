"""Which positions and schemes an encoding can take; what to say if not."""

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax import specs
from lengen_jax.encodings import base


def kind(encoding: base.Encoding) -> str:
  """What an encoding is: 'rotation', 'embedding', 'content' or 'bias'."""
  if type(encoding).rotate is not base.Encoding.rotate:
    return 'rotation'
  if encoding.embeds:
    return 'embedding'
  return 'content' if encoding.needs_content else 'bias'


def check_positions(
  encoding: base.Encoding,
  positions: position_schemes.Positions | None,
  length: int | None = None,
) -> None:
  """Raises on positions an encoding cannot take, as far as the host knows.

  Args:
    encoding: an Encoding.
    positions: an array, or None for the standard positions 0 .. length - 1.
    length: used where `positions` is None.

  Raises:
    errors.LengthError: a position is not below `encoding.max_position`.
    errors.CombinationError: fractional positions where only whole ones serve,
      positions that are neither int32 nor float32, or distances of pairs
      where positions of tokens are needed.
  """
  name = specs.name(encoding)
  if isinstance(positions, position_schemes.Distances):
    if not encoding.takes_distances:
      raise errors.CombinationError(_no_distances(name))
    return
  if positions is not None:
    if positions.dtype not in (jnp.int32, jnp.float32, jnp.int64, jnp.float64):
      raise errors.CombinationError(
        f'positions are {positions.dtype}; they must be int32 or float32, '
        'whatever the dtype of the model, because 16-bit floats cannot hold '
        'them'
      )
    if not encoding.fractional_positions and not jnp.issubdtype(
      positions.dtype, jnp.integer
    ):
      raise errors.CombinationError(
        f'{name} takes whole positions only, got {positions.dtype}; use a '
        'position scheme with integer values'
      )
  limit = encoding.max_position
  if limit is None:
    return
  if positions is None:
    highest = length - 1
  elif isinstance(positions, jax.core.Tracer):
    return
  else:
    # In numpy: jit would trace it, even for an array that is known.
    highest = int(np.asarray(positions).max(initial=-1))
    lowest = int(np.asarray(positions).min(initial=0))
    if lowest < 0:
      raise errors.LengthError(_over(encoding, lowest))
  if highest >= limit:
    raise errors.LengthError(_over(encoding, highest))


def check_scheme(
  encoding: base.Encoding, scheme: position_schemes.PositionScheme
) -> None:
  """Raises where a position scheme and an encoding do not go together.

  Raises:
    errors.CombinationError: naming both and the reason.
  """
  name = specs.name(encoding)
  if scheme.fractional and not encoding.fractional_positions:
    raise errors.CombinationError(
      f'{scheme} gives fractional positions and {name} takes whole ones only'
    )
  if scheme.gives_distances and not encoding.takes_distances:
    raise errors.CombinationError(f'{scheme}: {_no_distances(name)}')
  if scheme.interpolates and encoding.interpolates:
    raise errors.CombinationError(
      f'{scheme} interpolates positions and so does {name}; set it in one '
      'of them'
    )
  limit, highest = encoding.max_position, scheme.max_position
  if limit is not None and highest is not None and highest > limit:
    raise errors.CombinationError(
      f'{scheme} draws positions below {highest} and {name} has max_position='
      f'{limit}; give {name} max_position={highest} or more'
    )


def check_extent(
  encoding: base.Encoding,
  scheme: position_schemes.PositionScheme,
  length: int,
  train: bool,
) -> None:
  """Raises where a scheme's positions of a segment exceed an encoding's table.

  Args:
    encoding: an Encoding.
    scheme: a PositionScheme.
    length: of the longest segment.
    train: whether this is training.

  Raises:
    errors.LengthError: naming the position and the limit.
  """
  limit, extent = encoding.max_position, scheme.extent(length, train)
  if limit is not None and extent > limit:
    raise errors.LengthError(_over(encoding, extent - 1))


def _no_distances(name):
  return (
    f'{name} needs a position for each token and cannot go by distances of '
    "pairs; use mode='positions'"
  )


def _over(encoding, position):
  name = specs.name(encoding)
  mend = 'positions begin at 0'
  if position >= 0:
    mend = (
      f'give it max_position={position + 1} or more, or use shorter sequences'
    )
  return (
    f'{name}(max_position={encoding.max_position}) has no entry for position '
    f'{position}; {mend}'
  )
