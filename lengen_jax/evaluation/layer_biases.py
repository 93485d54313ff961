"""The additive bias of each layer, from a model's parameters alone."""

import dataclasses
from typing import Any

import jax
from jax.experimental import multihost_utils

from lengen_jax import encodings
from lengen_jax.models import blocks, stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.types import Params

_SIDES = {
  'decoder': (('', False),),
  'encoder': (('', True),),
  'encoder_decoder': (('encoder/', True), ('decoder/', False)),
}


@dataclasses.dataclass(frozen=True)
class LayerBias:
  """The additive bias of a layer.

  Attributes:
    path: path of its parameters, the same for layers that share an encoding.
    bias: a `BiasFn`, or None.
  """

  path: str
  bias: encodings.BiasFn | None


def by_layer(config: ModelConfig, params: Params) -> dict[str, LayerBias]:
  """The additive bias of the self-attention of each layer.

  Args:
    config: a ModelConfig.
    params: the model's parameters, stacked or not, on devices of any host.

  Returns:
    dict from a layer's name, such as 'layer_0' or 'encoder/layer_0', to
    LayerBias, in the order in which the layers run.
  """
  params = _of_encodings(params)
  if jax.process_count() > 1:
    # They are small, and this host holds only a part.
    params = multihost_utils.process_allgather(params, tiled=True)
  params = stacking.unstack(jax.device_get(params))
  layer_encodings = blocks.create_encodings(config)
  owned = {e: n for n, e in blocks.owned_encodings(layer_encodings).items()}
  found = {}
  for side, bidirectional in _SIDES[config.architecture]:
    of_side = params.get(side.removesuffix('/'), {}) if side else params
    for i, encoding in enumerate(layer_encodings):
      path = owned.get(encoding, f'layer_{i}/attention/encoding')
      node = of_side
      for name in path.split('/'):
        # A module without parameters has no node.
        node = node.get(name, {})
      bias: Any = encoding.apply(
        {'params': node}, method='bias_fn', bidirectional=bidirectional
      )
      found[f'{side}layer_{i}'] = LayerBias(side + path, bias)
  return found


def _of_encodings(params: Params) -> dict[str, Any]:
  """The part of a tree of parameters that belongs to encodings."""
  kept = {}
  for name, node in params.items():
    if name.startswith('encoding'):
      kept[name] = node
    elif isinstance(node, dict) and name != 'embed':
      within = _of_encodings(node)
      if within or name.startswith(('layer', 'block', 'attention')):
        kept[name] = within
  return kept
