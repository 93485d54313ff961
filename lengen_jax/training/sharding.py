"""Devices: the mesh, and how state and batches lie on it.

A mesh has four axes, some of size 1:

  data      rows of a batch; parameters are the same everywhere.
  fsdp      rows of a batch; parameters are split too, and gathered when used.
  tensor    heads, hidden units and vocabulary.
  sequence  tokens of a row, for contexts that are too long for one device.

`RULES` says which logical axes of arrays they split; the compiler does the
rest. Programs are `jax.jit` of functions whose arguments have NamedShardings,
which is what became of pjit.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import glob
import importlib.util
import math
import os
from typing import Any

from flax import linen as nn
import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from lengen_jax import errors
from lengen_jax import partitioning
from lengen_jax.training import config as training_config

AXES = ('data', 'fsdp', 'tensor', 'sequence')
# Logical axis to the axes of the mesh that split it. Where two would use the
# same axis of the mesh in one array, the first of these rules does.
RULES = (
  ('batch', ('data', 'fsdp')),
  ('length', 'sequence'),
  ('vocab', 'tensor'),
  ('heads', 'tensor'),
  ('joined_kv', 'tensor'),
  ('mlp', 'tensor'),
  ('embed', 'fsdp'),
  ('kv', None),
  ('layers', None),
  ('relpos_buckets', None),
)
# Fields of a config that give the sizes of logical axes.
_FIELDS = {
  'embed': 'model.width',
  'heads': 'model.num_heads and model.key_heads',
  'joined_kv': 'model.num_heads',
  'mlp': 'model.mlp_width',
  'vocab': 'model.vocab_size and model.output_size',
}
# A process that says nothing for so long is taken for dead, and ends the rest.
_HEARTBEAT_SECONDS = 30


def start() -> None:
  """Gets the devices ready; call before any array is made.

  A run of several processes is joined where the environment has
  JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, and on TPU
  VMs, which know their like. On a CPU, jax gets one device per core unless
  JAX_NUM_CPU_DEVICES says how many: small models run faster as several devices
  that share a batch than as one device of several threads.

  Raises:
    errors.ConfigError: the other processes do not answer.
  """
  count = os.environ.get('JAX_NUM_CPU_DEVICES') or None
  if count is None:
    jax.config.update('jax_num_cpu_devices', len(os.sched_getaffinity(0)))
  elif not count.isdecimal() or int(count) < 1:
    raise errors.ConfigError(
      f'JAX_NUM_CPU_DEVICES={count} must be a whole number, at least 1'
    )
  known: dict[str, Any] = {}
  if 'JAX_COORDINATOR_ADDRESS' in os.environ:
    try:
      known = {
        'num_processes': int(os.environ['JAX_NUM_PROCESSES']),
        'process_id': int(os.environ['JAX_PROCESS_ID']),
      }
    except (KeyError, ValueError) as error:
      raise errors.ConfigError(
        'JAX_COORDINATOR_ADDRESS is set; JAX_NUM_PROCESSES and JAX_PROCESS_ID '
        f'must be whole numbers beside it ({error})'
      ) from None
  elif 'JAX_NUM_PROCESSES' in os.environ:
    raise errors.ConfigError(
      'JAX_NUM_PROCESSES is set without JAX_COORDINATOR_ADDRESS, the host:port '
      'of the first process'
    )
  elif not _is_tpu_vm():
    return
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  try:
    jax.distributed.initialize(
      **known, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS
    )
  except (RuntimeError, ValueError) as error:
    address = os.environ.get('JAX_COORDINATOR_ADDRESS', 'the first worker')
    raise errors.ConfigError(
      f'the processes of this run do not find each other at {address}: '
      f'{str(error).splitlines()[0]}'
    ) from None


def _is_tpu_vm():
  has_chips = glob.glob('/dev/accel*') or glob.glob('/dev/vfio/[0-9]*')
  wanted = os.environ.get('JAX_PLATFORMS', 'tpu').startswith('tpu')
  return bool(has_chips and wanted and importlib.util.find_spec('libtpu'))


@dataclasses.dataclass(frozen=True)
class Layout:
  """How arrays lie on a mesh.

  Attributes:
    mesh: with the axes AXES.
  """

  mesh: Mesh

  @classmethod
  def create(
    cls,
    sizes: training_config.MeshConfig,
    batch_size: int,
    devices: Sequence[jax.Device] | None = None,
  ) -> 'Layout':
    """Makes the mesh.

    Devices of several TPU slices are told apart: only the axis 'data' spans
    slices, whose network is the slowest.

    Args:
      sizes: a MeshConfig.
      batch_size: rows of a batch.
      devices: those of jax if None.

    Raises:
      errors.ConfigError: sizes, devices and batch do not go together.
    """
    alone = devices is None and jax.process_count() == 1
    devices = jax.devices() if devices is None else devices
    data, *others = (getattr(sizes, axis) for axis in AXES)
    fixed = math.prod(others)
    if len(devices) < fixed or (len(devices) % fixed and not alone):
      raise errors.ConfigError(
        f'{sizes}: the product of fsdp, tensor and sequence, {fixed}, does not '
        f'divide the {len(devices)} devices'
      )
    if data == -1:
      data = len(devices) // fixed
      if alone:
        data = math.gcd(data, batch_size // math.gcd(batch_size, sizes.fsdp))
    count = data * fixed
    if count > len(devices) or (count < len(devices) and not alone):
      raise errors.ConfigError(
        f'{sizes} makes {count} devices; there are {len(devices)}, so '
        'change one of these'
      )
    if batch_size % (data * sizes.fsdp):
      raise errors.ConfigError(
        f'data.batch_size={batch_size} is no multiple of the '
        f'{data * sizes.fsdp} parts that mesh.data={data} and mesh.fsdp='
        f'{sizes.fsdp} make; change one of them'
      )
    return cls(_mesh((data, *others), devices[:count]))

  @property
  def size(self) -> int:
    """Devices."""
    return self.mesh.devices.size

  @property
  def row_parts(self) -> int:
    """Into how many parts rows are split."""
    return self.mesh.shape['data'] * self.mesh.shape['fsdp']

  @property
  def whole(self) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(self.mesh, PartitionSpec())

  @property
  def batch(self) -> NamedSharding:
    """Sharding of `[B, L]`, rows and tokens."""
    return self.of('batch', 'length')

  def of(self, *names: str | None) -> NamedSharding:
    """Sharding of an array with these logical axes; see `RULES`.

    Raises:
      errors.ConfigError: a name without a rule.
    """
    return NamedSharding(self.mesh, partitioning.spec(*names, rules=RULES))

  def check(self, axes: Any, shapes: Any) -> None:
    """Raises unless the mesh divides all arrays.

    Args:
      axes: tree of tuples of logical names.
      shapes: tree like it, of arrays or their shapes.

    Raises:
      errors.ConfigError: naming array, axis and field.
    """

    def check(path, names, leaf):
      spec = self.of(*names).spec
      for name, size, over in zip(names, leaf.shape, spec, strict=True):
        parts = math.prod(self.mesh.shape[a] for a in _flat(over))
        if size % parts:
          where = '/'.join(str(entry.key) for entry in path)
          raise errors.ConfigError(
            f'mesh.{over}={parts} does not divide axis {name!r} of {where} '
            f'{leaf.shape}; change mesh.{over} or '
            f'{_FIELDS.get(name, "the encoding")}'
          )

    jax.tree_util.tree_map_with_path(
      check, axes, shapes, is_leaf=lambda node: isinstance(node, tuple)
    )

  def check_length(self, name: str, length: int) -> None:
    """Raises errors.ConfigError unless the mesh divides a row's length."""
    parts = self.mesh.shape['sequence']
    if length % parts:
      raise errors.ConfigError(
        f'mesh.sequence={parts} does not divide {name}={length}; change one of '
        'them'
      )

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """Programs traced inside are for this mesh."""
    with jax.set_mesh(self.mesh), nn.logical_axis_rules(RULES):
      yield

  def jit(
    self, function: Callable[..., Any], **options: Any
  ) -> Callable[..., Any]:
    """`jax.jit` of a function for this mesh; its calls need no `scope`."""
    jitted = jax.jit(function, **options)

    @functools.wraps(function)
    def call(*args, **kwargs):
      with self.scope():
        return jitted(*args, **kwargs)

    return call

  @property
  def host(self) -> tuple[int, int]:
    """(index, count) of this process among those that read data.

    Processes that share rows, each with a part of their tokens, read the same.
    """
    groups = self._row_groups()
    mine = groups[jax.process_index()]
    return sorted({*groups.values()}).index(mine), len({*groups.values()})

  def place(self, rows: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Puts this host's rows of a batch on the mesh.

    Args:
      rows: dict of arrays `[rows, L]`; see `host`.
    """
    mine = self._row_groups()[jax.process_index()]
    _, hosts = self.host

    def put(array):
      size = len(array) // len(mine)
      shape = (len(array) * hosts, *array.shape[1:])

      def part(index):
        first, end, _ = index[0].indices(shape[0])
        start = mine.index(first // size) * size
        return array[(slice(start, start + end - first), *index[1:])]

      return jax.make_array_from_callback(shape, self.batch, part)

    return jax.tree.map(put, rows)

  def _row_groups(self):
    """Of each process, which parts of the rows its devices have, a tuple."""
    groups = {}
    by_part = self.mesh.devices.reshape(self.row_parts, -1)
    for part, devices in enumerate(by_part):
      for device in devices:
        groups.setdefault(device.process_index, set()).add(part)
    groups = {process: tuple(sorted(of)) for process, of in groups.items()}
    distinct = {*groups.values()}
    sizes = [len(parts) for parts in distinct]
    if sum(sizes) != self.row_parts or len({*sizes}) > 1:
      raise errors.ConfigError(
        'with this mesh processes share some of their rows and not others; '
        'make mesh.tensor * mesh.sequence divide the devices of a process, or '
        'be a multiple of them'
      )
    return groups


def _flat(axes):
  """Axes of a PartitionSpec's entry, as a tuple."""
  return () if axes is None else (axes,) if isinstance(axes, str) else axes


def _mesh(shape, devices):
  """A mesh of devices near each other; slices along the axis 'data'."""
  types = (AxisType.Auto,) * len(AXES)
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  if slices == 1:
    return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)
  data, *others = shape
  if data % slices:
    raise errors.ConfigError(
      f'mesh.data={data} is no multiple of the {slices} slices, which only the '
      'axis data may span'
    )
  grid = mesh_utils.create_hybrid_device_mesh(
    (data // slices, *others), (slices, 1, 1, 1), devices
  )
  return Mesh(np.asarray(grid), AXES, axis_types=types)
