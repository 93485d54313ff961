"""What the modules for T5X are given: specs and positions, checked."""

import jax
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax.interop.t5x import params
from lengen_jax.models import tokens


def additive(spec, num_heads, head_dim=64, make_param=params.param, **fields):
  """The encoding of a spec, which adds a bias or nothing.

  Args:
    spec: its spec.
    num_heads: H.
    head_dim: D; where it is not known any will do, for no bias reads it.
    make_param: creates its parameters.
    **fields: of the encoding, or of any module.

  Raises:
    errors.SpecError: no such encoding.
    errors.CombinationError: it adds no bias, but does something else.
  """
  encoding = encodings.create(
    spec,
    num_heads=num_heads,
    head_dim=head_dim,
    make_param=make_param,
    **fields,
  )
  instead = {
    'rotation': 'turns queries and keys: MultiHeadDotProductAttention(rotary='
    f'{spec!r}) does that',
    'embedding': 'acts at the input of a model: add its embed(x, positions) to '
    'the embeddings there',
    'content': 'goes by the contents of queries and keys, which T5X shows to '
    'no bias: lengen_jax.models.layers.Attention takes it',
  }.get(encodings.kind(encoding))
  if instead:
    raise errors.CombinationError(f'{spec} is no additive bias; it {instead}')
  return encoding


def positions_of(positions, batch, length, *users, beams=False):
  """Positions of tokens, `[1 or B, length]`, or Distances.

  Args:
    positions: what a module was given.
    batch: rows, B; None for as many as there are.
    length: of a row.
    *users: the encodings that read them.
    beams: each row stands for as many of the batch, side by side.

  Raises:
    errors.ConfigError: positions of other rows or of another length.
    errors.LengthError: positions beyond an encoding's table.
    errors.CombinationError: positions that an encoding cannot take.
  """
  if positions is None:
    return jnp.arange(length, dtype=jnp.int32)[None]
  positions = tokens.position_array(positions)
  if not isinstance(positions, position_schemes.Distances):
    positions = jnp.atleast_2d(positions)
  rows, *inner, _ = shape(positions)
  if inner:
    raise errors.ConfigError(
      f'positions have shape {shape(positions)}, some for each layer; give '
      'each layer its own, [1 or B, length]'
    )
  if beams and rows and batch % rows == 0:
    positions = jax.tree.map(
      lambda x: jnp.repeat(x, batch // rows, axis=0), positions
    )
    rows = batch
  tokens.check_tokens((batch or rows, length), positions, None, None)
  for encoding in users:
    encodings.check_positions(encoding, positions)
  return positions


def shape(positions):
  """Shape of positions or Distances."""
  is_distances = isinstance(positions, position_schemes.Distances)
  return positions.r.shape if is_distances else positions.shape
