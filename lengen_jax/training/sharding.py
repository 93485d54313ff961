"""The device mesh and the sharding of state and batches.

A mesh has four axes, each possibly of size 1:

  data      splits the rows of a batch; parameters are replicated.
  fsdp      splits rows, and parameters, which are gathered when used.
  tensor    splits heads, hidden units and vocabulary.
  sequence  splits the tokens of a row, for contexts beyond one device.

`RULES` maps the logical axes of arrays to them. Programs are `jax.jit` of
functions whose arguments have NamedShardings; jax.jit has replaced pjit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import glob
import importlib.util
import math
import os
import threading
from typing import Any

from flax import linen as nn
import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from lengen_jax import errors, partitioning
from lengen_jax.training import config as training_config

AXES = ('data', 'fsdp', 'tensor', 'sequence')
# Logical axis to the mesh axes that split it. If two logical axes of an array
# map to the same mesh axis, the earlier rule applies.
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
# Config fields that set the size of a logical axis.
_FIELDS = {
  'embed': 'model.width',
  'heads': 'model.num_heads and model.key_heads',
  'joined_kv': 'model.num_heads',
  'mlp': 'model.mlp_width',
  'vocab': 'model.vocab_size and model.output_size',
}
# Without a heartbeat for this time, a process counts as dead and the run ends.
_HEARTBEAT_SECONDS = 30
# How long processes wait for others at the start, and when they say so.
_JOIN_SECONDS = 6 * 3600
_PATIENCE_SECONDS = 60


def start() -> None:
  """Initialises the devices; call before creating any array.

  Joins a run of several processes if the environment sets
  JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. TPU VMs
  discover their peers. CPUs get one device per core unless JAX_NUM_CPU_DEVICES
  is set: small models run faster on several devices that share a batch than on
  one device with several threads.

  Other processes may copy data before they join. jax aborts this one if they
  do not join within _JOIN_SECONDS.

  Raises:
    errors.ConfigError: a variable is invalid, or no processes can be found.
  """
  count = os.environ.get('JAX_NUM_CPU_DEVICES') or None
  if count is None:
    jax.config.update('jax_num_cpu_devices', _cores())
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
  address = os.environ.get('JAX_COORDINATOR_ADDRESS', 'the first worker')
  waiting = f'waiting for the other processes of this run at {address}'
  reminder = threading.Timer(
    _PATIENCE_SECONDS, print, [waiting], {'flush': True}
  )
  reminder.daemon = True
  reminder.start()
  try:
    jax.distributed.initialize(
      **known,
      initialization_timeout=_JOIN_SECONDS,
      heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
    )
  except (RuntimeError, ValueError) as error:
    raise errors.ConfigError(
      f'the processes of this run do not find each other at {address}: '
      f'{str(error).splitlines()[0]}'
    ) from None
  finally:
    reminder.cancel()


def _cores() -> int:
  """Returns the number of cores that this process may use."""
  try:
    return len(os.sched_getaffinity(0))
  except AttributeError:  # macOS and Windows.
    return os.cpu_count() or 1


def _is_tpu_vm() -> bool:
  has_chips = glob.glob('/dev/accel*') or glob.glob('/dev/vfio/[0-9]*')
  wanted = os.environ.get('JAX_PLATFORMS', 'tpu').startswith('tpu')
  return bool(has_chips and wanted and importlib.util.find_spec('libtpu'))


@dataclasses.dataclass(frozen=True)
class Layout:
  """Sharding of arrays on a mesh.

  Attributes:
    mesh: mesh with the axes AXES.
  """

  mesh: Mesh

  @classmethod
  def create(
    cls,
    sizes: training_config.MeshConfig,
    batch_size: int,
    devices: Sequence[jax.Device] | None = None,
  ) -> 'Layout':
    """Creates the mesh.

    Only the axis 'data' spans several TPU slices, whose network is slow.
    Without `devices`, the mesh has all of them.

    Raises:
      errors.ConfigError: sizes, devices and batch size are incompatible.
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
        f'{sizes} requires {count} devices; there are {len(devices)}. '
        'Change one of these'
      )
    if batch_size % (data * sizes.fsdp):
      raise errors.ConfigError(
        f'data.batch_size={batch_size} is not a multiple of the '
        f'{data * sizes.fsdp} parts that mesh.data={data} and mesh.fsdp='
        f'{sizes.fsdp} make; change one of them'
      )
    shape = (data, *others)
    if count == len(devices):
      grid = _grid(shape, devices)
    else:
      # Some of the devices may not be a cuboid of their network.
      grid = np.asarray(devices[:count]).reshape(shape)
    return cls(Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES)))

  @classmethod
  def of_rows(cls) -> 'Layout':
    """Creates a layout that splits rows over all devices."""
    return cls.create(training_config.MeshConfig(), jax.device_count())

  @property
  def size(self) -> int:
    """Number of devices."""
    return self.mesh.devices.size

  @property
  def row_parts(self) -> int:
    """Number of parts that rows are split into."""
    return self.mesh.shape['data'] * self.mesh.shape['fsdp']

  @property
  def whole(self) -> NamedSharding:
    """Sharding of an array that every device has a copy of."""
    return NamedSharding(self.mesh, PartitionSpec())

  @property
  def batch(self) -> NamedSharding:
    """Sharding of a batch `[B, L]`."""
    return self.of('batch', 'length')

  def of(self, *names: str | None) -> NamedSharding:
    """Returns the sharding for logical axes; see `RULES`.

    Raises:
      errors.ConfigError: a name has no rule.
    """
    return NamedSharding(self.mesh, partitioning.spec(*names, rules=RULES))

  def check(self, axes: Any, shapes: Any) -> None:
    """Checks that the mesh divides a tree of arrays or their shapes.

    `axes` is a tree of tuples of logical axis names.

    Raises:
      errors.ConfigError: an axis of an array is not divisible.
    """

    def check(path: Any, names: tuple[str, ...], leaf: Any) -> None:
      spec = self.of(*names).spec
      for name, size, over in zip(names, leaf.shape, spec, strict=True):
        axes = () if over is None else over
        axes = (axes,) if isinstance(axes, str) else axes
        parts = math.prod(self.mesh.shape[axis] for axis in axes)
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
    """Raises errors.ConfigError if the mesh does not divide a row length."""
    parts = self.mesh.shape['sequence']
    if length % parts:
      raise errors.ConfigError(
        f'mesh.sequence={parts} does not divide {name}={length}; change one of '
        'them'
      )

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """Context in which programs are traced for this mesh."""
    with jax.set_mesh(self.mesh), nn.logical_axis_rules(RULES):
      yield

  def jit(
    self, function: Callable[..., Any], **options: Any
  ) -> Callable[..., Any]:
    """Returns `jax.jit` of a function; its calls enter `scope`."""
    jitted = jax.jit(function, **options)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
      with self.scope():
        return jitted(*args, **kwargs)

    return call

  @property
  def host(self) -> tuple[int, int]:
    """(index, count) of the group of processes that share rows.

    Processes of a group hold different tokens of the same rows. They read the
    same data and have the same index. `count` is the number of groups.

    Raises:
      errors.ConfigError: processes share only some of their rows.
    """
    groups = self._row_groups()
    mine = groups[jax.process_index()]
    return sorted({*groups.values()}).index(mine), len({*groups.values()})

  def place(self, rows: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Returns a batch on the mesh from the rows `[rows, L]` of this process."""
    mine = self._row_groups()[jax.process_index()]
    _, hosts = self.host

    def put(array: np.ndarray) -> jax.Array:
      size = len(array) // len(mine)
      shape = (len(array) * hosts, *array.shape[1:])

      def part(index: tuple[slice, ...]) -> np.ndarray:
        first, end, _ = index[0].indices(shape[0])
        start = mine.index(first // size) * size
        return array[(slice(start, start + end - first), *index[1:])]

      return jax.make_array_from_callback(shape, self.batch, part)

    return jax.tree.map(put, rows)

  def _row_groups(self) -> dict[int, tuple[int, ...]]:
    """Returns {process: parts of the rows on its devices}."""
    parts_of: dict[int, set[int]] = {}
    by_part = self.mesh.devices.reshape(self.row_parts, -1)
    for part, devices in enumerate(by_part):
      for device in devices:
        parts_of.setdefault(device.process_index, set()).add(part)
    groups = {process: tuple(sorted(of)) for process, of in parts_of.items()}
    distinct = {*groups.values()}
    sizes = [len(parts) for parts in distinct]
    if sum(sizes) != self.row_parts or len({*sizes}) > 1:
      raise errors.ConfigError(
        'processes share only some of their rows on this mesh; make '
        'mesh.tensor * mesh.sequence divide the number of devices of a '
        'process, or be a multiple of it'
      )
    return groups


def _grid(shape: tuple[int, ...], devices: Sequence[jax.Device]) -> np.ndarray:
  """Orders all devices so that neighbours in the mesh are neighbours.

  Slices are along the axis 'data'. An axis of the mesh may be a part of an axis
  of the network: two of the four chips in a row, for example.
  """
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  if slices == 1:
    return mesh_utils.create_device_mesh(
      shape, devices, allow_split_physical_axes=True
    )
  data, *others = shape
  if data % slices:
    raise errors.ConfigError(
      f'mesh.data={data} is not a multiple of {slices} slices, and only the '
      'axis data may span slices'
    )
  return mesh_utils.create_hybrid_device_mesh(
    (data // slices, *others),
    (slices, 1, 1, 1),
    devices,
    allow_split_physical_axes=True,
  )
