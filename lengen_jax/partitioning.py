"""What models tell the compiler about how their arrays lie on a mesh.

Arrays are described by logical axis names, as parameters are. What a name
stands for is said once, outside, by flax's `nn.logical_axis_rules`, and the
mesh by `jax.set_mesh`; `training.sharding` does both. Without them, or inside
`jax.shard_map`, nothing here does anything.

Names of axes: 'batch', 'length', 'embed', 'heads', 'kv', 'mlp', 'vocab',
'layers', 'joined_kv' and 'relpos_buckets', those of T5X.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any

from flax import linen as nn
import jax

from lengen_jax import errors


class Named(nn.LogicallyPartitioned, eq=False):
  """A parameter with the names of its axes.

  Beside what flax does with it, `nnx.bridge.ToNNX` can take the module of such
  a parameter without a mesh too.
  """

  def unbox(self, apply_constraint: bool = True) -> Any:
    """The parameter, on the mesh as its names say."""
    is_active()  # Says what is wrong with a mesh before jax does.
    return super().unbox(apply_constraint)

  def to_nnx_metadata(self) -> dict[str, Any]:
    """Fields of an `nnx.Variable`."""
    # On a name that it cannot resolve nnx raises.
    names = 'out_sharding' if is_active() else 'logical_axes'
    return {
      'value': self.value,
      'mesh': self.mesh,
      'sharding_rules': self.rules,
      names: self.names,
    }

  @classmethod
  def from_nnx_metadata(cls, metadata: Mapping[str, Any]) -> 'Named':
    """Back from the fields of an `nnx.Variable`."""
    names = metadata.get('out_sharding') or metadata['logical_axes']
    return cls(
      metadata['value'],
      names=names,
      mesh=metadata.get('mesh'),
      rules=metadata.get('sharding_rules'),
    )


def named(
  init: Callable[..., jax.Array], axes: tuple[str | None, ...]
) -> Callable[..., Named]:
  """An initializer whose parameter carries the names of its axes.

  Args:
    init: `(key, shape, dtype)`.
    axes: logical names, one for each axis.
  """

  @functools.wraps(init)
  def init_named(*args: Any, **kwargs: Any) -> Any:
    return Named(init(*args, **kwargs), names=axes)

  return init_named


def is_active() -> bool:
  """Whether there are a mesh of several devices and rules for names.

  Raises:
    errors.ConfigError: the axes of the mesh are not left to the compiler.
  """
  mesh = jax.sharding.get_abstract_mesh()
  has_devices = not mesh.empty and mesh.size > 1 and not mesh.manual_axes
  if not has_devices or not nn.get_logical_axis_rules():
    return False
  if jax.sharding.AxisType.Explicit in mesh.axis_types:
    raise errors.ConfigError(
      f'the axes of the mesh {dict(mesh.shape)} are Explicit; leave them to '
      'the compiler: jax.make_mesh(shape, names, axis_types='
      f'(jax.sharding.AxisType.Auto,) * {len(mesh.shape)})'
    )
  return True


def spec(
  *names: str | None, rules: Sequence[tuple[str, Any]] | None = None
) -> jax.sharding.PartitionSpec:
  """The axes of the mesh that split axes of these names.

  Args:
    *names: logical names; None for an axis that is whole everywhere.
    rules: pairs (logical name, axis of the mesh, several or None); those in
      force if None.

  Returns:
    A PartitionSpec.

  Raises:
    errors.ConfigError: a name without a rule.
  """
  rules = nn.get_logical_axis_rules() if rules is None else rules
  known = {name for name, _ in rules}
  for name in names:
    if name is not None and name not in known:
      raise errors.ConfigError(errors.one_of('logical axis', name, known))
  return nn.logical_to_mesh_axes(names, rules)


def constrain(x: Any, *names: str | None) -> Any:
  """Returns x with the sharding given by logical axis names.

  Args:
    x: an array.
    *names: see `spec`.

  Raises:
    errors.ConfigError: a name without a rule, or a mesh whose axes are not
      left to the compiler.
  """
  return jax.lax.with_sharding_constraint(x, spec(*names)) if is_active() else x


def shards(*names: str | None) -> int:
  """Into how many parts axes of these names are split together."""
  if not is_active():
    return 1
  sizes = jax.sharding.get_abstract_mesh().shape
  return math.prod(sizes[axis] for axis in jax.tree.leaves(tuple(spec(*names))))


def platform() -> str:
  """What programs are compiled for: 'cpu', 'gpu' or 'tpu'."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.abstract_device is None:
    return jax.default_backend()
  return mesh.abstract_device.platform
