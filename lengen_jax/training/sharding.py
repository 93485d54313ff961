"""Devices: the mesh, and how state and batches lie on it."""

import math
import os

import jax
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec


def use_all_cores():
  """Gives jax one CPU device per core; call before any array is made.

  Small models run faster as several devices that share a batch than as one
  device of several threads.
  """
  jax.config.update('jax_num_cpu_devices', len(os.sched_getaffinity(0)))


def make_mesh(batch_size):
  """A mesh of as many devices as divide the batch, along axis 'data'."""
  count = math.gcd(jax.device_count(), batch_size)
  return jax.make_mesh(
    (count,),
    ('data',),
    axis_types=(AxisType.Auto,),
    devices=jax.devices()[:count],
  )


def replicated(mesh):
  """The same on every device."""
  return NamedSharding(mesh, PartitionSpec())


def by_batch(mesh):
  """Split along the first axis."""
  return NamedSharding(mesh, PartitionSpec('data'))


def place(mesh, rows):
  """Puts this host's rows of a batch, a tree of arrays, on the mesh."""
  split = by_batch(mesh)
  return jax.tree.map(
    lambda array: jax.make_array_from_process_local_data(split, array), rows
  )


def host():
  """(index, count) of the hosts, for data."""
  return jax.process_index(), jax.process_count()
