"""Configuration of a Transformer."""

import dataclasses
import math

from lengen_jax import errors, specs

SIZES = (
  'vocab_size',
  'num_layers',
  'num_heads',
  'head_dim',
  'width',
  'mlp_width',
)
OPTIONAL_SIZES = ('key_heads', 'output_size')
_CHOICES = {
  'architecture': ('decoder', 'encoder', 'encoder_decoder'),
  'norm': ('layer', 'rms'),
  'norm_placement': ('pre', 'post'),
  'activation': ('gelu', 'relu', 'swiglu'),
  'dtype': ('float32', 'bfloat16'),
  'remat': ('none', 'dots', 'full'),
  'implementation': ('auto', 'reference', 'blockwise', 'pallas'),
  'bias_form': ('exact', 'anchored', 'auto'),
}


@dataclasses.dataclass(frozen=True)
class LayerConfig:
  """Options of one layer: the fields of ModelConfig that layers take in turn.

  The attributes are those of ModelConfig.
  """

  encoding: str
  attention_scale: str
  window: int | None
  sinks: int
  contextual_positions: str
  sink_logits: bool


PER_LAYER = tuple(field.name for field in dataclasses.fields(LayerConfig))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Configuration of a Transformer.

  The fields of LayerConfig take one value, or a tuple of values that are cycled
  over the layers: with `window=(512, None)` every second layer has a window. A
  text has specs joined by commas, and `5*rope, nope` is five layers of `rope`
  and one of `nope`. Each field has a period of its own. All become tuples.

  Attributes:
    vocab_size: number of rows of the token embedding.
    num_layers: number of blocks.
    num_heads: number of attention heads.
    head_dim: size of one head.
    key_heads: number of key and value heads in grouped-query attention, a
      divisor of num_heads; None for num_heads.
    width: size of the residual stream, E.
    mlp_width: number of hidden units of the MLP.
    architecture: 'decoder', 'encoder' or 'encoder_decoder'; the latter has
      `num_layers` blocks in each stack.
    output_size: logits per token of a separate linear head with bias; None for
      logits of the vocabulary.
    encoding: encoding spec; per layer.
    attention_scale: logit scale spec; per layer.
    tied_embedding: whether the output head uses the table of the embedding. If
      False, it has its own `head/table`, and `output_size` must be None.
    scaled_embedding: multiply embedded tokens by sqrt(width); False for Llama.
    norm: 'layer', or 'rms' as in T5.
    norm_epsilon: added to the variance in a norm.
    norm_placement: 'pre', before each residual branch and at the end, or
      'post', after each residual sum.
    activation: activation of the MLP, 'gelu', 'relu' or 'swiglu'; see
      `layers.MLP`.
    mlp_bias: add biases in the MLP.
    scaled_logits: divide attention logits by sqrt(head_dim); False for T5.
    window: number of last tokens that are visible; None for all tokens; per
      layer.
    sinks: number of first tokens that are visible beyond the window; per layer.
    contextual_positions: spec of a contextual position scheme, which computes
      positions from the input of a layer; per layer.
    sink_logits: learn a sink logit per head; per layer.
    logit_cap: bounds attention logits, cap tanh(logit / cap); None for no cap.
    query_key_norm: RMS norm of queries and keys, 'head', 'all' or None; see
      `layers.Attention`.
    output_gate: gate on the output of attention, 'head', 'element' or None; see
      `layers.Attention`.
    dropout_rate: dropout after the embedding and in each residual branch.
    dtype: 'float32' or 'bfloat16' activations. Parameters are float32.
    implementation: see `dot_product_attention`.
    bias_form: see `dot_product_attention`.
    scan_layers: compile one period of layers, and scan over the periods; see
      `period`.
    remat: activations that the backward pass recomputes: 'none', 'dots' (all
      except matrix products), or 'full' (all activations of each block).
  """

  vocab_size: int
  num_layers: int
  num_heads: int
  head_dim: int
  width: int
  mlp_width: int
  architecture: str = 'decoder'
  output_size: int | None = None
  key_heads: int | None = None
  encoding: str | tuple = 'nope'
  attention_scale: str | tuple = 'none'
  tied_embedding: bool = True
  scaled_embedding: bool = True
  norm: str = 'layer'
  norm_epsilon: float = 1e-6
  norm_placement: str = 'pre'
  activation: str = 'gelu'
  mlp_bias: bool = False
  scaled_logits: bool = True
  window: int | tuple | None = None
  sinks: int | tuple = 0
  contextual_positions: str | tuple = 'none'
  sink_logits: bool | tuple = False
  logit_cap: float | None = None
  query_key_norm: str | None = None
  output_gate: str | None = None
  dropout_rate: float = 0.0
  dtype: str = 'float32'
  implementation: str = 'auto'
  bias_form: str = 'exact'
  scan_layers: bool = False
  remat: str = 'none'

  def __post_init__(self) -> None:
    specs.check_types('model', self)
    for field in (*SIZES, *OPTIONAL_SIZES):
      value = getattr(self, field)
      if value is not None and value < 1:
        or_none = ' or None' if field in OPTIONAL_SIZES else ''
        raise errors.ConfigError(
          f'model.{field} must be at least 1{or_none}, got {value}'
        )
    for field, valid in _CHOICES.items():
      if getattr(self, field) not in valid:
        raise errors.ConfigError(
          errors.one_of(f'model.{field}', getattr(self, field), valid)
        )
    for field in PER_LAYER:
      values = specs.cycle(getattr(self, field))
      if not values:
        default = getattr(type(self), field)
        raise errors.SpecError(
          f'model.{field} is empty; give at least one value, for example '
          f'{default!r}'
        )
      object.__setattr__(self, field, values)
    for i, layer in enumerate(self.layers):
      specs.check_types('model', layer)
      if layer.window is not None and layer.window < 1:
        raise errors.ConfigError(
          f'model.window must be at least 1 or None, got {layer.window}'
        )
      if layer.sinks < 0 or (layer.sinks and layer.window is None):
        raise errors.ConfigError(
          f'model.sinks={layer.sinks} must not be negative, and requires a '
          f'window; layer {i} has window={layer.window}'
        )
    for valid, message in (
      (
        self.num_heads % (self.key_heads or 1) == 0,
        f'key_heads={self.key_heads} must divide num_heads={self.num_heads}',
      ),
      (
        self.output_size is None or self.tied_embedding,
        f'output_size={self.output_size} creates a separate head; leave '
        'model.tied_embedding=True',
      ),
      (
        self.norm_epsilon > 0,
        f'norm_epsilon must be positive, got {self.norm_epsilon}',
      ),
      (
        0 <= self.dropout_rate < 1,
        f'dropout_rate must be in [0, 1), got {self.dropout_rate}',
      ),
      (
        not self.scan_layers or self.num_layers % self.period == 0,
        f'scan_layers requires num_layers={self.num_layers} to be a multiple '
        f'of {self.period}, the period of its layers ({self._periods()})',
      ),
    ):
      if not valid:
        raise errors.ConfigError(f'model.{message}')

  @property
  def layers(self) -> tuple[LayerConfig, ...]:
    """The options of each layer."""
    cycles = {field: getattr(self, field) for field in PER_LAYER}
    return tuple(
      LayerConfig(
        **{k: values[i % len(values)] for k, values in cycles.items()}
      )
      for i in range(self.num_layers)
    )

  @property
  def period(self) -> int:
    """Number of layers after which the options of layers repeat."""
    return math.lcm(*(len(getattr(self, field)) for field in PER_LAYER))

  def _periods(self) -> str:
    """Formats the period of each field that has more than one value."""
    lengths = {field: len(getattr(self, field)) for field in PER_LAYER}
    return ', '.join(f'{k} has {n}' for k, n in lengths.items() if n > 1)
