"""Converts the config.json of a Llama checkpoint to ModelConfig fields.

The error for a model that no ModelConfig represents exactly names the first
field that differs. This module does not import jax.
"""

from collections.abc import Mapping
import json
import math
import os
import pathlib
from typing import Any

from lengen_jax import errors

_FILE = 'config.json'
_SUPPORTED = ('LlamaForCausalLM', 'MistralForCausalLM')
# Features of other architectures that ModelConfig does not have.
_LACKING = {
  'Qwen2ForCausalLM': 'biases of queries, keys and values',
  'Qwen3ForCausalLM': 'norms of queries and keys',
  'GPTNeoXForCausalLM': 'parallel residuals and biases in attention',
  'Phi3ForCausalLM': 'joined kernels',
  'GemmaForCausalLM': 'norms with 1 added to their scale',
}
# Fields with a single supported value.
_FIXED = {
  'hidden_act': 'silu',
  'attention_bias': False,
  'mlp_bias': False,
  'quantization_config': None,
}
# By rope_type: an encoding, and {key of its spec: field of rope_parameters}.
_ROPE_TYPES = {
  'default': ('rope', {}),
  'linear': ('rope', {'scale': 'factor'}),
  'dynamic': ('ntk', {'scale': 'factor'}),
  'llama3': (
    'llama3',
    {
      'scale': 'factor',
      'low_freq': 'low_freq_factor',
      'high_freq': 'high_freq_factor',
    },
  ),
  'yarn': ('yarn', {'scale': 'factor'}),
  'longrope': (
    'longrope',
    {
      'scale': 'factor',
      'short_factors': 'short_factor',
      'long_factors': 'long_factor',
    },
  ),
}


def is_checkpoint(folder: str | os.PathLike[str]) -> bool:
  """Returns whether a folder has the config.json of a transformers model."""
  try:
    found = json.loads((pathlib.Path(folder) / _FILE).read_text())
  except (OSError, ValueError):
    return False
  return isinstance(found, dict) and bool(
    {'architectures', 'model_type'} & {*found}
  )


def model_fields(folder: str | os.PathLike[str]) -> dict[str, Any]:
  """Returns a checkpoint's ModelConfig fields that differ from the defaults.

  Raises:
    errors.CheckpointError: config.json is missing or broken, or describes a
      model that no ModelConfig represents exactly.
  """
  config = _Config(folder)
  names = config.get('architectures') or ['unknown']
  if not isinstance(names, list):
    raise config.error(f'has architectures={names!r}; it takes a list of names')
  name = ' and '.join(map(str, names))
  if name not in _SUPPORTED:
    lacks = f', which has {_LACKING[name]}' if name in _LACKING else ''
    raise config.error(
      f'is of architecture {name}{lacks}; supported are '
      f'{" and ".join(_SUPPORTED)}'
    )
  for key, supported in _FIXED.items():
    if config.get(key, supported) != supported:
      raise config.error(
        f'has {key}={config.get(key)!r}; only {supported!r} is supported'
      )
  window = None
  if name == 'MistralForCausalLM':
    window = config.get('sliding_window', 4096)
  width, heads = config['hidden_size'], config['num_attention_heads']
  key_heads = config.get('num_key_value_heads') or heads
  return dict(
    vocab_size=config['vocab_size'],
    num_layers=config['num_hidden_layers'],
    num_heads=heads,
    head_dim=config.get('head_dim') or width // heads,
    key_heads=None if key_heads == heads else key_heads,
    width=width,
    mlp_width=config['intermediate_size'],
    encoding=_encoding(config),
    tied_embedding=bool(config.get('tie_word_embeddings', False)),
    scaled_embedding=False,
    norm='rms',
    norm_epsilon=config.get('rms_norm_eps', 1e-6),
    activation='swiglu',
    window=window,
  )


def trained_length(folder: str | os.PathLike[str]) -> int:
  """Returns max_position_embeddings, the maximum length in tokens."""
  return _Config(folder)['max_position_embeddings']


def _is_number(value: Any) -> bool:
  number = isinstance(value, int | float) and not isinstance(value, bool)
  return number and 0 < value < math.inf


def _is_count(value: Any) -> bool:
  return _is_number(value) and isinstance(value, int)


def _are_numbers(value: Any) -> bool:
  return isinstance(value, list) and all(map(_is_number, value))


# Types: a test of a value, its description, and the fields of this type.
_TYPES = (
  (
    _is_count,
    'a whole number from 1 on',
    'vocab_size hidden_size intermediate_size num_hidden_layers head_dim '
    'num_attention_heads num_key_value_heads sliding_window '
    'max_position_embeddings original_max_position_embeddings',
  ),
  (
    _is_number,
    'a number above 0',
    'rms_norm_eps rope_theta factor low_freq_factor high_freq_factor beta_fast '
    'beta_slow',
  ),
  (_are_numbers, 'a list of numbers above 0', 'short_factor long_factor'),
  (
    lambda value: isinstance(value, dict),
    'an object',
    'rope_parameters rope_scaling',
  ),
  (lambda value: isinstance(value, str), 'a text', 'rope_type type'),
)


class _Config:
  """The contents of config.json; error messages contain its path."""

  def __init__(self, folder: str | os.PathLike[str]) -> None:
    self._path = pathlib.Path(folder).expanduser() / _FILE
    try:
      self._found = json.loads(self._path.read_text())
      self.get = self._found.get
    except OSError as error:
      raise self.error(f'cannot be read: {error.strerror}') from None
    except (ValueError, AttributeError):
      raise self.error('is broken: it is not a JSON object') from None
    self.check(self._found)

  def __getitem__(self, key: str) -> Any:
    if self._found.get(key) is None:
      raise self.error(f'lacks {key}')
    return self._found[key]

  def check(self, fields: Mapping[str, Any]) -> None:
    """Raises an error unless all fields have the types in `_TYPES`."""
    for is_valid, description, keys in _TYPES:
      for key in keys.split():
        value = fields.get(key)
        if value is not None and not is_valid(value):
          raise self.error(f'has {key}={value!r}; it takes {description}')

  def error(self, text: str) -> errors.CheckpointError:
    return errors.CheckpointError(f'{self._path} {text}')


def _encoding(config: _Config) -> str:
  """Returns the spec of the encoding with the angles of the checkpoint."""
  # New configs have rope_parameters, old ones rope_theta and rope_scaling.
  rope = dict(config.get('rope_parameters') or config.get('rope_scaling') or {})
  if any(isinstance(value, dict) for value in rope.values()):
    raise config.error('has other rope_parameters for other layers')
  config.check(rope)
  rope_type = rope.pop('rope_type', None) or rope.get('type') or 'default'
  rope.pop('type', None)
  if rope_type not in _ROPE_TYPES:
    raise config.error(
      f'has rope_type={rope_type!r}; supported are {", ".join(_ROPE_TYPES)}'
    )
  base = rope.pop('rope_theta', None) or config.get('rope_theta') or 10000.0
  longest = config['max_position_embeddings']
  original = rope.pop('original_max_position_embeddings', None)
  original = config.get('original_max_position_embeddings') or original
  original = original or longest
  if rope_type in ('yarn', 'longrope') and not rope.get('factor'):
    rope['factor'] = longest / original
  name, keys = _ROPE_TYPES[rope_type]
  values: dict[str, Any] = {'base': float(base)}
  for key, field in keys.items():
    value = rope.pop(field, None)
    if value is None:
      raise config.error(f'has rope_type={rope_type!r} without {field}')
    values[key] = tuple(value) if isinstance(value, list) else value
  if rope_type == 'dynamic':
    values |= {'train_length': longest, 'dynamic': True}
  elif rope_type in ('llama3', 'yarn', 'longrope'):
    values['train_length'] = original
  if rope_type == 'yarn':
    for key, default in (('beta_fast', 32), ('beta_slow', 1)):
      values[key] = rope.pop(key, None) or default
  _check_rest(config, rope_type, rope, values)
  return f'{name}({", ".join(f"{k}={v!r}" for k, v in values.items())})'


def _check_rest(
  config: _Config,
  rope_type: str,
  rest: Mapping[str, Any],
  values: Mapping[str, Any],
) -> None:
  """Raises on remaining rope parameters that change the angles."""
  harmless: dict[str, Any] = {'partial_rotary_factor': 1.0}
  if rope_type == 'default':
    harmless['factor'] = 1.0
  if rope_type == 'yarn':
    harmless |= {
      'attention_factor': 0.1 * math.log(values['scale']) + 1,
      'truncate': True,
      # A field of old configs that has no effect.
      'finetuned': rest.get('finetuned'),
    }
  if rope_type == 'longrope':
    growth = math.log(values['scale']) / math.log(values['train_length'])
    harmless['attention_factor'] = math.sqrt(1 + growth)
  for key, value in rest.items():
    if value is None:
      continue
    wanted = harmless.get(key)
    same = value == wanted
    if isinstance(wanted, float) and isinstance(value, int | float):
      same = math.isclose(value, wanted, rel_tol=1e-6)
    if not same:
      raise config.error(
        f'has {key}={value!r} with rope_type={rope_type!r}, which is not '
        'supported'
      )
