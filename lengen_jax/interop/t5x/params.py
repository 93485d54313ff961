"""Parameters in T5X's conventions.

Flax's `param_with_axes` creates the parameters. T5X's partitioner and Adafactor
know their axes. Every parameter has at least one axis, so that layers can be
scanned.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import linen as nn
from flax.linen import partitioning
import jax
import jax.numpy as jnp

from lengen_jax import errors, specs

# Logical axes for which T5X's mesh rules and Adafactor have entries.
AXES = (
  'vocab',
  'embed',
  'mlp',
  'heads',
  'kv',
  'joined_kv',
  'relpos_buckets',
  'layers',
  'stack',
)


def param(
  module: nn.Module,
  name: str,
  init: Callable[..., jax.Array],
  shape: tuple[int, ...],
  axes: tuple[str, ...],
) -> jax.Array:
  """Creates a float32 parameter with logical axis names, as T5X does.

  Any `encodings.Encoding` accepts this function as its `make_param`.

  Raises:
    errors.ConfigError: T5X does not support the axes, or an existing parameter
      has another shape.
  """
  known = len(set(axes)) == len(axes) and set(axes) <= set(AXES)
  if not shape or len(shape) != len(axes) or not known:
    raise errors.ConfigError(
      f'parameter {name} of {specs.name(module)} has shape {shape} and axes '
      f'{axes}; T5X needs at least one axis, and for each a different one of '
      + ', '.join(AXES)
    )
  existing: Any = module.get_variable('params', name)
  if existing is not None and existing.shape != tuple(shape):
    raise errors.ConfigError(
      f'parameter {name} of {specs.name(module)} has shape {existing.shape}; '
      f'num_heads and the other fields of the module require {tuple(shape)}. '
      'Set them to the values that the parameters were created with'
    )
  return partitioning.param_with_axes(
    name, init, shape, jnp.float32, axes=axes, module=module
  )


@dataclasses.dataclass(frozen=True)
class RelEmbedding:
  """Creates T5's table with T5X's name and shape, so that checkpoints load."""

  init: Callable | None

  def __call__(
    self,
    module: nn.Module,
    name: str,
    init: Callable[..., jax.Array],
    shape: tuple[int, ...],
    axes: tuple[str, ...],
  ) -> jax.Array:
    del name
    table_HxN = param(
      module, 'rel_embedding', self.init or init, shape[::-1], axes[::-1]
    )
    return table_HxN.T
