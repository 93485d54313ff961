"""An architecture of transformers: its config.json and its tensors.

Does not import jax.
"""

from collections.abc import Callable, Mapping, Sequence, Set
import dataclasses
from typing import Any

from lengen_jax.interop.hf import layer_types, layouts, names, rope
from lengen_jax.interop.hf.config_json import ConfigJson
from lengen_jax.interop.hf.extras import Extra
from lengen_jax.interop.hf.layer_types import CHUNKED, FULL, SLIDING


@dataclasses.dataclass(frozen=True)
class Key:
  """A field of config.json that is a field of ModelConfig.

  Attributes:
    name: field of config.json.
    default: its value if it is missing.
    values: maps values in config.json to values of the ModelConfig field; None
      if they are equal.
  """

  name: str
  default: Any
  values: Mapping[Any, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Family:
  """An architecture of transformers.

  Attributes:
    architecture: name of its class.
    model_type: `model_type` in config.json.
    fields: fields of ModelConfig that all its models have.
    keys: fields of config.json by field of ModelConfig, in addition to sizes.
    fixed: fields of config.json with a single supported value.
    head_dim: default head_dim; None for hidden_size / num_attention_heads.
    epsilon: name and default of the epsilon of norms.
    mlp_width: field of config.json.
    layer_types: returns the type of attention of each layer.
    has: the fields that config.json may contain, of 'layer_types',
      'sliding_window', 'use_sliding_window', 'no_rope_layers',
      'partial_rotary_factor' and 'original_max_position_embeddings'.
    window: default sliding_window.
    chunk: default attention_chunk_size; None if layers have no chunks.
    base: default rope_theta.
    default_rope: default rope_parameters.
    original: default original_max_position_embeddings; None for that of
      rope_parameters.
    fraction: default partial_rotary_factor.
    keys_before_version_5: names of rope_theta and partial_rotary_factor in a
      config.json of transformers 4.
    rope_types: values of rope_type that its code reads; None for all.
    layout: see `encodings.rotary.Rope`.
    rope_by_type: whether layers of different types have different
      rope_parameters.
    divides_width: whether num_attention_heads must divide hidden_size.
    extra: reads and writes fields of config.json that no other entry covers;
      None if there are none.
    layer: names of tensors in a layer by path of the parameter. Parameters with
      equal names are joined in this tensor.
    layout_of: layouts of joined tensors by a substring of their name.
    model: names of other tensors by path.
    prefix: start of the names of tensors in layers.
  """

  architecture: str
  model_type: str
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  keys: Mapping[str, Key] = dataclasses.field(default_factory=dict)
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  head_dim: int | None = None
  epsilon: tuple[str, float] = ('rms_norm_eps', 1e-6)
  mlp_width: str = 'intermediate_size'
  layer_types: Callable[[ConfigJson], list[str]] = layer_types.all_full
  has: Set[str] = frozenset()
  window: int | None = None
  chunk: int | None = None
  base: float = 10000.0
  default_rope: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  original: int | None = None
  fraction: float = 1.0
  keys_before_version_5: tuple[str, str] = (
    'rope_theta',
    'partial_rotary_factor',
  )
  rope_types: Set[str] | None = None
  layout: str = 'half'
  rope_by_type: bool = False
  divides_width: bool = False
  extra: Extra | None = None
  layer: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: names.PRE_NORMS | names.ATTENTION | names.MLP
  )
  layout_of: Mapping[str, str] = dataclasses.field(default_factory=dict)
  model: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: names.MODEL
  )
  prefix: str = 'model.layers'

  def model_fields(self, config: ConfigJson) -> dict[str, Any]:
    """Returns the fields of the ModelConfig that a config.json describes.

    Raises:
      errors.CheckpointError: no ModelConfig represents the model exactly.
    """
    always = {'quantization_config': None, 'is_causal': True}
    for key, supported in {**self.fixed, **always}.items():
      found = config.get(key)
      if found is not None and found != supported:
        raise config.error(
          f'has {key}={found!r}; only {supported!r} is supported'
        )
    width, heads = config['hidden_size'], config['num_attention_heads']
    key_heads = config.get('num_key_value_heads') or heads
    fields: dict[str, Any] = {
      'vocab_size': config['vocab_size'],
      'num_layers': config['num_hidden_layers'],
      'num_heads': heads,
      'head_dim': config.get('head_dim') or self.head_dim or width // heads,
      'key_heads': None if key_heads == heads else key_heads,
      'width': width,
      'mlp_width': config[self.mlp_width],
      'norm': 'rms',
      'norm_epsilon': config.get(self.epsilon[0]) or self.epsilon[1],
      'scaled_embedding': False,
    }
    for field, key in self.keys.items():
      value = config.get(key.name, key.default)
      if key.values is not None and value not in key.values:
        known = ', '.join(map(repr, key.values))
        raise config.error(f'has {key.name}={value!r}; supported are {known}')
      fields[field] = value if key.values is None else key.values[value]
    layers = self._layer_fields(config, fields['head_dim'])
    return fields | {**self.fields, **{k: _cycle(v) for k, v in layers.items()}}

  def _layer_fields(
    self, config: ConfigJson, head_dim: int
  ) -> dict[str, list[Any]]:
    """Returns the fields that may differ between layers, a value per layer."""
    types = self.layer_types(config)
    for one in types:
      if one not in (FULL, SLIDING, CHUNKED):
        raise config.error(f'has layer type {one!r}, which is not supported')
    window = config.get('sliding_window', self.window)
    rotates = [True] * len(types)
    if 'no_rope_layers' in self.has:
      rotates = layer_types.rotates(config)
    specs = {one: self._rope(config, one) for one in dict.fromkeys(types)}
    layers: dict[str, list[Any]] = {
      'encoding': [
        specs[one] if rotated else 'nope'
        for one, rotated in zip(types, rotates, strict=True)
      ],
      'window': [window if one == SLIDING else None for one in types],
    }
    if self.chunk is not None:
      chunk = config.get('attention_chunk_size', self.chunk)
      layers['attention_chunk'] = [
        chunk if one == CHUNKED else None for one in types
      ]
    if self.extra is not None:
      layers |= self.extra.read(config, head_dim)
    return layers

  def _rope(self, config: ConfigJson, layer_type: str) -> str:
    """Returns the spec of the encoding of a type of layer."""
    # New configs have rope_parameters, old ones rope_theta and rope_scaling.
    parameters = config.get('rope_parameters') or {}
    scaling = config.get('rope_scaling') or {}
    meant = (
      parameters.get(FULL, parameters) if self.rope_by_type else parameters
    )
    if meant and scaling and not _agree(meant, scaling):
      raise config.error(
        'has both rope_parameters and rope_scaling, and they differ; keep the '
        'one that is meant'
      )
    base = config.get('rope_theta') or config.get('rotary_emb_base')
    base = base or self.base
    original = config.get('original_max_position_embeddings') or self.original
    if self.rope_by_type:
      if any(isinstance(one, dict) for one in parameters.values()):
        # transformers reads the original length from these parameters only.
        parameters, original = parameters.get(layer_type) or {}, None
      elif parameters:
        raise config.error(
          'has rope_parameters without types of layers; write them as '
          f'{{{FULL!r}: ..., {SLIDING!r}: ...}}'
        )
      elif layer_type == FULL:
        parameters = parameters or scaling
      if layer_type != FULL:
        base = config.get('rope_local_base_freq') or 10000.0
    else:
      parameters = parameters or scaling
      if any(isinstance(one, dict) for one in parameters.values()):
        raise config.error('has other rope_parameters for other layers')
    if not isinstance(parameters, dict):
      raise config.error(
        f'has rope_parameters={{{layer_type!r}: {parameters!r}}}; it takes an '
        'object'
      )
    if self.rope_by_type and parameters.get('truncate') is False:
      raise config.error('has truncate=False, which transformers does not read')
    parameters = parameters or self.default_rope
    rope_type = rope.type_of(parameters)
    if self.rope_types is not None and rope_type not in self.rope_types:
      raise config.error(
        f'has rope_type={rope_type!r}; this architecture has '
        f'{" and ".join(sorted(self.rope_types))}'
      )
    fraction = config.get('partial_rotary_factor') or config.get('rotary_pct')
    fraction = fraction or self.fraction
    return rope.read(
      config,
      parameters,
      base=base,
      fraction=fraction,
      original=original,
      layout=self.layout,
      may_be_partial='partial_rotary_factor' in self.has,
    )

  def entries(
    self, shapes: Mapping[str, tuple[int, ...]]
  ) -> dict[str, layouts.Entry]:
    """Returns the tensors of a model by name.

    Args:
      shapes: shapes of the parameters by path, layers unstacked.
    """
    held: dict[str, list[str]] = {}
    for path in sorted(shapes, key=self._order):
      held.setdefault(self._tensor(path), []).append(path)
    return {
      name: layouts.Entry(
        tuple(paths),
        tuple(tuple(shapes[path]) for path in paths),
        next((v for k, v in self.layout_of.items() if k in name), 'joined'),
      )
      for name, paths in held.items()
    }

  def _order(self, path: str) -> tuple[int, int]:
    """Returns the layer of a parameter, and its place in the table."""
    layer, _, rest = path.partition('/')
    if not layer.startswith('layer_'):
      return -1, list(self.model).index(path)
    return int(layer.removeprefix('layer_')), list(self.layer).index(rest)

  def _tensor(self, path: str) -> str:
    """Returns the name of the tensor that holds a parameter."""
    layer, _, rest = path.partition('/')
    if not layer.startswith('layer_'):
      return self.model[path]
    number = layer.removeprefix('layer_')
    return f'{self.prefix}.{number}.{self.layer[rest]}'


def _agree(parameters: Any, scaling: Mapping[str, Any]) -> bool:
  """Returns whether rope_parameters contain what rope_scaling has."""
  return (
    isinstance(parameters, dict)
    and rope.type_of(parameters) == rope.type_of(scaling)
    and all(
      parameters.get(key) == value
      for key, value in scaling.items()
      if key not in ('type', 'rope_type')
    )
  )


def _cycle(values: Sequence[Any]) -> Any:
  """Returns the shortest cycle of the values of layers.

  It is one value, strings or Nones joined by commas, or a tuple.
  """
  for period in range(1, len(values) + 1):
    if all(values[i] == values[i % period] for i in range(len(values))):
      break
  if period == 1:
    return values[0]
  if {str} <= {type(value) for value in values} <= {str, type(None)}:
    return ', '.join(map(str, values[:period]))
  return tuple(values[:period])
