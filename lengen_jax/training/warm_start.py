"""Initialises a model from a trained one with another position encoding."""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import re
from typing import Any

from flax import traverse_util
import jax
import numpy as np

from lengen_jax import encodings, errors, specs
from lengen_jax.attention import scaling
from lengen_jax.encodings import convert, fire
from lengen_jax.models import blocks, stacking
from lengen_jax.models.config import ModelConfig, PER_LAYER
from lengen_jax.training import groups
from lengen_jax.types import Params

_SIDE = '(?P<side>encoder/|decoder/)?'
_IN_OPTION = re.compile(
  rf'{_SIDE}layer_(?P<layer>\d+)/attention/(?P<option>{"|".join(groups.OPTIONS)})\b'
)
_IN_ENCODING = re.compile(_SIDE + r'(layer_\d+/attention/)?encoding(_\d+)?/')
# Fields of ModelConfig that determine the arrays outside encodings and options.
_SIZES = (
  *('architecture', 'vocab_size', 'num_layers', 'num_heads', 'key_heads'),
  *('head_dim', 'width', 'mlp_width', 'mlp_bias', 'activation', 'norm'),
  *('norm_placement', 'parallel_residual', 'output_size', 'tied_embedding'),
  *('num_experts', 'attention_bias'),
)
# Fields that change the function computed from the same arrays.
_FUNCTION = (
  *('architecture', 'activation', 'norm_epsilon', 'scaled_embedding'),
  'scaled_logits',
  *('logit_cap', 'output_logit_cap', 'output_gate', 'parallel_residual'),
  *('experts_per_token', 'norm'),
)
# Such fields of a layer; encodings have their own notes.
_FUNCTION_OF_LAYER = tuple(field for field in PER_LAYER if field != 'encoding')

# Arrays by path, for example 'layer_0/mlp/up/kernel'.
_Flat = dict[str, jax.Array]


def adopt(
  params: Params,
  config: ModelConfig,
  source_params: Params,
  source_config: ModelConfig,
  *,
  max_length: int,
  rng: jax.Array,
) -> tuple[Params, list[str]]:
  """Loads a trained model's parameters into one with another encoding.

  All base arrays (see `groups`) are loaded; their shapes must match. LoRA
  kernels of the source are merged into the kernels beside them, unless both
  models have the same `lora_rank` and `lora_alpha`.

  Encodings are matched layer by layer. An encoding of the same class and shapes
  is loaded even if its settings or the layers that share it differ. A FIRE
  encoding that replaces another additive bias is fitted to this bias. An
  encoding that several layers share is not loaded if these layers have
  different encodings in the source. Arrays that are neither loaded nor fitted
  keep their values in `params`.

  Args:
    params: initial parameters of the model; those of the base may be
      ShapeDtypeStructs, since all of them are loaded.
    config: its ModelConfig.
    source_params: parameters of the trained model, layers stacked or not.
    source_config: its ModelConfig.
    max_length: FIRE is fitted at positions below this, in tokens.
    rng: key of `jax.random`, for fitting.

  Returns:
    (params, notes): new parameters, layers stacked as `config` says, and lines
    that list what was loaded, fitted, initialised and ignored, and how else the
    models differ. Arrays that are loaded and not stacked are those of the
    source.

  Raises:
    errors.CheckpointError: an array of the base differs in shape or is missing
      in one model.
  """
  mine, theirs = ((c.lora_rank, c.lora_alpha) for c in (config, source_config))
  lora = []
  if mine != theirs:
    source_params, source_config = stacking.merge_lora(
      source_params, source_config
    )
    lora += ['LoRA of the source merged'] * (theirs[0] is not None)
    lora += [f'LoRA of rank {mine[0]} initialised'] * (mine[0] is not None)
  new = traverse_util.flatten_dict(stacking.unstack(params), sep='/')
  old = traverse_util.flatten_dict(stacking.unstack(source_params), sep='/')
  _check_match(new, config, old, source_config)
  taken = {
    path: old[path]
    for path, leaf in new.items()
    if not _IN_ENCODING.match(path)
    and path in old
    and old[path].shape == leaf.shape
  }
  loaded, notes, fitted = len(taken), _Notes(), _Fitted(max_length, rng)
  two_sided = config.architecture == 'encoder_decoder'
  for side in ('encoder/', 'decoder/') if two_sided else ('',):
    for part in _parts(config, source_config):
      target = _slots(config, side, new, part)
      source = _slots(source_config, side, old, part)
      arrays, count = _take_encodings(side, target, source, fitted, notes)
      taken |= arrays
      loaded += count
  for paths, of_layer, text in (
    (new, config.layers, 'initialised'),
    (old, source_config.layers, 'of the source ignored'),
  ):
    for path in paths:
      option = _IN_OPTION.match(path)
      if option and path not in taken:
        i, name = int(option['layer']), groups.OPTIONS[option['option']]
        if option['option'] == 'attention_scale':
          name += f' {of_layer[i].attention_scale}'
        if option['option'] == 'positions':
          name += f' {of_layer[i].contextual_positions}'
        notes.add(option['side'] or '', [i], f'{name} {text}')
  pairs = zip(config.layers, source_config.layers, strict=True)
  for i, (mine, theirs) in enumerate(pairs):
    for field in _FUNCTION_OF_LAYER:
      a, b = getattr(mine, field), getattr(theirs, field)
      if a != b and not (field == 'attention_scale' and _noted(a, b, config)):
        text = f'model.{field}={a!r}, and {b!r} in the source'
        notes.add('', [i], text)
  others = [
    f'model.{field}={getattr(config, field)!r}, and '
    f'{getattr(source_config, field)!r} in the source'
    for field in _FUNCTION
    if getattr(config, field) != getattr(source_config, field)
  ]
  adopted = traverse_util.unflatten_dict(
    {path: taken.get(path, leaf) for path, leaf in new.items()}, sep='/'
  )
  if config.scan_layers:
    adopted = stacking.stack(adopted, config)
  found = f'loaded {loaded} of {len(new)} arrays'
  lines = [found, *lora, *notes.lines(), *others]
  return adopted, lines


def _noted(scale: str, source_scale: str, config: ModelConfig) -> bool:
  """Returns whether two logit scales are equal or notes name a parameter."""
  a, b = (
    scaling.create(one, num_heads=config.num_heads, parent=None)
    for one in (scale, source_scale)
  )
  return a == b or {a.parameters, b.parameters} != {'none'}


def _take_encodings(
  side: str,
  slots: Sequence['_Slot'],
  sources: Sequence['_Slot'],
  fitted: '_Fitted',
  notes: '_Notes',
) -> tuple[_Flat, int]:
  """Returns the arrays for the encodings of one side, and how many are loaded.

  `slots` and `sources` are the encodings of each layer of the model and of the
  source. Encodings that are not simply loaded are added to `notes`.
  """
  taken: _Flat = {}
  loaded, unused = 0, set(sources)
  for slot in dict.fromkeys(slots):
    replaced = [sources[i] for i in slot.layers]
    arrays, text, error = _fill(slot, replaced, fitted)
    taken |= {slot.path + name: leaf for name, leaf in arrays.items()}
    notes.add(side, slot.layers, text, error)
    if arrays:
      unused -= {*replaced}
      loaded += len(arrays) if error is None else 0
  for slot in dict.fromkeys(sources):
    if slot in unused and slot.params:
      notes.add(side, slot.layers, f'{slot.spec} of the source ignored')
  return taken, loaded


def _check_match(
  new: _Flat, config: ModelConfig, old: _Flat, source_config: ModelConfig
) -> None:
  """Raises if the models differ in arrays of the base; see `groups`."""

  def shape(params: _Flat, path: str) -> str:
    return str(params[path].shape) if path in params else 'missing'

  def natural(path: str) -> list[Any]:
    return [int(x) if x.isdigit() else x for x in re.split(r'(\d+)', path)]

  different = [
    path
    for path in {*new, *old}
    if not groups.is_added(tuple(path.split('/')))
    and shape(new, path) != shape(old, path)
  ]
  if not different:
    return
  path = min(different, key=natural)
  changes = [
    f'model.{field}={getattr(source_config, field)!r} instead of '
    f'{getattr(config, field)!r}'
    for field in _SIZES
    if getattr(source_config, field) != getattr(config, field)
  ]
  raise errors.CheckpointError(
    f'cannot load {path}: {shape(old, path)} in the source, '
    f'{shape(new, path)} here; '
    + (
      f'set {", ".join(changes)}'
      if changes
      else 'the parameters of one model do not match its config'
    )
  )


@dataclasses.dataclass(frozen=True, eq=False)
class _Slot:
  """One instance of an encoding in a model.

  Attributes:
    spec: its spec in the config.
    encoding: unbound Encoding, not shared.
    path: prefix of its parameters.
    params: its arrays, by the rest of their paths.
    bidirectional: whether keys after the query are visible.
    layers: indices of the layers that use it.
  """

  spec: str
  encoding: encodings.Encoding
  path: str
  params: _Flat
  bidirectional: bool
  layers: list[int]

  @functools.cached_property
  def value(self) -> tuple[Any, ...]:
    """Hashable value of the encoding and its parameters."""
    leaves = sorted(self.params.items())
    return self.encoding, tuple(
      (name, np.asarray(leaf).tobytes()) for name, leaf in leaves
    )

  @property
  def shapes(self) -> tuple[Any, ...]:
    """Class of the encoding and shapes of its parameters."""
    shapes = {name: leaf.shape for name, leaf in self.params.items()}
    return type(self.encoding), shapes

  def bias_fn(self) -> encodings.BiasFn | None:
    """Returns the additive bias, or None."""
    params = traverse_util.unflatten_dict(self.params, sep='/')
    bound = self.encoding.bind({'params': params})
    return bound.bias_fn(bidirectional=self.bidirectional)


def _parts(*configs: ModelConfig) -> tuple[str, ...]:
  """Returns the parts of layers whose encodings are matched one by one.

  Unless a model has encodings of two parts, a layer has one encoding.
  """
  layers = [layer for config in configs for layer in config.layers]
  two = any(len(specs.parts(layer.encoding)) == 2 for layer in layers)
  return ('input', 'attention') if two else ('layer',)


def _slots(
  config: ModelConfig, side: str, flat: _Flat, part: str
) -> list[_Slot]:
  """Returns the _Slot of each layer; layers that share one have the same.

  `part` is 'layer' for the encoding of the layer, or else 'input' or
  'attention' for the one that acts there.
  """
  owned = {e: name for name, e in blocks.owned_encodings(config).items()}
  slots: list[_Slot] = []
  by_path: dict[str, _Slot] = {}
  for i, both in enumerate(blocks.encodings_by_layer(config)):
    n = 0 if part == 'input' else -1
    spec, encoding = specs.parts(config.layers[i].encoding)[n], both[n]
    if part != 'layer' and encoding.embeds != (part == 'input'):
      spec = 'nope'
      encoding = encodings.create(
        spec, num_heads=config.num_heads, head_dim=config.head_dim, parent=None
      )
    # At the input, nope has a path of its own, and no arrays.
    own = 'input' if part == 'input' else f'layer_{i}/attention/encoding'
    path = owned.get(encoding, own)
    path = f'{side}{path}/'
    if path not in by_path:
      by_path[path] = _Slot(
        spec,
        encoding.clone(parent=None, name=None, shared=False),
        path,
        {
          name.removeprefix(path): leaf
          for name, leaf in flat.items()
          if name.startswith(path)
        },
        side == 'encoder/' or config.architecture == 'encoder',
        [],
      )
    by_path[path].layers.append(i)
    slots.append(by_path[path])
  return slots


def _fill(
  slot: _Slot, sources: Sequence[_Slot], fitted: '_Fitted'
) -> tuple[_Flat, str, float | None]:
  """Loads or fits the parameters of one encoding.

  `sources` are the encodings of its layers in the source. Returns (arrays by
  name, a note or '', the relative error of a fit or None).
  """
  source = sources[0]
  names = ', '.join(dict.fromkeys(source.spec for source in sources))
  text = f'{slot.spec} in place of {names}'
  if len({source.value for source in sources}) > 1:
    text = f'{slot.spec} in place of several ({names})'
  elif slot.shapes == source.shapes:
    if slot.encoding == source.encoding:
      return source.params, '', None
    if slot.params:
      return source.params, f'{text}, same arrays', None
  elif isinstance(slot.encoding, fire.Fire) and source.bias_fn() is not None:
    params, error = fitted(slot.encoding, source)
    text = f'{slot.spec} fitted to {names} up to length {fitted.max_length}'
    if slot.bidirectional:
      text += ' at keys up to the query'
    return params, text, error
  rest = 'initialised' if slot.params else 'nothing to load'
  return {}, f'{text}, {rest}', None


class _Fitted:
  """FIREs fitted to other biases; equal fits are computed once.

  Attributes:
    max_length: see `adopt`.
  """

  def __init__(self, max_length: int, rng: jax.Array) -> None:
    self.max_length = max_length
    self._rng = rng
    self._fits: dict[Any, tuple[_Flat, float]] = {}

  def __call__(self, encoding: fire.Fire, source: _Slot) -> tuple[_Flat, float]:
    """Fits an unbound FIRE to the bias of `source`.

    Returns:
      (arrays by name, root mean square error relative to the largest bias).
    """
    key = encoding, source.value, source.bidirectional
    if key not in self._fits:
      fit = convert.fit_fire(
        source.bias_fn(),
        encoding,
        max_length=self.max_length,
        rng=jax.random.fold_in(self._rng, len(self._fits)),
      )
      params = traverse_util.flatten_dict(fit.params, sep='/')
      self._fits[key] = params, fit.rms_error / (fit.scale or 1.0)
    return self._fits[key]


class _Notes:
  """Notes about layers; layers with the same note share a line."""

  def __init__(self) -> None:
    self._found: dict[tuple[str, str], tuple[list[int], list[float]]] = {}

  def add(
    self,
    side: str,
    layers: Iterable[int],
    text: str,
    error: float | None = None,
  ) -> None:
    """Adds a note about some layers; ignores an empty one."""
    if text:
      numbers, relative = self._found.setdefault((side, text), ([], []))
      numbers += layers
      relative += [] if error is None else [error]

  def lines(self) -> list[str]:
    """Returns the lines in the order of their first note."""
    lines = []
    for (side, text), (layers, relative) in self._found.items():
      where = f'{side} '.replace('/', '').lstrip() + _numbered(layers)
      if relative:
        text += f', rms error {max(relative):.2%} of the largest bias'
      lines.append(f'{where}: {text}')
    return lines


def _numbered(layers: Iterable[int]) -> str:
  """Formats the layers 0, 1, 2, 5, in any order, as 'layers 0-2, 5'."""
  layers = sorted(set(layers))
  ranges: list[list[int]] = []
  for layer in layers:
    if ranges and ranges[-1][1] == layer - 1:
      ranges[-1][1] = layer
    else:
      ranges.append([layer, layer])
  text = ', '.join(str(a) if a == b else f'{a}-{b}' for a, b in ranges)
  return f'layers {text}' if len(layers) > 1 else f'layer {text}'
