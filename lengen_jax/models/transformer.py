"""Transformers: decoder language model, encoder, and encoder-decoder.

Each has one or two stacks of blocks between token embedding and output head.
"""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.models import blocks
from lengen_jax.models import cache as cache_lib
from lengen_jax.models import embed as embed_lib
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import Assigned
from lengen_jax.positions.tokens import Tokens
from lengen_jax.types import Array


class Model(nn.Module):
  """One stack of blocks between token embedding and output head.

  Parameters: `embed/table`, `layer_{i}/attention/{query,key,value,out}/kernel`,
  `layer_{i}/attention/encoding/...`, `layer_{i}/mlp/{up,down}/kernel`,
  `layer_{i}/{attention,mlp}_norm/{scale,bias}`, `final_norm/{scale,bias}`.
  Encodings that act at the input or are shared by several layers are
  `encoding/...`, `encoding_1/...` and so on. With `scan_layers` the layers are
  stacked; see `stacking`.

  Options change the parameters. Gated activations add
  `layer_{i}/mlp/gate/kernel`, `tied_embedding=False` adds `head/table`,
  `output_size` adds `head/output/{kernel,bias}`, and biases are `.../bias`
  beside kernels. `norm_placement` 'both' and 'output' add
  `layer_{i}/{attention,mlp}_output_norm/...`; 'output' has no
  `layer_{i}/{attention,mlp}_norm`, and 'post' has no `final_norm`. Experts,
  LoRA and options of attention add parameters that their modules describe.

  Attributes:
    config: sizes, encoding and precision.
    causal: whether tokens attend to themselves and earlier tokens only.
  """

  config: ModelConfig

  causal = True

  def setup(self) -> None:
    self.embed, self.head = _embed_and_head(self.config)
    self.stack = blocks.Stack(self.config, causal=self.causal)
    nn.share_scope(self, self.stack)

  def __call__(
    self,
    inputs: Array,
    positions: Assigned | Tokens | None = None,
    *,
    segment_ids: Array | None = None,
    lengths: Array | None = None,
    targets: Array | None = None,
    deterministic: bool = True,
  ) -> jax.Array:
    """Returns logits, or per-token cross-entropy if `targets` is given.

    Args:
      inputs: int32 `[B, L]`, token ids. An id outside the vocabulary makes the
        outputs NaN, also at padding.
      positions: output of a position scheme: int32 or float32, `[1 or B, L]`,
        `[layers, 1 or B, L]`, Distances or Parts; None for the standard
        positions. A `Tokens` struct contains positions, segment_ids and
        lengths. Layers that compute positions from contents do not use them.
      segment_ids: int32 `[B, L]` of packed rows. A segment is a run of equal
        ids. Different segments of a row have different ids.
      lengths: int32 `[B, 1]` or `[B, L]`, the length of each token's segment,
        for methods that depend on it. None for the lengths of `segment_ids` or,
        without them, the length of the row, L; padded rows require one of the
        two.
      targets: int32 `[B, L]`. Cross-entropy requires less memory than logits.
        It is NaN where a target is outside the vocabulary.
      deterministic: whether dropout is off. Dropout uses the rng stream
        'dropout'.

    Returns:
      Logits, float32 `[B, L, V]`, or cross-entropy in nats, float32 `[B, L]`.

    Raises:
      errors.ConfigError: shapes do not agree.
      errors.LengthError: a position is beyond the table of an encoding.
      errors.CombinationError: an encoding does not support the positions.
    """
    x_BxLxE = self.hidden(
      inputs,
      positions,
      segment_ids=segment_ids,
      lengths=lengths,
      deterministic=deterministic,
    )
    return _output(self, x_BxLxE, targets)

  def hidden(
    self,
    inputs: Array,
    positions: Assigned | Tokens | None = None,
    *,
    segment_ids: Array | None = None,
    lengths: Array | None = None,
    deterministic: bool = True,
  ) -> jax.Array:
    """Returns the input of the output head, `[B, L, E]`; see `__call__`."""
    _check_inputs(inputs)
    x_BxLxE, _ = self.stack(
      self.embed(inputs),
      Tokens.create(
        inputs.shape, positions, segment_ids=segment_ids, lengths=lengths
      ),
      deterministic=deterministic,
    )
    return x_BxLxE

  def logits(self, x: jax.Array) -> jax.Array:
    """Returns the logits of what `hidden` returns, float32 `[B, L, V]`."""
    return _output(self, x)


class DecoderLM(Model):
  """GPT-style causal language model. Logits predict the next token."""

  def decode(
    self,
    inputs: Array,
    cache: cache_lib.Cache,
    *,
    new_lengths: Array | None = None,
  ) -> tuple[jax.Array, cache_lib.Cache]:
    """Returns the logits of new tokens, and the cache with these tokens.

    Usually the first call passes the prompts, and later calls a token per row.
    Logits equal those of a full forward pass over all tokens.

    Args:
      inputs: int32 `[B, Q]`, tokens that follow those in the cache.
      cache: a `cache.Cache`.
      new_lengths: int32 `[B]`, number of real tokens of each row; the rest of
        the Q tokens is padding. None for Q.

    Returns:
      Logits, float32 `[B, Q, V]`, and the new cache. Logits are NaN beyond the
      planned length of a row, and undefined at padding.

    Raises:
      errors.ConfigError: inputs, cache and model do not agree.
    """
    _check_decoding(self.config, inputs, cache, new_lengths)
    cache = cache.with_tokens(inputs)
    x_BxQxE, cached = self.stack(
      self.embed(inputs), cache.new_tokens(inputs.shape[1]), cache=cache.layers
    )
    return _decoded(_output(self, x_BxQxE), cached, cache, new_lengths)


class Encoder(Model):
  """Bidirectional model with an output per token, for masked tokens.

  Padding requires its own segment id.
  """

  causal = False


class EncoderDecoder(nn.Module):
  """Encoder, and decoder with cross-attention to its output, as in T5.

  Cross-attention has no position bias. Parameters: `embed/table`, and those of
  DecoderLM's layers under `encoder/...` and `decoder/...`. The decoder also has
  `layer_{i}/cross_attention/{query,key,value,out}/kernel` and
  `layer_{i}/cross_attention_norm/...`.

  Attributes:
    config: sizes, encoding and precision of both stacks.
  """

  config: ModelConfig

  def setup(self) -> None:
    self.embed, self.head = _embed_and_head(self.config)
    self.encoder = blocks.Stack(self.config, causal=False)
    self.decoder = blocks.Stack(self.config, causal=True)

  def __call__(
    self,
    inputs: Array,
    encoder_inputs: Array,
    positions: Assigned | Tokens | None = None,
    encoder_positions: Assigned | Tokens | None = None,
    *,
    segment_ids: Array | None = None,
    encoder_segment_ids: Array | None = None,
    lengths: Array | None = None,
    encoder_lengths: Array | None = None,
    targets: Array | None = None,
    deterministic: bool = True,
  ) -> jax.Array:
    """Returns logits, or per-token cross-entropy if `targets` is given.

    Args:
      inputs: int32 `[B, L]`, tokens of the decoder.
      encoder_inputs: int32 `[B, S]`, tokens of the encoder.
      positions: positions of `inputs`; see `Model`.
      encoder_positions: positions of `encoder_inputs`.
      segment_ids: int32 `[B, L]`. Decoder segments attend to encoder segments
        with equal ids. Pass both ids or neither.
      encoder_segment_ids: int32 `[B, S]`.
      lengths: segment lengths of `inputs`; see `Model`.
      encoder_lengths: segment lengths of `encoder_inputs`.
      targets: see `Model`.
      deterministic: see `Model`.

    Returns:
      Logits, float32 `[B, L, V]`, or cross-entropy in nats, float32 `[B, L]`.

    Raises:
      errors.ConfigError: shapes do not agree.
      errors.LengthError: a position is beyond the table of an encoding.
      errors.CombinationError: an encoding does not support the positions.
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
      encoded=(encoded, encoder_tokens.segment_ids),
      deterministic=deterministic,
    )
    return _output(self, x_BxLxE, targets)

  def encode(
    self,
    encoder_inputs: Array,
    positions: Assigned | Tokens | None = None,
    *,
    segment_ids: Array | None = None,
    lengths: Array | None = None,
    deterministic: bool = True,
  ) -> jax.Array:
    """Returns the output of the encoder, `[B, S, E]`.

    For the arguments and errors see `Model.__call__`.
    """
    _check_inputs(encoder_inputs)
    tokens = Tokens.create(
      encoder_inputs.shape, positions, segment_ids=segment_ids, lengths=lengths
    )
    encoded, _ = self.encoder(
      self.embed(encoder_inputs), tokens, deterministic=deterministic
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
    """Returns the logits of new tokens, and the cache with these tokens.

    Args:
      inputs: int32 `[B, Q]`, tokens that follow those in the cache.
      cache: a `cache.Cache`.
      encoded: `[B, S, E]`, the output of `encode`.
      encoded_segment_ids: int32 `[B, S]`, 1 at tokens and 0 at padding; None
        for rows without padding.
      new_lengths: see `DecoderLM.decode`.

    Returns:
      Logits, float32 `[B, Q, V]`, and the new cache.

    Raises:
      errors.ConfigError: inputs, cache and model do not agree.
    """
    _check_decoding(self.config, inputs, cache, new_lengths)
    cache = cache.with_tokens(inputs)
    tokens = cache.new_tokens(inputs.shape[1])
    if encoded_segment_ids is not None:
      tokens = tokens.replace(segment_ids=jnp.ones_like(inputs))
    x_BxQxE, cached = self.decoder(
      self.embed(inputs),
      tokens,
      encoded=(encoded, encoded_segment_ids),
      cache=cache.layers,
    )
    return _decoded(_output(self, x_BxQxE), cached, cache, new_lengths)


_MODELS: dict[str, Any] = {
  'decoder': DecoderLM,
  'encoder': Encoder,
  'encoder_decoder': EncoderDecoder,
}


def create(config: ModelConfig) -> DecoderLM | Encoder | EncoderDecoder:
  """Creates the model of a ModelConfig."""
  return _MODELS[config.architecture](config)


def _check_decoding(
  config: ModelConfig,
  inputs: Array,
  cache: cache_lib.Cache,
  new_lengths: Array | None,
) -> None:
  """Checks that new tokens, cache and model agree."""
  batch = cache.length.shape[0]
  _check_inputs(inputs)
  if inputs.shape[0] != batch or not inputs.shape[1]:
    raise errors.ConfigError(
      f'inputs have shape {inputs.shape}; the cache has {batch} rows and '
      'requires at least one token for each'
    )
  count, shape = len(cache.layers), cache.layers[0][0].shape
  want_shape, _ = cache_lib.layer_shapes(config, batch, shape[-1])
  if (count, shape) != (config.num_layers, want_shape):
    raise errors.ConfigError(
      f'the cache does not fit the model: it has {count} x {shape} keys, not '
      f'{config.num_layers} x {want_shape}; create it from the config of this '
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
        f'new_lengths are between {low} and {high}; they must be between 0 '
        f'and {inputs.shape[1]}, the new tokens of each row'
      )


def _check_inputs(inputs: Any, name: str = 'inputs') -> None:
  """Checks that inputs are integers `[B, L]`."""
  dtype = getattr(inputs, 'dtype', None)
  if dtype is None:
    raise errors.ConfigError(
      f'{name} must be an array of token ids, got {type(inputs).__name__}'
    )
  if inputs.ndim != 2 or not jnp.issubdtype(dtype, jnp.integer):
    raise errors.ConfigError(
      f'{name} must be token ids, integers [B, L]; got {dtype} {inputs.shape}'
    )


def _output(
  model: Any, x: jax.Array, targets: Array | None = None
) -> jax.Array:
  head = model.embed if model.head is None else model.head
  if targets is None:
    return head.logits(x)
  _check_inputs(targets, 'targets')
  if targets.shape != x.shape[:2]:
    raise errors.ConfigError(
      f'targets have shape {targets.shape}, the inputs {x.shape[:2]}; pass a '
      'target for each input'
    )
  return head.losses(x, targets)


def _embed_and_head(
  config: ModelConfig,
) -> tuple[embed_lib.Embed, embed_lib.Embed | embed_lib.Head | None]:
  """Returns the token embedding, and the output head or None if it is tied."""
  if not isinstance(config, ModelConfig):
    raise errors.ConfigError(
      f'config must be a ModelConfig, got {type(config).__name__}; '
      'use ModelConfig(**fields)'
    )
  sizes, dtype = (config.vocab_size, config.width), jnp.dtype(config.dtype)
  embed = embed_lib.Embed(
    *sizes, dtype, config.scaled_embedding, config.output_logit_cap
  )
  if config.output_size is not None:
    return embed, embed_lib.Head(config.output_size, config.output_logit_cap)
  return embed, None if config.tied_embedding else embed_lib.Embed(
    *sizes, dtype, cap=config.output_logit_cap
  )


def _decoded(
  logits: jax.Array,
  cached: Any,
  cache: cache_lib.Cache,
  new_lengths: Array | None,
) -> tuple[jax.Array, cache_lib.Cache]:
  """Returns logits, NaN beyond the planned length, and the new cache."""
  index = cache.new_tokens(logits.shape[1]).index
  logits = jnp.where((index < cache.planned)[..., None], logits, jnp.nan)
  new = logits.shape[1] if new_lengths is None else new_lengths
  return logits, cache.replace(layers=cached, length=cache.length + new)
