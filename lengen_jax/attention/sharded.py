"""Attention on a mesh: each device has its rows, heads and queries.

Keys and values are gathered along the sequence, so that every query finds all
of its keys where it is: positions, masks and biases are those of the queries at
hand. Left to the compiler, blocks of a sequence that is split would be fetched
one at a time, and gradients of a bias summed over all devices for every tile.
"""

import functools

import jax
import jax.numpy as jnp

from lengen_jax import partitioning
from lengen_jax import positions as position_schemes

# Logical axes of what is split, from the last on: positions may have no batch.
_AXES = {
  'q': ('batch', 'length', 'heads', None),
  'k': ('batch', None, 'heads', None),
  'v': ('batch', None, 'heads', None),
  'q_positions': ('batch', 'length'),
  'k_positions': ('batch', None),
  'q_segment_ids': ('batch', 'length'),
  'k_segment_ids': ('batch', None),
  'q_offset': ('batch',),
  'k_lengths': ('batch',),
  'logit_scale': ('batch', 'length', 'heads'),
}


def constrain(q, k, v):
  """q, k and v as the mesh is to have them, for what the compiler splits."""
  return (
    partitioning.constrain(q, *_AXES['q']),
    partitioning.constrain(k, *_AXES['k']),
    partitioning.constrain(v, *_AXES['v']),
  )


def over_mesh(attend):
  """`attend` of an implementation, by every device for its own part.

  Args:
    attend: a function as `blockwise.attend`, of arrays on one device.

  Returns:
    The same of arrays on the mesh in force, if there is one.
  """

  @functools.wraps(attend)
  def of_all(q, k, v, **named):
    if not partitioning.is_active():
      return attend(q, k, v, **named)
    names = [*_AXES, 'bias', 'content']
    named |= {'q': q, 'k': k, 'v': v}
    arrays = {name: named.pop(name) for name in names}
    arrays['q_positions'] = _indexed(arrays['q_positions'])
    if arrays['logit_scale'] is not None:
      batch_and_length = arrays['logit_scale'].shape[:2]
      arrays['logit_scale'] = arrays['logit_scale'].reshape(
        *batch_and_length, -1
      )
    split = partitioning.spec('length')[0]
    if split is None and isinstance(arrays['q_offset'], int):
      # Better known before than with the arrays.
      named['q_offset'] = arrays.pop('q_offset')
    else:
      arrays['q_offset'] = jnp.asarray(arrays['q_offset'], jnp.int32)

    def of_mine(arrays):
      if split is not None:
        first = jax.lax.axis_index(split) * arrays['q'].shape[1]
        arrays['q_offset'] += first
      return attend(**arrays, **named)

    return jax.shard_map(
      of_mine,
      in_specs=({name: _specs(name, arrays[name]) for name in arrays},),
      out_specs=partitioning.spec(*_AXES['q']),
      check_vma=False,
    )(arrays)

  return of_all


def _indexed(positions):
  """Positions that say which tokens they are of, so that some can be taken."""
  if not isinstance(positions, position_schemes.Distances):
    return positions
  if positions.index is not None:
    return positions
  return positions.at(jnp.arange(positions.r.shape[-1], dtype=jnp.int32)[None])


def _specs(name, value):
  """How an argument of attention is split, as a tree like it."""
  if value is None:
    return None
  if name in ('bias', 'content'):
    # Parameters per head go where their heads are.
    specs = [partitioning.spec(*axes) for axes in value.axes]
    return jax.tree.unflatten(jax.tree.structure(value), specs)
  if isinstance(value, position_schemes.Distances):
    return value.replace(
      r=_spec(value.r, ('batch', None)),
      index=_spec(value.index, _AXES[name]),
      start=_spec(value.start, _AXES[name]),
    )
  return _spec(value, _AXES[name])


def _spec(array, axes):
  """How an array is split; an axis of size 1 is the same for all."""
  if array is None:
    return None
  axes = axes[len(axes) - array.ndim :]
  return partitioning.spec(
    *(
      None if n == 1 else axis
      for n, axis in zip(array.shape, axes, strict=True)
    )
  )
