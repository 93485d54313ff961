"""Sharding constraints of models, by logical axis names.

Flax's `nn.logical_axis_rules` map logical names to axes of the mesh, and
`jax.set_mesh` sets the mesh; `training.sharding` does both. Without a mesh or
rules, and inside `jax.shard_map`, the functions of this module have no effect.

Logical axes: 'batch', 'length', 'embed', 'heads', 'kv', 'mlp', 'vocab',
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
  """A parameter with logical axis names.

  Unlike its base class, it converts to NNX without a mesh.
  """

  def unbox(self, apply_constraint: bool = True) -> Any:
    """Returns the parameter, with the sharding of its names."""
    is_active()  # Raises a clearer error than jax for an unsupported mesh.
    return super().unbox(apply_constraint)

  def to_nnx_metadata(self) -> dict[str, Any]:
    """Returns the fields of an `nnx.Variable`."""
    # Without rules, nnx raises for `out_sharding`.
    names = 'out_sharding' if is_active() else 'logical_axes'
    return {
      'value': self.value,
      'mesh': self.mesh,
      'sharding_rules': self.rules,
      names: self.names,
    }

  @classmethod
  def from_nnx_metadata(cls, metadata: Mapping[str, Any]) -> 'Named':
    """Creates a parameter from the fields of an `nnx.Variable`."""
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
  """Returns an initializer whose parameter has logical axis names.

  `init` is an initializer `(key, shape, dtype) -> array`.
  """

  @functools.wraps(init)
  def init_named(*args: Any, **kwargs: Any) -> Any:
    return Named(init(*args, **kwargs), names=axes)

  return init_named


def is_active() -> bool:
  """Returns whether a mesh of several devices and axis rules are set.

  Raises:
    errors.ConfigError: an axis of the mesh is Explicit.
  """
  mesh = jax.sharding.get_abstract_mesh()
  has_devices = not mesh.empty and mesh.size > 1 and not mesh.manual_axes
  if not has_devices or not nn.get_logical_axis_rules():
    return False
  if jax.sharding.AxisType.Explicit in mesh.axis_types:
    raise errors.ConfigError(
      f'the axes of the mesh {dict(mesh.shape)} are Explicit; make them '
      'Auto: jax.make_mesh(shape, names, axis_types='
      f'(jax.sharding.AxisType.Auto,) * {len(mesh.shape)})'
    )
  return True


def spec(
  *names: str | None, rules: Sequence[tuple[str, Any]] | None = None
) -> jax.sharding.PartitionSpec:
  """Returns the PartitionSpec of an array with these logical axes.

  Args:
    *names: logical names; None for an axis that is not split.
    rules: pairs of a logical name and its mesh axes: the name of an axis, a
      tuple of names, or None. `rules=None` uses the current rules.

  Raises:
    errors.ConfigError: a name has no rule.
  """
  rules = nn.get_logical_axis_rules() if rules is None else rules
  known = {name for name, _ in rules}
  for name in names:
    if name is not None and name not in known:
      raise errors.ConfigError(errors.one_of('logical axis', name, known))
  return nn.logical_to_mesh_axes(names, rules)


def constrain(x: Any, *names: str | None) -> Any:
  """Returns the array x with the sharding of logical axes; see `spec`.

  Raises:
    errors.ConfigError: a name has no rule, or an axis of the mesh is Explicit.
  """
  return jax.lax.with_sharding_constraint(x, spec(*names)) if is_active() else x


def shards(*names: str | None) -> int:
  """Returns the number of shards of an array with these logical axes."""
  if not is_active():
    return 1
  sizes = jax.sharding.get_abstract_mesh().shape
  return math.prod(sizes[axis] for axis in jax.tree.leaves(tuple(spec(*names))))


def platform() -> str:
  """Returns the platform of the mesh, or the default: 'cpu', 'gpu', 'tpu'."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.abstract_device is None:
    return jax.default_backend()
  return mesh.abstract_device.platform
