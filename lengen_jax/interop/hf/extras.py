"""Fields of config.json that single families have, read and written.

Does not import jax.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import Any

from lengen_jax import specs
from lengen_jax.interop.hf import layer_types
from lengen_jax.interop.hf.config_json import ConfigJson
from lengen_jax.models.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Extra:
  """How fields of config.json are read and written.

  Attributes:
    read: returns fields of ModelConfig, one value per layer, given config.json
      and head_dim.
    write: returns fields of config.json, given the ModelConfig. The inverse of
      `read`.
  """

  read: Callable[[ConfigJson, int], dict[str, list[Any]]]
  write: Callable[[ModelConfig], dict[str, Any]]


def _read_gemma(config: ConfigJson, head_dim: int) -> dict[str, list[Any]]:
  """Returns the logit scale if query_pre_attn_scalar is not head_dim."""
  ratio = head_dim / (config.get('query_pre_attn_scalar') or 256)
  if ratio == 1:
    return {}
  scale = f'constant(factor={math.sqrt(ratio)!r})'
  return {'attention_scale': [scale] * config['num_hidden_layers']}


def _write_gemma(config: ModelConfig) -> dict[str, Any]:
  """Returns query_pre_attn_scalar."""
  scales = _options_of('constant', config)
  factor = scales[0].get('factor', 1.0) if scales else 1.0
  # transformers takes integers only.
  return {'query_pre_attn_scalar': round(config.head_dim / factor**2)}


def _read_llama4(config: ConfigJson, head_dim: int) -> dict[str, list[Any]]:
  """Returns the norms of layers that rotate, and the scales of others."""
  del head_dim
  _ = config['moe_layers']  # By default, all layers have experts.
  rotates = layer_types.rotates(config)
  norm = 'unscaled' if config.get('use_qk_norm', True) else None
  layers: dict[str, list[Any]] = {
    'query_key_norm': [norm if one else None for one in rotates]
  }
  if config.get('attn_temperature_tuning', True):
    beta = float(config.get('attn_scale') or 0.1)
    steps = config.get('floor_scale') or 8192
    scale = f'llama4(beta={beta!r}, train_length={steps})'
    layers['attention_scale'] = ['none' if one else scale for one in rotates]
  return layers


def _write_llama4(config: ModelConfig) -> dict[str, Any]:
  """Returns the fields about norms and scales."""
  tuned = _options_of('llama4', config)
  written: dict[str, Any] = {'attn_temperature_tuning': bool(tuned)}
  if tuned:
    written['attn_scale'] = tuned[0].get('beta', 0.1)
    written['floor_scale'] = tuned[0].get('train_length', 8192)
  norms = [one.query_key_norm for one in config.layers]
  return written | {'use_qk_norm': 'unscaled' in norms}


def _options_of(name: str, config: ModelConfig) -> list[dict[str, Any]]:
  """Returns the options of a logit scale in each layer that has it."""
  scales = [specs.parse(one.attention_scale) for one in config.layers]
  return [options for found, options in scales if found == name]


GEMMA = Extra(_read_gemma, _write_gemma)
LLAMA4 = Extra(_read_llama4, _write_llama4)
