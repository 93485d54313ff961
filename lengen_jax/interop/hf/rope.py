"""Rotary encodings in config.json: rope_parameters, and older rope_scaling."""

from collections.abc import Mapping
import math
from typing import Any

from lengen_jax import errors, specs
from lengen_jax.interop.hf.config_json import ConfigJson

# By rope_type: an encoding, and {key of its spec: field of rope_parameters}.
_TYPES: dict[str, tuple[str, dict[str, str]]] = {
  'default': ('rope', {}),
  'linear': ('rope', {'scale': 'factor'}),
  'dynamic': ('ntk', {'scale': 'factor'}),
  'proportional': ('rope', {'scale': 'factor'}),
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
# Encodings that transformers has; those with `dynamic` only as 'ntk'.
_WRITTEN = 'rope', 'ntk', 'yarn', 'llama3', 'longrope'
# Fields of old configs without an effect.
_IGNORED = {'finetuned'}


def read(
  config: ConfigJson,
  rope: Mapping[str, Any],
  *,
  base: float,
  fraction: float,
  original: int | None,
  layout: str,
  may_be_partial: bool,
) -> str:
  """Returns the spec of the encoding that rope_parameters describe.

  Args:
    config: the config.json.
    rope: its rope_parameters, or those of a type of layer.
    base: rope_theta if they do not contain it.
    fraction: partial_rotary_factor if they do not contain it.
    original: original_max_position_embeddings, which precedes theirs; None for
      theirs.
    layout: see `encodings.rotary.Rope`.
    may_be_partial: whether the family can rotate a part of each head.

  Raises:
    errors.CheckpointError: a field is missing, unknown or invalid.
  """
  rope = {k: v for k, v in rope.items() if v is not None}
  config.check(rope)
  rope_type = type_of(rope)
  rope.pop('rope_type', None)
  rope.pop('type', None)
  if rope_type not in _TYPES:
    raise config.error(
      f'has rope_type={rope_type!r}; supported are {", ".join(_TYPES)}'
    )
  longest = config['max_position_embeddings']
  theirs = rope.pop('original_max_position_embeddings', None)
  original = original or theirs or longest
  name, keys = _TYPES[rope_type]
  values: dict[str, Any] = {'base': float(rope.pop('rope_theta', base))}
  fraction = rope.pop('partial_rotary_factor', fraction)
  if rope_type in ('yarn', 'longrope') and 'factor' not in rope:
    rope['factor'] = longest / original
  if rope_type == 'proportional':
    values['proportional'] = True
    rope.setdefault('factor', 1.0)
  if rope_type == 'default':
    rope.pop('factor', None)
  for key, field in keys.items():
    if field not in rope:
      raise config.error(f'has rope_type={rope_type!r} without {field}')
    value = rope.pop(field)
    values[key] = tuple(value) if isinstance(value, list) else float(value)
  if rope_type == 'dynamic':
    values |= {'train_length': longest, 'dynamic': True}
  elif rope_type in ('llama3', 'yarn', 'longrope'):
    values['train_length'] = original
  if rope_type == 'yarn':
    values['beta_fast'] = float(rope.pop('beta_fast', 32))
    values['beta_slow'] = float(rope.pop('beta_slow', 1))
    if not rope.pop('truncate', True):
      values['truncate'] = False
  values |= _magnitude(rope_type, rope, values)
  if fraction != 1:
    if rope_type != 'proportional' and not may_be_partial:
      raise config.error(
        f'has partial_rotary_factor={fraction!r} with rope_type={rope_type!r}, '
        'which is not supported'
      )
    values['fraction'] = fraction
  if layout != 'half':
    values['layout'] = layout
  for key in _IGNORED:
    rope.pop(key, None)
  for key, value in rope.items():
    raise config.error(
      f'has {key}={value!r} with rope_type={rope_type!r}, which is not '
      'supported'
    )
  return f'{name}({", ".join(f"{k}={v!r}" for k, v in values.items())})'


def type_of(rope: Mapping[str, Any]) -> str:
  """Returns the rope_type of rope_parameters or of rope_scaling."""
  found = str(rope.get('rope_type') or rope.get('type') or 'default')
  return 'longrope' if found == 'su' else found  # Its former name.


def write(encoding: Any) -> dict[str, Any]:
  """Returns the rope_parameters of an encoding.

  Args:
    encoding: an `encodings.rotary.Rope` of any class.

  Raises:
    errors.CheckpointError: transformers has no such rotation.
  """
  name = specs.name(encoding)
  if (
    name not in _WRITTEN
    or (encoding.dynamic and name != 'ntk')
    or (encoding.proportional and name != 'rope')
  ):
    raise errors.CheckpointError(
      f'transformers has no encoding like {specs.describe(encoding)}; export '
      'without --format=hf, or finetune with one that it has: '
      f'{", ".join(_WRITTEN)}'
    )
  written: dict[str, Any] = {'rope_theta': float(encoding.base)}
  if name == 'ntk' and not encoding.dynamic:
    # The same angles as those of a larger base.
    dim = encoding.rotary_dim
    written['rope_theta'] *= encoding.scale ** (dim / (dim - 2))
    rope_type = 'default'
  elif name == 'ntk':
    rope_type = 'dynamic'
  elif name != 'rope':
    rope_type = name
    written['original_max_position_embeddings'] = encoding.train_length
  elif encoding.proportional:
    rope_type = 'proportional'
  else:
    rope_type = 'default' if encoding.scale == 1 else 'linear'
  written['rope_type'] = rope_type
  for key, field in _TYPES[rope_type][1].items():
    value = getattr(encoding, key)
    written[field] = list(value) if isinstance(value, tuple) else value
  if rope_type == 'yarn':
    written |= {
      'beta_fast': encoding.beta_fast,
      'beta_slow': encoding.beta_slow,
      'truncate': encoding.truncate,
    }
  if getattr(encoding, 'magnitude_factor', None) is not None:
    written['attention_factor'] = float(encoding.magnitude_factor)
  if encoding.fraction != 1:
    written['partial_rotary_factor'] = encoding.fraction
  return written


def longest(encoding: Any) -> int | None:
  """Returns the length in tokens that an encoding's settings imply, or None."""
  if specs.name(encoding) in ('llama3', 'yarn', 'longrope'):
    return round(encoding.train_length * encoding.scale)
  return None


def _magnitude(
  rope_type: str, rope: dict[str, Any], values: Mapping[str, Any]
) -> dict[str, float]:
  """Takes the factor of queries and keys out of rope_parameters.

  Returns {} if it is that of the formula.
  """
  if rope_type not in ('yarn', 'longrope'):
    return {}
  scale = values['scale']

  def factor(mscale: float) -> float:
    return 0.1 * mscale * math.log(scale) + 1 if scale > 1 else 1.0

  found = rope.pop('attention_factor', None)
  if rope_type == 'longrope':
    growth = math.log(max(scale, 1)) / math.log(values['train_length'])
    formula = math.sqrt(1 + growth)
  else:
    formula = factor(1)
    above, below = rope.pop('mscale', None), rope.pop('mscale_all_dim', None)
    if found is None and above and below:
      found = factor(above) / factor(below)
  if found is None or math.isclose(found, formula, rel_tol=1e-6):
    return {}
  return {'magnitude_factor': float(found)}
