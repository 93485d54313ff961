"""Transformer blocks, and a stack of them."""

from collections.abc import Sequence
import dataclasses
import functools
import operator
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors, partitioning
from lengen_jax.models import layers
from lengen_jax.models.config import LayerConfig, ModelConfig
from lengen_jax.positions import contextual, Positions
from lengen_jax.positions.tokens import Tokens
from lengen_jax.types import Array, Params

# Output of an encoder `[B, S, E]`, and its segment ids `[B, S]` or None.
Encoded = tuple[jax.Array, Array | None]


@dataclasses.dataclass(frozen=True)
class Layer:
  """One layer. Flax does not bind an encoding in a dataclass."""

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
    pre = c.norm_placement == 'pre'
    # Keeps the initial variance of the sum of 2 N residual branches small.
    out_init_scale = 1 / (2 * c.num_layers) if pre else 1.0
    options: dict[str, Any] = {
      'num_heads': c.num_heads,
      'head_dim': c.head_dim,
      'dtype': dtype,
      'implementation': c.implementation,
      'out_init_scale': out_init_scale,
      'scaled_logits': c.scaled_logits,
      'key_heads': c.key_heads,
    }
    drop = nn.Dropout(c.dropout_rate, deterministic=self.deterministic)

    def add(y: jax.Array, x: jax.Array, norm: nn.Module) -> Any:
      x = partitioning.constrain(x + drop(y), 'batch', 'length', 'embed')
      return x if pre else norm(x)

    norm: Any = layers.norm(c, 'attention_norm')
    encoding = self.layer.encoding.clone(parent=None)
    y = layers.Attention(
      **options | vars(self.layer.options) | {'encoding': encoding},
      causal=self.causal,
      bias_form=c.bias_form,
      logit_cap=c.logit_cap,
      query_key_norm=c.query_key_norm,
      norm_epsilon=c.norm_epsilon,
      output_gate=c.output_gate,
      name='attention',
    )(norm(x) if pre else x, tokens, shared=shared, cache=cache)
    if cache is not None:
      y, cache = y
    x = add(y, x, norm)
    if encoded is not None:
      norm = layers.norm(c, 'cross_attention_norm')
      y = layers.CrossAttention(**options, name='cross_attention')(
        norm(x) if pre else x,
        encoded[0],
        segment_ids=tokens.segment_ids,
        encoded_segment_ids=encoded[1],
      )
      x = add(y, x, norm)
    norm = layers.norm(c, 'mlp_norm')
    mlp = layers.MLP(
      c.mlp_width, c.activation, c.mlp_bias, dtype, out_init_scale, name='mlp'
    )
    return add(mlp(norm(x) if pre else x), x, norm), cache


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
    for encoding in dict.fromkeys(layer_encodings):
      encodings.check_positions(encoding, tokens.positions, x.shape[1])
    tokens = tokens.with_positions()
    if tokens.per_layer and tokens.positions.shape[0] != c.num_layers:
      raise errors.ConfigError(
        f'positions have {tokens.positions.shape[0]} layers, the model has '
        f'{c.num_layers}'
      )
    first = tokens.layer(0)
    positions = first.positions if cache is None else first.selected()
    shared_params: dict[encodings.Encoding, Params] = {}
    for name, encoding in owned_encodings(layer_encodings).items():
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
    if c.norm_placement == 'pre':
      x = layers.norm(c, 'final_norm')(x)
    return x, tuple(new_cache)


def create_encodings(config: ModelConfig) -> list[encodings.Encoding]:
  """Creates the encoding of each layer, unbound."""
  return encodings.create_layers(
    config.encoding,
    config.num_layers,
    num_heads=config.num_heads,
    head_dim=config.head_dim,
    width=config.width,
    parent=None,
  )


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


def owned_encodings(
  layer_encodings: Sequence[encodings.Encoding],
) -> dict[str, encodings.Encoding]:
  """Returns, by name, the encodings whose parameters belong to the model.

  These are the distinct encodings that act at the input or are shared by
  several layers.
  """
  owned = [e for e in dict.fromkeys(layer_encodings) if e.embeds or e.shared]
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
