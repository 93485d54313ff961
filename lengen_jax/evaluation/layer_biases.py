"""The additive bias of each layer of a model, from its parameters alone."""

import dataclasses
from typing import Any

import jax
from jax.experimental import multihost_utils

from lengen_jax.models import blocks
from lengen_jax.models import stacking

_SIDES = {
  'decoder': (('', False),),
  'encoder': (('', True),),
  'encoder_decoder': (('encoder/', True), ('decoder/', False)),
}


@dataclasses.dataclass(frozen=True)
class LayerBias:
  """What a layer adds to its logits.

  Attributes:
    path: of the parameters; layers that share an encoding have the same.
    bias: a `BiasFn`, or None.
  """

  path: str
  bias: Any


def by_layer(config, params):
  """The additive bias of the self-attention of each layer.

  Args:
    config: a ModelConfig.
    params: the model's parameters, stacked or not, on devices of any host.

  Returns:
    dict from a layer's name, as 'layer_0' or 'encoder/layer_0', to LayerBias,
    in the order in which the layers run.
  """
  params = _of_encodings(params)
  if jax.process_count() > 1:
    # Small, and here in part only.
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
        # What has no parameters is not there.
        node = node.get(name, {})
      bias = encoding.apply(
        {'params': node}, method='bias_fn', bidirectional=bidirectional
      )
      found[f'{side}layer_{i}'] = LayerBias(side + path, bias)
  return found


def _of_encodings(params):
  """Of a tree of parameters that of encodings alone."""
  kept = {}
  for name, node in params.items():
    if name.startswith('encoding'):
      kept[name] = node
    elif isinstance(node, dict) and name != 'embed':
      within = _of_encodings(node)
      if within or name.startswith(('layer', 'block', 'attention')):
        kept[name] = within
  return kept
