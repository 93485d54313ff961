"""Parameter trees of models: initialization, stacked layers, projection, LoRA.

Checkpoints have unstacked layers, `layer_0`, `layer_1`, ... Scanned models have
stacked layers: `layers/block_j` stacks the leaves of layers j, j + period, ...
along a new first axis, where period is `ModelConfig.period`.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import encodings
from lengen_jax.models import blocks, linear, transformer
from lengen_jax.models.config import ModelConfig
from lengen_jax.types import Params


def init(config: ModelConfig, rng: jax.Array) -> Params:
  """Returns initial parameters, a tree of float32 arrays without axis names.

  The values do not depend on `scan_layers`, which stacks the layers.
  """
  params = nn.unbox(_init(config, rng))
  return stack(params, config) if config.scan_layers else params


def abstract(config: ModelConfig) -> tuple[Params, Any]:
  """Returns shapes and logical axis names of the parameters.

  Leaves are ShapeDtypeStructs and tuples of names; both trees match `init`'s.
  """

  def is_box(node: Any) -> bool:
    return isinstance(node, nn.LogicallyPartitioned)

  boxed = jax.eval_shape(lambda: _init(config, jax.random.key(0)))
  shapes = jax.tree.map(lambda box: box.value, boxed, is_leaf=is_box)
  names = jax.tree.map(lambda box: box.names, boxed, is_leaf=is_box)
  if not config.scan_layers:
    return shapes, names

  shapes = jax.eval_shape(lambda params: stack(params, config), shapes)
  # All layers of a block have the same names.
  return shapes, _stack(names, config, lambda axes, *_: ('layers', *axes))


def _init(config: ModelConfig, rng: jax.Array) -> Any:
  """Returns initial parameters, unstacked, with their axis names."""
  unrolled = dataclasses.replace(config, scan_layers=False, remat='none')
  tokens = lengths = jnp.ones((1, 1), jnp.int32)
  if config.architecture == 'encoder_decoder':
    arguments: tuple[Any, ...] = (tokens, tokens)
    named: dict[str, Any] = {'lengths': lengths, 'encoder_lengths': lengths}
  else:
    arguments, named = (tokens,), {'lengths': lengths}
  return transformer.create(unrolled).init(rng, *arguments, **named)['params']


def stack(params: Params, config: ModelConfig) -> Params:
  """Stacks the layers of `params` for scanning; numpy arrays stay numpy."""

  def join(*leaves: Any) -> Any:
    return (np if isinstance(leaves[0], np.ndarray) else jnp).stack(leaves)

  return _stack(params, config, join)


def _stack(params: Any, config: ModelConfig, join: Callable) -> Any:
  """Applies `join` to the leaves of the layers of each block."""
  period = config.period

  def stack_layers(params: dict[str, Any]) -> dict[str, Any]:
    stacked = {k: v for k, v in params.items() if not k.startswith('layer_')}
    stacked['layers'] = {
      f'block_{j}': jax.tree.map(
        join,
        *(params[f'layer_{i}'] for i in range(j, config.num_layers, period)),
        is_leaf=lambda node: isinstance(node, tuple),
      )
      for j in range(period)
    }
    return stacked

  return _on_stacks(stack_layers, params)


def unstack(params: Params) -> Params:
  """Inverts `stack`; returns unstacked parameters unchanged."""

  def unstack_layers(params: dict[str, Any]) -> dict[str, Any]:
    if 'layers' not in params:
      return params
    unrolled = {k: v for k, v in params.items() if k != 'layers'}
    blocks = params['layers']
    for j in range(len(blocks)):
      leaves, treedef = jax.tree_util.tree_flatten(blocks[f'block_{j}'])
      for cycle, layer in enumerate(zip(*leaves, strict=True)):
        unrolled[f'layer_{cycle * len(blocks) + j}'] = jax.tree.unflatten(
          treedef, layer
        )
    return unrolled

  return _on_stacks(unstack_layers, params)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the parameters by path, 'layer_0/...'."""
  flat = traverse_util.flatten_dict(abstract(config)[0], sep='/')
  return {path: tuple(leaf.shape) for path, leaf in flat.items()}


def portable(params: Params, config: ModelConfig) -> tuple[Params, ModelConfig]:
  """Returns an equal model for export, and its ModelConfig.

  Its parameters are numpy arrays, without LoRA kernels, layers unstacked.
  """
  params = jax.device_get(unstack(params))
  return merge_lora(params, dataclasses.replace(config, scan_layers=False))


def merge_lora(
  params: Params, config: ModelConfig
) -> tuple[Params, ModelConfig]:
  """Returns an equal model without LoRA kernels, and its ModelConfig.

  Their products are added to the kernels beside them, in float32. Layers may be
  stacked; a model without LoRA is returned unchanged.
  """
  if config.lora_rank is None:
    return params, config
  flat = traverse_util.flatten_dict(unstack(params))
  scale = linear.lora_scale(config.lora_rank, config.lora_alpha)
  for *module, name in [*flat]:
    if name == 'lora_in':
      a, b = flat.pop((*module, name)), flat.pop((*module, 'lora_out'))
      product = a.reshape(-1, len(b)) @ b.reshape(len(b), -1)
      kernel = flat[*module, 'kernel']
      flat[*module, 'kernel'] = kernel.astype(np.float32) + (
        scale * product
      ).reshape(kernel.shape)
  merged = traverse_util.unflatten_dict(flat)
  config = dataclasses.replace(config, lora_rank=None, lora_alpha=None)
  return stack(merged, config) if config.scan_layers else merged, config


def project(params: Params, config: ModelConfig) -> Params:
  """Projects the parameters of each encoding to their domain.

  Training calls it after each optimizer step.
  """
  layer_encodings = blocks.create_encodings(config)

  def project_block(
    block: dict[str, Any], encoding: encodings.Encoding
  ) -> dict[str, Any]:
    attention = dict(block['attention'])
    if 'encoding' in attention:
      attention['encoding'] = encoding.project(attention['encoding'])
    return {**block, 'attention': attention}

  def project_layers(params: dict[str, Any]) -> dict[str, Any]:
    params = dict(params)
    for i, encoding in enumerate(layer_encodings):
      if f'layer_{i}' in params:
        params[f'layer_{i}'] = project_block(params[f'layer_{i}'], encoding)
    if 'layers' in params:
      params['layers'] = {
        f'block_{j}': project_block(params['layers'][f'block_{j}'], encoding)
        for j, encoding in enumerate(layer_encodings[: config.period])
      }
    for name, encoding in blocks.owned_encodings(config).items():
      if name in params:
        params[name] = encoding.project(params[name])
    return params

  return _on_stacks(project_layers, params)


def _on_stacks(function: Callable[[Any], Any], params: Any) -> Any:
  """Applies a function to the parameters of each stack of layers."""
  sides = [side for side in ('encoder', 'decoder') if side in params]
  if not sides:
    return function(params)
  return {**params, **{side: function(params[side]) for side in sides}}
