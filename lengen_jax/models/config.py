"""Configuration of a Transformer."""

import dataclasses

from lengen_jax import errors, specs

SIZES = (
  'vocab_size',
  'num_layers',
  'num_heads',
  'head_dim',
  'width',
  'mlp_width',
)
OPTIONAL_SIZES = ('key_heads', 'window', 'output_size')
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
class ModelConfig:
  """Configuration of a Transformer.

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
    encoding: an encoding spec, specs joined by commas, or a tuple of specs;
      several specs are cycled over the layers.
    attention_scale: logit scale spec.
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
    window: number of last tokens that are visible; None for all tokens.
    sinks: number of first tokens that are visible beyond the window.
    dropout_rate: dropout after the embedding and in each residual branch.
    dtype: 'float32' or 'bfloat16' activations. Parameters are float32.
    implementation: see `dot_product_attention`.
    bias_form: see `dot_product_attention`.
    scan_layers: compile one period of layers, and scan over the periods.
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
  attention_scale: str = 'none'
  tied_embedding: bool = True
  scaled_embedding: bool = True
  norm: str = 'layer'
  norm_epsilon: float = 1e-6
  norm_placement: str = 'pre'
  activation: str = 'gelu'
  mlp_bias: bool = False
  scaled_logits: bool = True
  window: int | None = None
  sinks: int = 0
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
    spec = self.encoding
    spec = specs.split(spec) if isinstance(spec, str) else spec
    if not spec:
      raise errors.SpecError('empty encoding spec; use "nope" for none')
    object.__setattr__(self, 'encoding', tuple(spec))
    for valid, message in (
      (
        self.num_heads % (self.key_heads or 1) == 0,
        f'key_heads={self.key_heads} must divide num_heads={self.num_heads}',
      ),
      (
        self.sinks == 0 or (self.sinks > 0 and self.window is not None),
        f'sinks={self.sinks} must not be negative, and requires a window',
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
        not self.scan_layers or self.num_layers % len(self.encoding) == 0,
        f'scan_layers requires num_layers={self.num_layers} to be a multiple '
        f'of the number of encodings, {len(self.encoding)}',
      ),
    ):
      if not valid:
        raise errors.ConfigError(f'model.{message}')
