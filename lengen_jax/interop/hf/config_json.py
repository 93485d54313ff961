"""The config.json of a checkpoint, with checks. Does not import jax."""

from collections.abc import Mapping
import json
import math
import os
import pathlib
from typing import Any

from etils import epath

from lengen_jax import errors

_FILE = 'config.json'


def _is_number(value: Any) -> bool:
  number = isinstance(value, int | float) and not isinstance(value, bool)
  return number and 0 < value < math.inf


def _is_count(value: Any) -> bool:
  return _is_number(value) and isinstance(value, int)


# Types: a test of a value, its description, and the fields of this type.
_TYPES = (
  (
    _is_count,
    'a whole number from 1 on',
    'vocab_size hidden_size intermediate_size intermediate_size_mlp '
    'num_hidden_layers head_dim num_attention_heads num_key_value_heads '
    'sliding_window sliding_window_pattern max_position_embeddings '
    'original_max_position_embeddings no_rope_layer_interval floor_scale '
    'attention_chunk_size num_local_experts num_experts_per_tok',
  ),
  (
    lambda value: value == 0 or _is_count(value),
    'a whole number from 0 on',
    'max_window_layers',
  ),
  (
    lambda value: value == 0 or _is_number(value),
    'a number from 0 on',
    'mscale mscale_all_dim',
  ),
  (
    _is_number,
    'a number above 0',
    'rms_norm_eps layer_norm_eps rope_theta rotary_emb_base rotary_pct '
    'rope_local_base_freq partial_rotary_factor factor low_freq_factor '
    'high_freq_factor beta_fast beta_slow attention_factor '
    'attn_logit_softcapping final_logit_softcapping '
    'query_pre_attn_scalar attn_scale swiglu_alpha swiglu_limit',
  ),
  (
    lambda value: isinstance(value, list) and all(map(_is_number, value)),
    'a list of numbers above 0',
    'short_factor long_factor',
  ),
  (
    lambda value: isinstance(value, dict),
    'an object',
    'rope_parameters rope_scaling',
  ),
  (
    lambda value: isinstance(value, list),
    'a list',
    'layer_types no_rope_layers moe_layers',
  ),
  (
    lambda value: isinstance(value, str),
    'a text',
    'rope_type type hidden_act hidden_activation',
  ),
  (
    lambda value: isinstance(value, bool),
    'true or false',
    'tie_word_embeddings attention_bias mlp_bias use_sliding_window '
    'use_qk_norm use_parallel_residual truncate',
  ),
)


def is_checkpoint(folder: str | os.PathLike[str]) -> bool:
  """Returns whether a folder has the config.json of a transformers model."""
  try:
    path = epath.Path(folder).expanduser() / _FILE
    found = json.loads(path.read_text())
  except (OSError, ValueError):
    return False
  return isinstance(found, dict) and bool(
    {'architectures', 'model_type'} & {*found}
  )


def read(folder: str | os.PathLike[str]) -> 'ConfigJson':
  """Reads the config.json in a folder.

  Raises:
    errors.CheckpointError: the file is missing or is not valid JSON, or the
      type of a field is wrong.
  """
  path = pathlib.Path(folder).expanduser() / _FILE
  try:
    found = json.loads(path.read_text())
  except OSError as error:
    raise errors.CheckpointError(
      f'{path} cannot be read: {error.strerror}'
    ) from None
  except ValueError:
    found = None
  if not isinstance(found, dict):
    raise errors.CheckpointError(
      f'{path} is broken: it is not a JSON object; copy it again'
    )
  return ConfigJson(found, str(path))


class ConfigJson(Mapping[str, Any]):
  """The fields of a config.json.

  `[]` raises errors.CheckpointError for a field that is missing or null, and
  `in` is False for it. `get` returns None for null, as a dict does.
  """

  def __init__(self, fields: Mapping[str, Any], name: str) -> None:
    """Checks the fields; `name` is the path of the file, for messages."""
    self._fields = dict(fields)
    self.name = name
    self.check(self._fields)

  def __getitem__(self, key: str) -> Any:
    if key not in self:
      raise self.error(f'lacks {key}')
    return self._fields[key]

  def __contains__(self, key: object) -> bool:
    return self._fields.get(str(key)) is not None

  def __iter__(self) -> Any:
    return iter(self._fields)

  def __len__(self) -> int:
    return len(self._fields)

  def get(self, key: str, default: Any = None) -> Any:
    """Returns a field, or the default if it is missing."""
    return self._fields.get(key, default)

  def check(self, fields: Mapping[str, Any]) -> None:
    """Raises an error unless all fields have the types in `_TYPES`."""
    for is_valid, description, keys in _TYPES:
      for key in keys.split():
        value = fields.get(key)
        if value is not None and not is_valid(value):
          raise self.error(f'has {key}={value!r}; it takes {description}')

  def error(self, text: str) -> errors.CheckpointError:
    """Returns an error about this file."""
    return errors.CheckpointError(f'{self.name} {text}')
