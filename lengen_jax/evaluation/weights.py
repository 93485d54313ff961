"""Parameters for generation and scoring, which do not train them."""

import functools
from typing import Any

import jax
from jax.sharding import NamedSharding

from lengen_jax.models import stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.types import Array, Params


def place(params: Params, config: ModelConfig, whole: NamedSharding) -> Params:
  """Returns unstacked parameters, the layers' kernels in the model's dtype.

  Layers convert their kernels, and would do so for each token. Encodings,
  contextual positions and the router of experts compute in float32. Numpy
  arrays are converted on the host, so that devices hold the result alone.

  Args:
    params: parameters of the model, layers stacked or not.
    config: its ModelConfig.
    whole: the sharding of the result, a copy on every device.
  """
  placed = [x for x in jax.tree.leaves(params) if isinstance(x, jax.Array)]
  if not placed:
    return jax.device_put(_converted(params, config), whole)
  if any(x.sharding.device_set != whole.device_set for x in placed):
    params = jax.device_put(params, whole)
  return _converted_on_devices(params, config, whole)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _converted_on_devices(
  params: Params, config: ModelConfig, whole: NamedSharding
) -> Params:
  return jax.lax.with_sharding_constraint(_converted(params, config), whole)


def _converted(params: Params, config: ModelConfig) -> Params:
  def convert(path: Any, leaf: Array) -> Array:
    names = [entry.key for entry in path]
    in_layer = {'attention', 'mlp'} & {*names}
    in_float32 = {'encoding', 'positions', 'router'} & {*names}
    is_kernel = in_layer and names[-1].endswith('kernel') and not in_float32
    return leaf.astype(config.dtype, copy=False) if is_kernel else leaf

  return jax.tree_util.tree_map_with_path(convert, stacking.unstack(params))
