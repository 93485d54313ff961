"""Transformer blocks, and a stack of them."""

import dataclasses
import functools
import itertools
import operator
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors, partitioning
from lengen_jax.attention import scaling
from lengen_jax.models import layers, mlp, norms
from lengen_jax.models.config import LayerConfig, ModelConfig
from lengen_jax.positions import contextual, Positions
from lengen_jax.positions.tokens import Tokens
from lengen_jax.types import Array, Params

# Output of an encoder `[B, S, E]`, and its segment ids `[B, S]` or None.
Encoded = tuple[jax.Array, Array | None]


@dataclasses.dataclass(frozen=True)
class Layer:
  """Modules and options of a layer. Flax binds no submodule of a dataclass."""

  # Unbound; 'nope' if the encoding acts at the input of the model.
  encoding: encodings.Encoding
  options: LayerConfig


class Block(nn.Module):
  """Self-attention, cross-attention to `encoded` if given, and an MLP.

  Attributes:
    config: config of the model.
    layer: encoding and options of this layer.
    causal: whether keys after the query are masked.
    deterministic: whether dropout is off.
  """

  config: ModelConfig
  layer: Layer
  causal: bool
  deterministic: bool

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    tokens: Tokens,
    encoded: Encoded | None,
    shared: Params | None,
    cache: layers.LayerCache | None,
  ) -> tuple[Any, Any]:
    """Returns the output of the block, `[B, L, E]`, and the new cache.

    `tokens` has the positions of this layer; see `layers.Attention` for
    `shared` and `cache`.
    """
    c, dtype = self.config, jnp.dtype(self.config.dtype)
    normed = c.norm_placement in ('pre', 'both')
    # Keeps the initial variance of the sum of 2 N residual branches small.
    out_init_scale = 1 / (2 * c.num_layers) if normed else 1.0
    options: dict[str, Any] = {
      'num_heads': c.num_heads,
      'head_dim': c.head_dim,
      'dtype': dtype,
      'implementation': c.implementation,
      'out_init_scale': out_init_scale,
      'scaled_logits': c.scaled_logits,
      'key_heads': c.key_heads,
      'attention_bias': c.attention_bias,
      'lora_rank': c.lora_rank,
      'lora_alpha': c.lora_alpha,
    }
    drop = nn.Dropout(c.dropout_rate, deterministic=self.deterministic)

    def before(name: str, x: jax.Array) -> Any:
      """Returns the input of a residual branch."""
      return norms.create(c, f'{name}_norm')(x) if normed else x

    def add(name: str, y: jax.Array, x: jax.Array) -> Any:
      """Adds the output of a residual branch."""
      if c.norm_placement in ('both', 'output'):
        y = norms.create(c, f'{name}_output_norm')(y)
      x = partitioning.constrain(x + drop(y), 'batch', 'length', 'embed')
      return (
        norms.create(c, f'{name}_norm')(x) if c.norm_placement == 'post' else x
      )

    encoding = self.layer.encoding.clone(parent=None)
    first = x
    y = layers.Attention(
      **options | vars(self.layer.options) | {'encoding': encoding},
      causal=self.causal,
      bias_form=c.bias_form,
      logit_cap=c.logit_cap,
      norm_epsilon=c.norm_epsilon,
      zero_centered_norms=c.norm == 'rms_zero_centered',
      output_gate=c.output_gate,
      name='attention',
    )(before('attention', x), tokens, shared=shared, cache=cache)
    if cache is not None:
      y, cache = y
    x = add('attention', y, x)
    if encoded is not None:
      y = layers.CrossAttention(**options, name='cross_attention')(
        before('cross_attention', x),
        encoded[0],
        segment_ids=tokens.segment_ids,
        encoded_segment_ids=encoded[1],
      )
      x = add('cross_attention', y, x)
    y = _feed_forward(c, dtype, out_init_scale)(
      before('mlp', first if c.parallel_residual else x)
    )
    return add('mlp', y, x), cache


def _feed_forward(
  c: ModelConfig, dtype: Any, out_init_scale: float
) -> mlp.MLP | mlp.Experts:
  """Creates the MLP of a block, or its experts."""
  options: Any = (c.mlp_width, c.activation, c.mlp_bias, dtype, out_init_scale)
  if c.num_experts is None:
    return mlp.MLP(*options, name='mlp')
  return mlp.Experts(c.num_experts, c.experts_per_token, *options, name='mlp')


class Cycle(nn.Module):
  """The blocks of one period of layers, for scanning; see Block."""

  config: ModelConfig
  period: tuple[Layer, ...]
  causal: bool
  deterministic: bool

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    tokens: Tokens,
    encoded: Encoded | None,
    positions: tuple[Positions, ...],
    shared: tuple[Params | None, ...],
  ) -> tuple[jax.Array, None]:
    """Runs the blocks; positions and shared have an entry per layer."""
    for j, layer in enumerate(self.period):
      x, _ = Block(
        self.config, layer, self.causal, self.deterministic, name=f'block_{j}'
      )(x, tokens.replace(positions=positions[j]), encoded, shared[j], None)
    return x, None


class Stack(nn.Module):
  """All layers between token embedding and output head.

  Attributes:
    config: config of the model.
    causal: whether keys after the query are masked.
  """

  config: ModelConfig
  causal: bool

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    tokens: Tokens,
    *,
    encoded: Encoded | None = None,
    deterministic: bool = True,
    cache: tuple[Any, ...] | None = None,
  ) -> tuple[jax.Array, Any]:
    """Runs the layers.

    Args:
      x: `[B, L, E]`, embedded tokens.
      tokens: positions, segments and lengths of the tokens.
      encoded: output of an encoder, for cross-attention.
      deterministic: whether dropout is off.
      cache: `Cache.layers` while decoding, else None.

    Returns:
      `[B, L, E]` and the `Cache.layers` of the new cache.
    """
    c = self.config
    layer_encodings = create_encodings(c)
    create_contextual(c)
    rows = max((e.position_rows or 1 for e in distinct_encodings(c)), default=1)
    if tokens.per_layer and tokens.input_positions is None and rows > 1:
      # The encoding at the input has several rows of positions.
      tokens = tokens.replace(positions=None, input_positions=tokens.positions)
    for encoding in distinct_encodings(c):
      positions = tokens.positions
      if encoding.embeds:
        positions = tokens.at_input(decoding=False)
      encodings.check_positions(encoding, positions, x.shape[1])
    tokens = tokens.with_positions()
    if cache is None and is_length_dependent(c):
      tokens = tokens.with_lengths()
    if tokens.per_layer and tokens.positions.shape[0] != c.num_layers:
      raise errors.ConfigError(
        f'positions have {tokens.positions.shape[0]} layers, the model has '
        f'{c.num_layers}; pass rows of positions for the input, such as those '
        'of coupled, as positions.Parts'
      )
    positions = tokens.at_input(decoding=cache is not None)
    tokens = tokens.replace(input_positions=None)
    shared_params: dict[encodings.Encoding, Params] = {}
    for name, encoding in owned_encodings(c).items():
      module = encoding.clone(name=name, parent=self)
      x = module.embed(x, positions)
      if not encoding.embeds:
        # Any hook creates the parameters.
        module.bias_fn()
        params = nn.unbox(module.variables.get('params', {}))
        shared_params[encoding] = params
    nope = encodings.create(
      'nope', num_heads=c.num_heads, head_dim=c.head_dim, parent=None
    )
    options = [
      Layer(nope if e.embeds else e, layer)
      for e, layer in zip(layer_encodings, c.layers, strict=True)
    ]
    shared = [shared_params.get(e) for e in layer_encodings]
    x = nn.Dropout(c.dropout_rate, deterministic=deterministic)(x)
    period, new_cache = c.period, []
    if c.scan_layers and cache is None:
      per_layer = 0 if tokens.per_layer else nn.broadcast
      x, _ = nn.scan(
        _remat(Cycle, c),
        variable_axes={'params': 0},
        split_rngs={'params': True, 'dropout': True},
        in_axes=(nn.broadcast, nn.broadcast, per_layer, nn.broadcast),
        length=c.num_layers // period,
        metadata_params={nn.PARTITION_NAME: 'layers'},
      )(c, tuple(options[:period]), self.causal, deterministic, name='layers')(
        x,
        tokens.replace(positions=None),
        encoded,
        tokens.layers(period),
        tuple(shared[:period]),
      )
    else:
      for i in range(c.num_layers):
        settings = c, options[i], self.causal, deterministic
        if c.scan_layers:
          # A scan over the layers would copy the cache for each token.
          stacked: Any = self.get_variable('params', 'layers')
          params = jax.tree.map(
            operator.itemgetter(i // period), stacked[f'block_{i % period}']
          )
          layer = functools.partial(
            Block(*settings, parent=None).apply, {'params': params}
          )
        else:
          layer = _remat(Block, c)(*settings, name=f'layer_{i}')
        layer_cache = None if cache is None else cache[i]
        x, layer_cache = layer(
          x, tokens.layer(i), encoded, shared[i], layer_cache
        )
        new_cache.append(layer_cache)
    if c.norm_placement != 'post':
      x = norms.create(c, 'final_norm')(x)
    return x, tuple(new_cache)


def create_encodings(config: ModelConfig) -> list[encodings.Encoding]:
  """Creates the encoding of each layer, unbound.

  Of a layer with two encodings, returns the one that acts in attention.
  """
  return [both[-1] for both in encodings_by_layer(config)]


def distinct_encodings(config: ModelConfig) -> list[encodings.Encoding]:
  """Creates the encodings of all layers, each once, unbound."""
  return list(dict.fromkeys(itertools.chain(*encodings_by_layer(config))))


def encodings_by_layer(
  config: ModelConfig,
) -> list[tuple[encodings.Encoding, ...]]:
  """Creates the encodings of each layer; see `encodings.create_layers`."""
  return encodings.create_layers(
    config.encoding,
    config.num_layers,
    num_heads=config.num_heads,
    head_dim=config.head_dim,
    width=config.width,
    parent=None,
  )


def create_scales(config: ModelConfig) -> list[scaling.LogitScale]:
  """Creates the logit scales of the layers, each once, unbound."""
  return [
    scaling.create(spec, num_heads=config.num_heads, parent=None)
    for spec in dict.fromkeys(config.attention_scale)
  ]


def is_length_dependent(config: ModelConfig) -> bool:
  """Returns whether an encoding or logit scale depends on row lengths."""
  both = *distinct_encodings(config), *create_scales(config)
  return any(one.length_dependent for one in both)


def create_contextual(config: ModelConfig) -> list[contextual.Contextual]:
  """Creates the contextual position scheme of each layer, unbound.

  Raises:
    errors.CombinationError: the encoding of a layer does not support it.
  """
  schemes = [
    contextual.create(
      layer.contextual_positions,
      num_heads=config.num_heads,
      width=config.width,
      parent=None,
    )
    for layer in config.layers
  ]
  layer_encodings = create_encodings(config)
  for scheme, encoding in zip(schemes, layer_encodings, strict=True):
    encodings.check_contextual(encoding, scheme)
  return schemes


def owned_encodings(config: ModelConfig) -> dict[str, encodings.Encoding]:
  """Returns, by name, the encodings whose parameters belong to the model.

  These are the distinct encodings that act at the input or are shared by
  several layers.
  """
  owned = [e for e in distinct_encodings(config) if e.embeds or e.shared]
  return {
    f'encoding_{n}' if n else 'encoding': encoding
    for n, encoding in enumerate(owned)
  }


def _remat(module: type[nn.Module], config: ModelConfig) -> Any:
  """Wraps a module so that its backward pass recomputes activations."""
  if config.remat == 'none':
    return module
  policy = None
  if config.remat == 'dots':
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
  return nn.remat(module, policy=policy, prevent_cse=not config.scan_layers)
