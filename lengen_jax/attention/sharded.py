"""Attention on a mesh: each device computes its rows, heads and queries.

Keys and values are gathered along the sequence, so that every query has all of
its keys on its own device. Left to the compiler, blocks of a split sequence
would be fetched one at a time, and gradients of a bias summed over all devices
for every tile.
"""

from collections.abc import Callable
import functools

import jax
from jax import Array

from lengen_jax import partitioning
from lengen_jax.attention import call as call_lib
from lengen_jax.attention.call import AttentionCall

Attend = Callable[[AttentionCall], Array]


def constrain(call: AttentionCall) -> AttentionCall:
  """Returns the call with sharding constraints on q, k and v."""
  return call.replace(
    q=partitioning.constrain(call.q, *call_lib.Q_AXES),
    k=partitioning.constrain(call.k, *call_lib.K_AXES),
    v=partitioning.constrain(call.v, *call_lib.K_AXES),
  )


def over_mesh(attend: Attend) -> Attend:
  """Returns `attend` mapped over the devices of the mesh, if one is active.

  Args:
    attend: an implementation for arrays on one device.
  """

  @functools.wraps(attend)
  def of_all(call: AttentionCall) -> Array:
    if not partitioning.is_active():
      return attend(call)
    call = call.replace(
      queries=call.queries.indexed(), keys=call.keys.indexed()
    )
    if partitioning.spec('length')[0] is not None:
      # Each device has other queries first.
      call = call.replace(q_offset=None)
    specs = call.specs()
    return jax.shard_map(
      attend, in_specs=(specs,), out_specs=specs.q, check_vma=False
    )(call)

  return of_all
