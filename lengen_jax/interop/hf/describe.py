"""Describes a ModelConfig as the config.json of a family."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

from lengen_jax import encodings, errors, specs
from lengen_jax.attention import scaling as logit_scales
from lengen_jax.interop.hf import families, rope
from lengen_jax.interop.hf.config_json import ConfigJson
from lengen_jax.interop.hf.family import Family
from lengen_jax.interop.hf.layer_types import CHUNKED, FULL, SLIDING
from lengen_jax.models import blocks
from lengen_jax.models.config import ModelConfig, PER_LAYER

# Special tokens, which are kept from another checkpoint.
_TOKENS = ('bos_token_id', 'eos_token_id', 'pad_token_id')
# Fields of ModelConfig that do not change the function.
_RUNTIME = {
  *('dropout_rate', 'dtype', 'implementation', 'bias_form'),
  *('scan_layers', 'remat'),
}
_FLOATS = {
  field.name
  for field in dataclasses.fields(ModelConfig)
  if float in getattr(field.type, '__args__', (field.type,))
}
_SIZES = {
  'vocab_size': 'vocab_size',
  'hidden_size': 'width',
  'intermediate_size': 'mlp_width',
  'num_hidden_layers': 'num_layers',
  'num_attention_heads': 'num_heads',
  'head_dim': 'head_dim',
}


def choose(
  config: ModelConfig, like: ConfigJson | None, max_length: int | None
) -> tuple[Family, dict[str, Any]]:
  """Returns the family that represents a model, and its config.json.

  Args:
    config: the ModelConfig.
    like: config.json of another checkpoint, whose family is preferred.
    max_length: see `checkpoint.save`.

  Raises:
    errors.CheckpointError: no family represents the model.
  """
  preferred = families_of(like)
  rest = [one for one in families.FAMILIES.values() if one not in preferred]
  closest: tuple[int, str] | None = None
  for family in preferred + rest:
    written = _config_json(family, config, like, max_length)
    different = _differences(family, config, written)
    if not different:
      return family, written
    found = len(different), f'{family.architecture} has {"; ".join(different)}'
    if closest is None or (not preferred and found[0] < closest[0]):
      closest = found
  raise errors.CheckpointError(
    f'no family of transformers represents this model: {closest[1]}; export '
    'without --format=hf'
  )


def _config_json(
  family: Family,
  config: ModelConfig,
  like: ConfigJson | None,
  max_length: int | None,
) -> dict[str, Any]:
  """Returns the config.json of the model of a family closest to a config."""
  written: dict[str, Any] = {
    'architectures': [family.architecture],
    'model_type': family.model_type,
    # The defaults of a family may be beyond the vocabulary.
    **{key: _token(like, key, config.vocab_size) for key in _TOKENS},
    **{key: getattr(config, field) for key, field in _SIZES.items()},
    **family.fixed,
    family.mlp_width: config.mlp_width,
    'num_key_value_heads': config.key_heads or config.num_heads,
    family.epsilon[0]: config.norm_epsilon,
  }
  for field, key in family.keys.items():
    value = getattr(config, field)
    if key.values is not None:
      # `_differences` reports a value that the family does not have.
      found = (k for k, v in key.values.items() if v == value)
      value = next(found, key.default)
    elif field in _FLOATS and value is not None:
      value = float(value)  # transformers refuses an integer.
    written[key.name] = value
  written |= _layers(family, config)
  longest = _longest(config, like, max_length)
  written['max_position_embeddings'] = longest
  written |= _before_version_5(family, written['rope_parameters'], longest)
  if written['head_dim'] is None:
    del written['head_dim']
  return written


def families_of(like: ConfigJson | None) -> list[Family]:
  """Returns a list of the family that represents a checkpoint, or [].

  A tokenizer may be that of a model that no family represents.
  """
  try:
    found = [] if like is None else [families.of(like)]
    for family in found:
      ModelConfig(**family.model_fields(like))
    return found
  except errors.LengenError:
    return []


def _token(
  like: ConfigJson | None, key: str, vocab_size: int
) -> int | list[int] | None:
  """Returns ids of a special token in `like` that the vocabulary has."""
  found = None if like is None else like.get(key)
  ids = [
    one
    for one in (found if isinstance(found, list) else [found])
    if isinstance(one, int) and 0 <= one < vocab_size
  ]
  if isinstance(found, list):
    return ids or None
  return ids[0] if ids else None


def _longest(
  config: ModelConfig, like: ConfigJson | None, max_length: int | None
) -> int:
  """Returns max_position_embeddings; see `checkpoint.save`."""
  rotations = [e for e in blocks.create_encodings(config) if _rotates(e)]
  dynamic = [one.train_length for one in rotations if one.dynamic]
  if dynamic:
    return dynamic[0]
  lengths = [n for n in map(rope.longest, rotations) if n is not None]
  # transformers divides it by the original length to get the factor.
  implied = bool(lengths)
  known = None if like is None else like.get('max_position_embeddings')
  if known is not None:
    theirs = [
      ModelConfig(**one.model_fields(like)) for one in families_of(like)
    ]
    if any(_all_canonical(one) == _all_canonical(config) for one in theirs):
      lengths = [known]
    lengths = lengths or [known]
  if max_length is not None and not implied:
    lengths.append(max_length)
  return max(lengths, default=2048)


def _layers(family: Family, config: ModelConfig) -> dict[str, Any]:
  """Returns the fields of config.json about layers."""
  layers, layer_encodings = config.layers, blocks.create_encodings(config)
  types = [
    CHUNKED if one.attention_chunk else SLIDING if one.window else FULL
    for one in layers
  ]
  windows = [one.window for one in layers if one.window is not None]
  written: dict[str, Any] = {}
  if 'sliding_window' in family.has:
    # With layer_types, transformers requires a window, used or not.
    unused = family.window if 'layer_types' in family.has else None
    written['sliding_window'] = windows[0] if windows else unused
  if 'use_sliding_window' in family.has:
    written['use_sliding_window'] = bool(windows)
  if 'layer_types' in family.has:
    written['layer_types'] = types
  if CHUNKED in types:
    written['attention_chunk_size'] = layers[
      types.index(CHUNKED)
    ].attention_chunk
  if 'no_rope_layers' in family.has:
    written['no_rope_layers'] = [int(_rotates(one)) for one in layer_encodings]
  # What `rope.write` leaves out is 1, which is not the default of every family.
  whole = {} if family.fraction == 1 else {'partial_rotary_factor': 1.0}
  by_type = {
    kind: whole | rope.write(encoding)
    for kind, encoding in zip(types, layer_encodings, strict=True)
    if _rotates(encoding)
  }
  default = {'rope_type': 'default', 'rope_theta': family.base}
  if family.rope_by_type:
    written['rope_parameters'] = by_type
  else:
    written['rope_parameters'] = next(iter(by_type.values()), default)
  parameters = written['rope_parameters']
  key = 'original_max_position_embeddings'
  # Version 4 has it there for all of longrope.
  beside = key in family.has or parameters.get('rope_type') == 'longrope'
  if beside and key in parameters:
    written[key] = parameters[key]
  if family.extra is not None:
    written |= family.extra.write(config)
  return written


def _before_version_5(
  family: Family, parameters: Mapping[str, Any], longest: int
) -> dict[str, Any]:
  """Returns what transformers 4 reads in place of `rope_parameters`.

  Without these fields, it would use the default base and no scaling. `longest`
  is max_position_embeddings.
  """
  older: dict[str, Any] = {}
  if family.rope_by_type:
    if SLIDING in parameters:
      older['rope_local_base_freq'] = parameters[SLIDING]['rope_theta']
    parameters = parameters.get(FULL, {})
    if not parameters:
      return older
  scaling = dict(parameters)
  base, fraction = family.keys_before_version_5
  older[base] = scaling.pop('rope_theta')
  if 'partial_rotary_factor' in scaling:
    older[fraction] = scaling.pop('partial_rotary_factor')
  if 'original_max_position_embeddings' in family.has and (
    scaling['rope_type'] == 'longrope'
    and 'attention_factor' not in scaling
    and _factor_follows(scaling, longest)
  ):
    # Phi-3 of version 4 raises an error for the other fields, and that of
    # version 5 reads these in place of rope_parameters.
    scaling = {k: scaling[k] for k in ('short_factor', 'long_factor')}
    scaling['type'] = 'longrope'
  if scaling != {'rope_type': 'default'}:
    older['rope_scaling'] = scaling
  return older


def _factor_follows(scaling: Mapping[str, Any], longest: int) -> bool:
  """Returns whether the factor is max_position_embeddings / original length."""
  ratio = longest / scaling['original_max_position_embeddings']
  return math.isclose(max(ratio, 1.0), scaling['factor'], rel_tol=1e-6)


def _differences(
  family: Family, config: ModelConfig, written: Mapping[str, Any]
) -> list[str]:
  """Returns how the model of a config.json differs from a config."""
  try:
    fields = family.model_fields(ConfigJson(written, family.architecture))
    found = ModelConfig(**fields)
    their_encodings = _all_canonical(found)
  except errors.LengenError as error:
    return [str(error).removeprefix(f'{family.architecture} has ')]
  different = []
  if family.divides_width and config.width % config.num_heads:
    different.append(
      f'a width that its heads divide; {config.num_heads} do not divide '
      f'{config.width}'
    )
  for field in dataclasses.fields(ModelConfig):
    name = field.name
    if name in _RUNTIME:
      continue
    mine, theirs = getattr(config, name), getattr(found, name)
    if name == 'encoding':
      mine, theirs = _all_canonical(config), their_encodings
    elif name == 'key_heads':
      mine, theirs = (c.key_heads or c.num_heads for c in (config, found))
    elif name == 'attention_scale':
      mine, theirs = map(_scales, (config, found))
    elif name in PER_LAYER:
      mine, theirs = (
        [getattr(layer, name) for layer in c.layers] for c in (config, found)
      )
    if mine != theirs:
      different.append(
        f'model.{name}={getattr(found, name)!r}, this model has '
        f'{getattr(config, name)!r}'
      )
  return different


def _rotates(encoding: encodings.Encoding) -> bool:
  """Returns whether an encoding is not NoPE."""
  return specs.name(encoding) != 'nope'


def _scales(config: ModelConfig) -> list[logit_scales.LogitScale]:
  """Returns the logit scale of each layer; those with equal keys are equal."""
  return [
    logit_scales.create(
      layer.attention_scale, num_heads=config.num_heads, parent=None
    )
    for layer in config.layers
  ]


def _all_canonical(config: ModelConfig) -> list[Any]:
  """Returns a value per layer, equal for encodings with equal angles."""

  def canonical(encoding: encodings.Encoding) -> Any:
    if not _rotates(encoding):
      return None
    written = rope.write(encoding)
    # transformers reads it from max_position_embeddings.
    length = encoding.train_length if encoding.dynamic else None
    return written, encoding.layout, length

  return [
    tuple(map(canonical, each)) for each in blocks.encodings_by_layer(config)
  ]
