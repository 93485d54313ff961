"""Transformers: a decoder language model, an encoder, and the two together.

Each is one stack of blocks, or two, between token embedding and output head.
"""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.hints import Array
from lengen_jax.models import blocks
from lengen_jax.models import cache as cache_lib
from lengen_jax.models import embed as embed_lib
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import Positions
from lengen_jax.positions.tokens import Tokens


class Model(nn.Module):
  """One stack of blocks between token embedding and output head.

  Parameters: `embed/table`, `layer_{i}/attention/{query,key,value,out}/kernel`,
  `layer_{i}/attention/encoding/...`, `layer_{i}/mlp/{up,down}/kernel`,
  `layer_{i}/{attention,mlp}_norm/{scale,bias}`, `final_norm/{scale,bias}`. An
  encoding that acts at the input or is shared by all layers is `encoding/...`.
  With `scan_layers` the layers are stacked; see `stacking`. With activation
  'swiglu' there is `layer_{i}/mlp/gate/kernel`, with `tied_embedding=False`
  `head/table`, with `output_size` `head/output/{kernel,bias}`.

  Attributes:
    config: sizes, encoding and precision.
    causal: whether tokens see earlier ones only.
  """

  config: ModelConfig

  causal = True

  def setup(self) -> None:
    self.embed, self.head = _embed(self.config), _head(self.config)
    self.stack = blocks.Stack(self.config, causal=self.causal)
    nn.share_scope(self, self.stack)

  def __call__(
    self,
    inputs: Array,
    positions: Positions | Tokens | None = None,
    *,
    segment_ids: Array | None = None,
    lengths: Array | None = None,
    targets: Array | None = None,
    deterministic: bool = True,
  ) -> jax.Array:
    """Logits at each token, or what they cost.

    Args:
      inputs: int32 `[B, L]`, token ids. One that is not in the vocabulary, be
        it padding, makes outputs NaN.
      positions: what a position scheme gives: int32 or float32, `[B, L]` or
        `[1, L]`, `[layers, B, L]` where every layer has its own, or
        `positions.Distances`; None for the standard ones.
      segment_ids: int32 `[B, L]` where rows are packed. A segment is a run of
        equal ids, and no id comes back in its row.
      lengths: int32 `[B, 1]` or `[B, L]`, the length of each token's segment,
        for methods that depend on it.
      targets: int32 `[B, L]`. If given, their cross-entropy is returned, which
        takes less memory than the logits.
      deterministic: whether dropout is off; else it draws from the rng stream
        'dropout'.

    Returns:
      Logits, float32 `[B, L, V]`; with `targets` nats, float32 `[B, L]`.

    Raises:
      errors.ConfigError: shapes that do not go together.
      errors.LengthError: a position beyond an encoding's table.
      errors.CombinationError: positions that an encoding cannot take.
    """
    _check_inputs(inputs)
    x_BxLxE, _ = self.stack(
      self.embed(inputs),
      Tokens.create(
        inputs.shape, positions, segment_ids=segment_ids, lengths=lengths
      ),
      deterministic=deterministic,
    )
    return _output(self, x_BxLxE, targets)


class DecoderLM(Model):
  """A causal, GPT-style language model; its logits are of the next token."""

  def decode(
    self,
    inputs: Array,
    cache: cache_lib.Cache,
    *,
    new_lengths: Array | None = None,
  ) -> tuple[jax.Array, cache_lib.Cache]:
    """Logits of the next token after each of some new ones.

    The first call takes the prompts, later ones a token each, or as many as
    there are: what comes out equals a full forward pass over all tokens.

    Args:
      inputs: int32 `[B, Q]`, tokens that follow those in the cache.
      cache: a `cache.Cache`.
      new_lengths: int32 `[B]`, how many of the Q tokens of each row are real,
        the rest being padding behind them; None for all.

    Returns:
      float32 `[B, Q, V]`, and the new cache. Logits of padding mean nothing;
      those of tokens beyond a row's planned length are NaN.

    Raises:
      errors.ConfigError: tokens, cache and model do not go together.
    """
    _check_decoding(self.config, inputs, cache, new_lengths)
    x_BxQxE, cached = self.stack(
      self.embed(inputs), cache.new_tokens(inputs.shape[1]), cache=cache.layers
    )
    return _decoded(_output(self, x_BxQxE), cached, cache, new_lengths)


class Encoder(Model):
  """A bidirectional model with an output per token, as for masked tokens.

  Padding is told by its own segment id.
  """

  causal = False


class EncoderDecoder(nn.Module):
  """An encoder and a decoder that attends to its output, as T5.

  Cross-attention has no position bias. Parameters: `embed/table`, and those of
  DecoderLM's layers under `encoder/...` and `decoder/...`, there with
  `layer_{i}/cross_attention/{query,key,value,out}/kernel` and its norm.

  Attributes:
    config: sizes, encoding and precision, the same on both sides.
  """

  config: ModelConfig

  def setup(self) -> None:
    self.embed, self.head = _embed(self.config), _head(self.config)
    self.encoder = blocks.Stack(self.config, causal=False)
    self.decoder = blocks.Stack(self.config, causal=True)

  def __call__(
    self,
    inputs: Array,
    encoder_inputs: Array,
    positions: Positions | Tokens | None = None,
    encoder_positions: Positions | Tokens | None = None,
    *,
    segment_ids: Array | None = None,
    encoder_segment_ids: Array | None = None,
    lengths: Array | None = None,
    encoder_lengths: Array | None = None,
    targets: Array | None = None,
    deterministic: bool = True,
  ) -> jax.Array:
    """Logits of the decoder's next token, or what they cost.

    Args:
      inputs: int32 `[B, L]`, the decoder's tokens.
      encoder_inputs: int32 `[B, S]`.
      positions: of `inputs`; see `Model`.
      encoder_positions: of `encoder_inputs`, likewise.
      segment_ids: int32 `[B, L]`; a segment of the decoder sees that of the
        encoder with the same id. Both sides have ids, or neither.
      encoder_segment_ids: int32 `[B, S]`.
      lengths: see `Model`.
      encoder_lengths: likewise.
      targets: see `Model`.
      deterministic: see `Model`.

    Returns:
      See `Model`.
    """
    _check_inputs(inputs)
    encoder_tokens = Tokens.create(
      encoder_inputs.shape,
      encoder_positions,
      segment_ids=encoder_segment_ids,
      lengths=encoder_lengths,
    )
    encoded = self.encode(
      encoder_inputs, encoder_tokens, deterministic=deterministic
    )
    x_BxLxE, _ = self.decoder(
      self.embed(inputs),
      Tokens.create(
        inputs.shape, positions, segment_ids=segment_ids, lengths=lengths
      ),
      encoded=blocks.Encoded(encoded, encoder_tokens.segment_ids),
      deterministic=deterministic,
    )
    return _output(self, x_BxLxE, targets)

  def encode(
    self,
    encoder_inputs: Array,
    positions: Positions | Tokens | None = None,
    *,
    segment_ids: Array | None = None,
    lengths: Array | None = None,
    deterministic: bool = True,
  ) -> jax.Array:
    """The encoder's output, `[B, S, E]`; see `Model`."""
    _check_inputs(encoder_inputs)
    encoded, _ = self.encoder(
      self.embed(encoder_inputs),
      Tokens.create(
        encoder_inputs.shape,
        positions,
        segment_ids=segment_ids,
        lengths=lengths,
      ),
      deterministic=deterministic,
    )
    return encoded

  def decode(
    self,
    inputs: Array,
    cache: cache_lib.Cache,
    encoded: jax.Array,
    *,
    encoded_segment_ids: Array | None = None,
    new_lengths: Array | None = None,
  ) -> tuple[jax.Array, cache_lib.Cache]:
    """As `DecoderLM.decode`, given what `encode` gave.

    Where the encoder's rows are padded, `encoded_segment_ids`, int32 `[B, S]`,
    is 1 at tokens and 0 at padding.
    """
    _check_decoding(self.config, inputs, cache, new_lengths)
    tokens = cache.new_tokens(inputs.shape[1])
    if encoded_segment_ids is not None:
      tokens = tokens.replace(segment_ids=jnp.ones_like(inputs))
    x_BxQxE, cached = self.decoder(
      self.embed(inputs),
      tokens,
      encoded=blocks.Encoded(encoded, encoded_segment_ids),
      cache=cache.layers,
    )
    return _decoded(_output(self, x_BxQxE), cached, cache, new_lengths)


_MODELS: dict[str, Any] = {
  'decoder': DecoderLM,
  'encoder': Encoder,
  'encoder_decoder': EncoderDecoder,
}


def create(config: ModelConfig) -> DecoderLM | Encoder | EncoderDecoder:
  """The model that a ModelConfig describes."""
  return _MODELS[config.architecture](config)


def _check_decoding(
  config: ModelConfig,
  inputs: Array,
  cache: cache_lib.Cache,
  new_lengths: Array | None,
) -> None:
  """Raises unless new tokens, cache and model go together."""
  batch = cache.length.shape[0]
  _check_inputs(inputs)
  if inputs.shape[0] != batch or not inputs.shape[1]:
    raise errors.ConfigError(
      f'inputs have shape {inputs.shape}; each of the {batch} rows of the '
      'cache must get at least one token'
    )
  turn = len(config.encoding)
  count, stacked = config.num_layers, ()
  if config.scan_layers:
    count, stacked = turn, (config.num_layers // turn,)
  shape = cache.layers[0][0].shape
  key_heads = config.key_heads or config.num_heads
  sizes = (batch, shape[-3], key_heads, config.head_dim)
  if (len(cache.layers), shape) != (count, stacked + sizes):
    raise errors.ConfigError(
      f'the cache is of another model: it holds {len(cache.layers)} x {shape} '
      f'keys, not {count} x {stacked + sizes}; make it with the config of this '
      'model'
    )
  if new_lengths is None:
    return
  if getattr(new_lengths, 'shape', None) != (batch,) or not jnp.issubdtype(
    new_lengths.dtype, jnp.integer
  ):
    raise errors.ConfigError(
      f'new_lengths must be integers, shape {(batch,)}; got {new_lengths!r}'
    )
  if not isinstance(new_lengths, jax.core.Tracer):
    low, high = np.min(new_lengths), np.max(new_lengths)
    if low < 0 or high > inputs.shape[1]:
      raise errors.ConfigError(
        f'new_lengths go from {low} to {high}; there are {inputs.shape[1]} new '
        'tokens in a row'
      )


def _check_inputs(inputs: Any) -> None:
  """Raises unless these are rows of token ids."""
  dtype = getattr(inputs, 'dtype', None)
  if dtype is None:
    raise errors.ConfigError(
      f'inputs must be an array of token ids, got {type(inputs).__name__}'
    )
  if inputs.ndim != 2 or not jnp.issubdtype(dtype, jnp.integer):
    raise errors.ConfigError(
      f'inputs must be token ids, integers [B, L]; got {dtype} {inputs.shape}'
    )


def _output(
  model: Any, x: jax.Array, targets: Array | None = None
) -> jax.Array:
  head = model.embed if model.head is None else model.head
  return head.logits(x) if targets is None else head.losses(x, targets)


def _embed(config: ModelConfig) -> embed_lib.Embed:
  if not isinstance(config, ModelConfig):
    raise errors.ConfigError(
      f'config must be a ModelConfig, got {type(config).__name__}; '
      'ModelConfig(**fields) makes one'
    )
  dtype = jnp.dtype(config.dtype)
  return embed_lib.Embed(
    config.vocab_size, config.width, dtype, config.scaled_embedding
  )


def _head(config: ModelConfig) -> embed_lib.Embed | embed_lib.Head | None:
  """The output head; None where it is the token embedding."""
  dtype = jnp.dtype(config.dtype)
  if config.output_size is not None:
    return embed_lib.Head(config.output_size, dtype)
  if config.tied_embedding:
    return None
  return embed_lib.Embed(config.vocab_size, config.width, dtype)


def _decoded(
  logits: jax.Array,
  cached: Any,
  cache: cache_lib.Cache,
  new_lengths: Array | None,
) -> tuple[jax.Array, cache_lib.Cache]:
  """What decoding returns: logits, NaN beyond the plan, and the cache."""
  index = cache.new_tokens(logits.shape[1]).index
  logits = jnp.where((index < cache.planned)[..., None], logits, jnp.nan)
  new = logits.shape[1] if new_lengths is None else new_lengths
  return logits, cache.replace(layers=cached, length=cache.length + new)
