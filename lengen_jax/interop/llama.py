"""Reads Llama checkpoints in the format of Hugging Face's transformers.

A folder holds config.json and model.safetensors, or several files and their
model.safetensors.index.json. Each tensor must be used, each parameter be set.
"""

import json
import math
import pathlib
import re

from flax import traverse_util
import numpy as np

from lengen_jax import errors
from lengen_jax.interop import llama_config, weights
from lengen_jax.models import stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.types import Params, PathLike

_FILE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
# Tensor names by parameter path, outside of layers and within a layer.
_MODEL = {
  'embed/table': 'model.embed_tokens.weight',
  'head/table': 'lm_head.weight',
  'final_norm/scale': 'model.norm.weight',
}
_LAYER = {
  'attention_norm/scale': 'input_layernorm.weight',
  'attention/query/kernel': 'self_attn.q_proj.weight',
  'attention/key/kernel': 'self_attn.k_proj.weight',
  'attention/value/kernel': 'self_attn.v_proj.weight',
  'attention/out/kernel': 'self_attn.o_proj.weight',
  'mlp_norm/scale': 'post_attention_layernorm.weight',
  'mlp/gate/kernel': 'mlp.gate_proj.weight',
  'mlp/up/kernel': 'mlp.up_proj.weight',
  'mlp/down/kernel': 'mlp.down_proj.weight',
}
# RoPE frequencies in checkpoints of old versions; the config determines them.
_COMPUTED = re.compile(r'model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq')


def load(folder: PathLike) -> tuple[Params, ModelConfig]:
  """Reads the checkpoint in a folder.

  Returns:
    (params, ModelConfig): numpy float32 arrays with unstacked layers.

  Raises:
    errors.CheckpointError: a file is missing or broken, no ModelConfig fits, or
      a tensor is missing, superfluous or of another shape.
  """
  config = ModelConfig(**llama_config.model_fields(folder))
  shapes = traverse_util.flatten_dict(stacking.abstract(config)[0], sep='/')
  shapes = {path: leaf.shape for path, leaf in shapes.items()}
  names = {path: _tensor_name(path) for path in shapes}
  tensors = {
    name: tensor
    for name, tensor in _tensors(folder).items()
    if not _COMPUTED.fullmatch(name)
  }
  head = tensors.get(_MODEL['head/table'])
  if config.tied_embedding and head is not None:
    # Some checkpoints also store the tied head.
    if np.array_equal(head, tensors.get(_MODEL['embed/table'])):
      del tensors[_MODEL['head/table']]
  wanted = {
    names[path]: _tensor_shape(path, shape) for path, shape in shapes.items()
  }
  weights.check(tensors, wanted, folder)
  flat = {
    path: _parameter(path, tensors[names[path]], shape)
    for path, shape in shapes.items()
  }
  return traverse_util.unflatten_dict(flat, sep='/'), config


def _tensor_name(path: str) -> str:
  layer, _, rest = path.partition('/')
  if layer.startswith('layer_'):
    return f'model.layers.{layer.removeprefix("layer_")}.{_LAYER[rest]}'
  return _MODEL[path]


def _tensor_shape(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Returns a tensor's shape. Tensors of kernels are [outputs, inputs]."""
  if not path.endswith('/kernel'):
    return tuple(shape)
  inputs = math.prod(shape[:-1]) if '/out/' in path else shape[0]
  return math.prod(shape) // inputs, inputs


def _parameter(
  path: str, tensor: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
  if path.endswith('/kernel'):
    return np.ascontiguousarray(tensor.T).reshape(shape)
  return tensor


def _tensors(folder: PathLike) -> dict[str, np.ndarray]:
  """Returns all tensors of a checkpoint by name, float32."""
  folder = pathlib.Path(folder).expanduser().absolute()
  if not (folder / _INDEX).exists():
    return weights.read(folder / _FILE)[0]
  try:
    files = json.loads((folder / _INDEX).read_text())['weight_map']
    shards = set(files.values())
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    raise errors.CheckpointError(
      f'{folder / _INDEX} is broken: it has no weight_map; copy it again'
    ) from None
  found = {name: weights.read(folder / name)[0] for name in shards}
  for name, file in files.items():
    if name not in found[file]:
      raise errors.CheckpointError(
        f'{folder / file} lacks {name}, which {_INDEX} lists'
      )
  return {name: found[file][name] for name, file in files.items()}
