"""Swapping the encoding of a trained model: what to load and what to fit."""

import dataclasses
import functools
import re

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax.encodings import convert
from lengen_jax.encodings import fire
from lengen_jax.hints import Params
from lengen_jax.models import blocks
from lengen_jax.models import stacking
from lengen_jax.models.config import ModelConfig

_SIDE = '(?P<side>encoder/|decoder/)?'
_IN_SCALE = re.compile(
  _SIDE + r'layer_(?P<layer>\d+)/attention/attention_scale/'
)
_IN_ENCODING = re.compile(_SIDE + r'(layer_\d+/attention/)?encoding(_\d+)?/')
# Of a ModelConfig, what decides which arrays there are besides those.
_SIZES = (
  'architecture',
  'vocab_size',
  'num_layers',
  'num_heads',
  'key_heads',
  'head_dim',
  'width',
  'mlp_width',
  'mlp_bias',
  'activation',
  'norm',
  'norm_placement',
  'output_size',
  'tied_embedding',
)
# And what makes another function of the same arrays.
_FUNCTION = (
  'activation',
  'norm_epsilon',
  'scaled_embedding',
  'scaled_logits',
  'window',
  'sinks',
)


def adopt(
  params: Params,
  config: ModelConfig,
  source_params: Params,
  source_config: ModelConfig,
  *,
  max_length: int,
  rng: jax.Array,
) -> tuple[Params, list[str]]:
  """Takes a trained model's parameters over into one of another encoding.

  Everything outside encodings and logit scales is loaded and must match.
  Encodings go layer by layer: one of the same class whose parameters have the
  same shapes is loaded, whatever its other settings and whether or not it is
  shared by the layers; a FIRE in place of another additive bias is fitted to
  that bias. One that is shared by layers which differ in the source has nothing
  to load. Whatever is not loaded or fitted keeps its value in `params`.

  Args:
    params: initial parameters of the model, as `config` has them.
    config: its ModelConfig.
    source_params: parameters of the trained model, layers stacked or not.
    source_config: its ModelConfig.
    max_length: positions below this, in tokens, are those that a FIRE is
      fitted at.
    rng: a key of `jax.random`, for fitting.

  Returns:
    (params, notes): parameters as `config` has them, in memory of their own,
    and lines that say what was loaded, converted, initialised and left behind,
    and in what else the models differ.

  Raises:
    errors.CheckpointError: an array outside encodings and logit scales differs
      in shape or is missing on one side.
  """
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
  loaded = len(taken)
  notes, fitted = _Notes(), _Fitted(max_length, rng)
  two_sided = config.architecture == 'encoder_decoder'
  for side in ('encoder/', 'decoder/') if two_sided else ('',):
    there = _slots(source_config, side, old)
    left = set(there)
    for slot in dict.fromkeys(_slots(config, side, new)):
      sources = [there[i] for i in slot.layers]
      found, text, error = _fill(slot, sources, fitted)
      taken |= {slot.path + name: leaf for name, leaf in found.items()}
      notes.add(side, slot.layers, text, error)
      if found:
        left -= {*sources}
        loaded += len(found) if error is None else 0
    for slot in dict.fromkeys(there):
      if slot in left and slot.params:
        notes.add(side, slot.layers, f'{slot.spec} of the source left behind')
  for paths, text in (
    (new, f'logit scale {config.attention_scale} initialised anew'),
    (old, f'logit scale {source_config.attention_scale} left behind'),
  ):
    for path in paths:
      scale = _IN_SCALE.match(path)
      if scale and path not in taken:
        notes.add(scale['side'] or '', [int(scale['layer'])], text)
  others = [
    f'model.{field}={getattr(config, field)!r}, and '
    f'{getattr(source_config, field)!r} in the source'
    for field in _FUNCTION
    if getattr(config, field) != getattr(source_config, field)
  ]
  adopted = traverse_util.unflatten_dict(
    {path: jnp.array(taken.get(path, leaf)) for path, leaf in new.items()},
    sep='/',
  )
  if config.scan_layers:
    adopted = stacking.stack(adopted, config)
  lines = [f'loaded {loaded} of {len(new)} arrays', *notes.lines(), *others]
  return adopted, lines


def _check_match(new, config, old, source_config):
  """Raises where the models differ in more than encodings and scales."""

  def shape(params, path):
    return str(params[path].shape) if path in params else 'missing'

  def natural(path):
    return [int(x) if x.isdigit() else x for x in re.split(r'(\d+)', path)]

  strange = [
    path
    for path in {*new, *old}
    if not (_IN_ENCODING.match(path) or _IN_SCALE.match(path))
    and shape(new, path) != shape(old, path)
  ]
  if not strange:
    return
  path = min(strange, key=natural)
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
      else 'one of them is not of its config'
    )
  )


@dataclasses.dataclass(frozen=True, eq=False)
class _Slot:
  """One instance of an encoding in a model.

  Attributes:
    spec: as the config has it.
    encoding: unbound, as one layer's own.
    path: where its parameters are.
    params: dict of arrays by the rest of their paths.
    bidirectional: whether keys after the query are visible.
    layers: which layers it serves.
  """

  spec: str
  encoding: encodings.Encoding
  path: str
  params: dict
  bidirectional: bool
  layers: list

  @functools.cached_property
  def value(self):
    """Encoding and parameters, compared by value."""
    leaves = sorted(self.params.items())
    leaves = tuple((k, np.asarray(leaf).tobytes()) for k, leaf in leaves)
    return self.encoding, leaves

  @property
  def shapes(self):
    """Class and shapes of the parameters."""
    shapes = {name: leaf.shape for name, leaf in self.params.items()}
    return type(self.encoding), shapes

  def bias_fn(self):
    """The additive bias, or None."""
    return self.encoding.apply(
      {'params': traverse_util.unflatten_dict(self.params, sep='/')},
      bidirectional=self.bidirectional,
      method='bias_fn',
    )


def _slots(config, side, flat):
  """The _Slot of each layer on one side, the same for layers that share it."""
  layer_encodings = blocks.create_encodings(config)
  owned = blocks.owned_encodings(layer_encodings)
  owned = {encoding: name for name, encoding in owned.items()}
  slots, by_path = [], {}
  for i, encoding in enumerate(layer_encodings):
    path = owned.get(encoding, f'layer_{i}/attention/encoding')
    path = f'{side}{path}/'
    if path not in by_path:
      by_path[path] = _Slot(
        config.encoding[i % len(config.encoding)],
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


def _fill(slot, sources, fitted):
  """What an encoding takes over from those that its layers had.

  Args:
    slot: a _Slot of the model.
    sources: the _Slot of each of its layers in the source.
    fitted: a _Fitted.

  Returns:
    (arrays by name, a note or '', the relative error of a fit or None).
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
    params, error = fitted(slot, source)
    text = f'{slot.spec} fitted to {names} up to length {fitted.max_length}'
    if slot.bidirectional:
      text += ' at keys up to the query'
    return params, text, error
  rest = 'initialised anew' if slot.params else 'nothing to load'
  return {}, f'{text}, {rest}', None


class _Fitted:
  """FIREs fitted to other biases, equal ones once.

  Attributes:
    max_length: see `adopt`.
  """

  def __init__(self, max_length, rng):
    self.max_length = max_length
    self._rng = rng
    self._fits = {}

  def __call__(self, slot, source):
    """Parameters of the FIRE in `slot` and the error of its fit.

    Returns:
      (arrays by name, rms error relative to the largest bias).
    """
    key = slot.encoding, source.value, source.bidirectional
    if key not in self._fits:
      fit = convert.fit_fire(
        source.bias_fn(),
        slot.encoding,
        max_length=self.max_length,
        rng=jax.random.fold_in(self._rng, len(self._fits)),
      )
      params = traverse_util.flatten_dict(fit.params, sep='/')
      self._fits[key] = params, fit.rms_error / (fit.scale or 1.0)
    return self._fits[key]


class _Notes:
  """Lines about layers, one for all that the same is said of."""

  def __init__(self):
    self._found = {}

  def add(self, side, layers, text, error=None):
    """Says `text` of some layers; '' says nothing."""
    if text:
      numbers, relative = self._found.setdefault((side, text), ([], []))
      numbers += layers
      relative += [] if error is None else [error]

  def lines(self):
    """The lines, in the order of their first mention."""
    lines = []
    for (side, text), (layers, relative) in self._found.items():
      where = f'{side} '.replace('/', '').lstrip() + _numbered(layers)
      if relative:
        text += f', rms error {max(relative):.2%} of the largest bias'
      lines.append(f'{where}: {text}')
    return lines


def _numbered(layers):
  """'layers 0-2, 5' for 0, 1, 2, 5, in any order and repeated."""
  layers, ranges = sorted(set(layers)), []
  for layer in layers:
    if ranges and ranges[-1][1] == layer - 1:
      ranges[-1][1] = layer
    else:
      ranges.append([layer, layer])
  text = ', '.join(str(a) if a == b else f'{a}-{b}' for a, b in ranges)
  return f'layers {text}' if len(layers) > 1 else f'layer {text}'
