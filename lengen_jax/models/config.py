"""The configuration of a model: one frozen dataclass, fields listed once."""

import dataclasses

from lengen_jax import errors, specs

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
  """A Transformer.

  Attributes:
    vocab_size: rows of the token embedding.
    num_layers: blocks.
    num_heads: attention heads.
    head_dim: size of one head.
    key_heads: heads of keys and values, each read by as many query heads; None
      for as many as of queries.
    width: size of the residual stream, E.
    mlp_width: hidden units of the MLP.
    architecture: 'decoder', 'encoder' or 'encoder_decoder'; the last has
      `num_layers` on each side.
    output_size: logits per token, by a linear map of their own with bias; None
      for one per row of the token embedding, by the same table.
    encoding: encoding spec, several joined by commas, or a tuple of specs;
      several are cycled over the layers.
    attention_scale: logit scale spec.
    tied_embedding: without `output_size`, logits by the table of the token
      embedding; if False by a table of their own, `head/table`.
    scaled_embedding: multiply embedded tokens by sqrt(width); Llama does not.
    norm: 'layer', or 'rms' as in T5.
    norm_epsilon: added to the variance that a norm divides by.
    norm_placement: 'pre', before each residual branch and at the end, or
      'post', after each residual sum.
    activation: of the MLP, 'gelu', 'relu', or 'swiglu' as in Llama: a second
      map of the input, through SiLU, times the first.
    mlp_bias: biases in the MLP.
    scaled_logits: divide attention logits by sqrt(head_dim); T5 does not.
    window: attention sees so many last tokens; None for all.
    sinks: so many first tokens stay visible beyond the window.
    dropout_rate: on the embedding and on each residual branch.
    dtype: of activations, 'float32' or 'bfloat16'; parameters are float32.
    implementation: of attention; see `dot_product_attention`.
    bias_form: of attention; see `dot_product_attention`.
    scan_layers: compile one block and scan it over the layers.
    remat: what the backward pass computes again: 'none', all but matrix
      products ('dots'), or whole blocks ('full').
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
    for field in (
      'vocab_size',
      'num_layers',
      'num_heads',
      'head_dim',
      'width',
      'mlp_width',
    ):
      if getattr(self, field) < 1:
        raise errors.ConfigError(
          f'model.{field} must be at least 1, got {getattr(self, field)}'
        )
    if self.key_heads is not None and (
      self.key_heads < 1 or self.num_heads % self.key_heads
    ):
      raise errors.ConfigError(
        f'model.key_heads={self.key_heads} must divide num_heads='
        f'{self.num_heads}'
      )
    if self.window is not None and self.window < 1:
      raise errors.ConfigError(
        f'model.window must be at least 1 or None, got {self.window}'
      )
    if self.sinks < 0 or (self.sinks and self.window is None):
      raise errors.ConfigError(
        f'model.sinks={self.sinks} must not be negative, and needs a window'
      )
    if self.output_size is not None and self.output_size < 1:
      raise errors.ConfigError(
        f'model.output_size must be at least 1 or None, got {self.output_size}'
      )
    if self.output_size is not None and not self.tied_embedding:
      raise errors.ConfigError(
        f'model.output_size={self.output_size} has a map of its own anyway; '
        'leave model.tied_embedding=True'
      )
    if self.norm_epsilon <= 0:
      raise errors.ConfigError(
        f'model.norm_epsilon must be positive, got {self.norm_epsilon}'
      )
    for field, valid in _CHOICES.items():
      if getattr(self, field) not in valid:
        raise errors.ConfigError(
          errors.one_of(f'model.{field}', getattr(self, field), valid)
        )
    if not 0 <= self.dropout_rate < 1:
      raise errors.ConfigError(
        f'model.dropout_rate must be in [0, 1), got {self.dropout_rate}'
      )
    spec = self.encoding
    if isinstance(spec, str):
      spec = specs.split(spec)
    if not spec:
      raise errors.SpecError('empty encoding spec; "nope" is the one for none')
    object.__setattr__(self, 'encoding', tuple(spec))
    if self.scan_layers and self.num_layers % len(self.encoding):
      raise errors.ConfigError(
        f'model.scan_layers needs num_layers={self.num_layers} to be a '
        f'multiple of the {len(self.encoding)} encodings in turn'
      )
