"""The state as it lies on disk: layers unstacked, whatever the mesh.

A state of arrays over several processes can be taken apart only by compiled
programs, which have to be told how the parts lie.
"""

import functools

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from lengen_jax.models import stacking


def take_apart(state):
  """Unstacks the layers of the parameters and of every tree like them."""

  def one(node):
    if not _is_stacked(node):
      return node
    shardings = jax.tree.map(lambda leaf: leaf.sharding, _abstract(node))
    return jax.jit(stacking.unstack, out_shardings=shardings)(node)

  return jax.tree.map(one, state, is_leaf=_is_params)


def abstract(state):
  """Shapes, dtypes and shardings of `take_apart`, from those of the state."""
  return jax.tree.map(
    lambda node: _abstract(node) if _is_stacked(node) else node,
    state,
    is_leaf=_is_params,
  )


def put_together(state, like, config):
  """The inverse of `take_apart`.

  Args:
    state: with layers unstacked.
    like: shapes, dtypes and shardings of the state that is wanted; what has
      another dtype is cast.
    config: a ModelConfig; None where no layers are stacked.
  """

  def one(node, wanted):
    if not _is_stacked(wanted):
      return jax.tree.map(_cast, node, wanted)
    node = jax.tree.map(_cast, node, _abstract(wanted))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, wanted)
    stack = functools.partial(stacking.stack, config=config)
    return jax.jit(stack, out_shardings=shardings)(node)

  return jax.tree.map(one, state, like, is_leaf=_is_params)


def _cast(leaf, wanted):
  if leaf.dtype == wanted.dtype:
    return leaf
  cast = functools.partial(jax.lax.convert_element_type, new_dtype=wanted.dtype)
  return jax.jit(cast, out_shardings=wanted.sharding)(leaf)


def _is_params(node):
  return isinstance(node, dict) and 'embed' in node


def _is_stacked(node):
  return _is_params(node) and any(
    'layers' in part
    for part in (node, *node.values())
    if isinstance(part, dict)
  )


class _Stacked:
  """Stands for a stacked array where `stacking.unstack` goes through it."""

  def __init__(self, leaf):
    self.leaf = leaf

  def __iter__(self):
    count, *shape = self.leaf.shape
    sharding = self.leaf.sharding
    if isinstance(sharding, NamedSharding):
      spec = PartitionSpec(*sharding.spec[1:])
      sharding = NamedSharding(sharding.mesh, spec)
    layer = jax.ShapeDtypeStruct(shape, self.leaf.dtype, sharding=sharding)
    return iter([_Stacked(layer)] * count)


def _abstract(node):
  """Of stacked parameters, concrete or not, those of each layer."""
  return jax.tree.map(
    lambda one: jax.ShapeDtypeStruct(
      one.leaf.shape, one.leaf.dtype, sharding=one.leaf.sharding
    ),
    stacking.unstack(jax.tree.map(_Stacked, node)),
  )
