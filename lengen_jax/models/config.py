"""Configuration of a Transformer."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

from lengen_jax import errors, specs

SIZES = (
  'vocab_size',
  'num_layers',
  'num_heads',
  'head_dim',
  'width',
  'mlp_width',
)
OPTIONAL_SIZES = ('key_heads', 'output_size', 'num_experts', 'lora_rank')
# Valid values of fields, of a model and of each layer.
CHOICES = {
  'architecture': ('decoder', 'encoder', 'encoder_decoder'),
  'norm': ('layer', 'rms', 'rms_zero_centered'),
  'norm_placement': ('pre', 'post', 'both', 'output'),
  'activation': (
    *('gelu', 'gelu_exact', 'relu'),
    *('geglu', 'swiglu', 'swiglu_clipped'),
  ),
  'attention_bias': (None, 'qkv', 'all'),
  'output_gate': (None, 'head', 'element'),
  'dtype': ('float32', 'bfloat16'),
  'remat': ('none', 'dots', 'full'),
  'implementation': ('auto', 'reference', 'blockwise', 'pallas'),
  'bias_form': ('exact', 'anchored', 'auto'),
}
LAYER_CHOICES = {
  'query_key_norm': (None, 'head', 'all', 'unscaled'),
}


@dataclasses.dataclass(frozen=True)
class LayerConfig:
  """Options of one layer: the fields of ModelConfig that may differ by layer.

  The attributes are those of ModelConfig.
  """

  encoding: str
  attention_scale: str
  window: int | None
  sinks: int
  attention_chunk: int | None
  contextual_positions: str
  sink_logits: bool
  query_key_norm: str | None


PER_LAYER = tuple(field.name for field in dataclasses.fields(LayerConfig))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Configuration of a Transformer.

  The fields of LayerConfig take one value, or a tuple of values that are cycled
  over the layers: with `window=(512, None)` every second layer has a window. A
  string has specs joined by commas, and `5*rope, nope` is five layers of `rope`
  and one of `nope`; in `5*head, None`, the last value is None. Each field has a
  period of its own. All become tuples.

  Cross-attention of encoder-decoders takes num_heads, key_heads, head_dim,
  scaled_logits, attention_bias, LoRA and implementation; the other options of
  attention are those of self-attention.

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
    norm: 'layer', 'rms' as in T5, or 'rms_zero_centered' as in Gemma, whose
      scale is 1 plus its parameter.
    norm_epsilon: added to the variance, or in RMS norms to the mean square.
    norm_placement: 'pre', before each residual branch and at the end; 'post',
      after each residual sum; 'output', after each branch, before the sum, and
      at the end, as in OLMo 2; or 'both', which is 'pre' and 'output', as in
      Gemma 2.
    parallel_residual: add the outputs of attention and MLP to the same input,
      x + attention(norm(x)) + mlp(norm(x)), as in GPT-NeoX; requires
      norm_placement='pre'.
    activation: activation of the MLP; see `mlp.MLP`.
    mlp_bias: add biases in the MLP.
    num_experts: replace the MLP by this many experts; see `mlp.Experts`. None
      for a plain MLP.
    experts_per_token: experts that each token uses.
    attention_bias: add biases to the projections of attention, 'qkv' to all but
      the output projection, 'all', or None.
    scaled_logits: divide attention logits by sqrt(head_dim); False for T5.
    window: number of last tokens that are visible; None for all tokens; per
      layer.
    sinks: number of first tokens that are visible beyond the window; per layer.
    attention_chunk: tokens attend within consecutive chunks of this many tokens
      of their segment; None for no chunks; per layer.
    contextual_positions: spec of a contextual position scheme, which computes
      positions from the input of a layer; per layer.
    sink_logits: learn a sink logit per head; per layer.
    logit_cap: bounds attention logits, cap tanh(logit / cap); None for no cap.
    output_logit_cap: bounds the logits of the vocabulary in the same way.
    query_key_norm: RMS norm of queries and keys, 'head', 'all', 'unscaled' or
      None; see `layers.Attention`; per layer.
    output_gate: gate on the output of attention, 'head', 'element' or None; see
      `layers.Attention`.
    lora_rank: add LoRA kernels of this rank to the projections of attention;
      None for none. Training then updates these kernels, encodings and options
      of attention; see `training.groups`.
    lora_alpha: scales their product by lora_alpha / lora_rank; None for
      lora_rank.
    dropout_rate: dropout after the embedding and in each residual branch.
    dtype: 'float32' or 'bfloat16' activations. Parameters are float32, unless
      train.param_dtype differs.
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
  parallel_residual: bool = False
  activation: str = 'gelu'
  mlp_bias: bool = False
  attention_bias: str | None = None
  num_experts: int | None = None
  experts_per_token: int = 1
  scaled_logits: bool = True
  window: int | tuple | None = None
  sinks: int | tuple = 0
  attention_chunk: int | tuple | None = None
  contextual_positions: str | tuple = 'none'
  sink_logits: bool | tuple = False
  logit_cap: float | None = None
  output_logit_cap: float | None = None
  query_key_norm: str | tuple | None = None
  output_gate: str | None = None
  lora_rank: int | None = None
  lora_alpha: float | None = None
  dropout_rate: float = 0.0
  dtype: str = 'float32'
  implementation: str = 'auto'
  bias_form: str = 'exact'
  scan_layers: bool = False
  remat: str = 'none'

  def __post_init__(self) -> None:
    specs.check_types('model', self)
    for one in dataclasses.fields(self):
      object.__setattr__(self, one.name, specs.plain(getattr(self, one.name)))
    for field in (*SIZES, *OPTIONAL_SIZES):
      value = getattr(self, field)
      if value is not None and value < 1:
        or_none = ' or None' if field in OPTIONAL_SIZES else ''
        raise errors.ConfigError(
          f'model.{field} must be at least 1{or_none}, got {value}'
        )
    _check_choices(self, CHOICES)
    for field in PER_LAYER:
      values = specs.cycle(getattr(self, field))
      default = getattr(type(self), field)
      if default is None:
        # As in 'head, None'.
        values = tuple(None if one == 'None' else one for one in values)
      if not values:
        raise errors.SpecError(
          f'model.{field} is empty; give at least one value, for example '
          f'{default!r}'
        )
      object.__setattr__(self, field, values)
    for i, layer in enumerate(self.layers):
      specs.check_types('model', layer)
      _check_choices(layer, LAYER_CHOICES)
      for field in ('window', 'attention_chunk'):
        value = getattr(layer, field)
        if value is not None and value < 1:
          raise errors.ConfigError(
            f'model.{field} must be at least 1 or None, got {value}'
          )
      if layer.sinks < 0:
        raise errors.ConfigError(
          f'model.sinks must be at least 0, got {layer.sinks}'
        )
      if layer.sinks and layer.window is None:
        raise errors.ConfigError(
          f'model.sinks={layer.sinks} requires a window; model.window of layer '
          f'{i} is None'
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
        1 <= self.experts_per_token <= (self.num_experts or 1),
        f'experts_per_token={self.experts_per_token} must be between 1 and '
        f'num_experts={self.num_experts}',
      ),
      (
        not self.parallel_residual or self.norm_placement == 'pre',
        f"parallel_residual requires norm_placement='pre', got "
        f'{self.norm_placement!r}',
      ),
      *(
        (
          cap is None or cap > 0,
          f'{field} must be a positive number or None, got {cap}',
        )
        for field, cap in (
          ('logit_cap', self.logit_cap),
          ('output_logit_cap', self.output_logit_cap),
        )
      ),
      (
        self.norm_epsilon > 0,
        f'norm_epsilon must be positive, got {self.norm_epsilon}',
      ),
      (
        self.lora_alpha is None or (self.lora_alpha > 0 and self.lora_rank),
        f'lora_alpha={self.lora_alpha} must be positive, and requires '
        'model.lora_rank',
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


def _check_choices(config: Any, choices: Mapping[str, Sequence[Any]]) -> None:
  """Raises errors.ConfigError unless fields have one of their valid values."""
  for field, valid in choices.items():
    value = getattr(config, field)
    if value not in valid:
      raise errors.ConfigError(errors.one_of(f'model.{field}', value, valid))
