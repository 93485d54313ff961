"""The layers of a Transformer put together: blocks, and a stack of them."""

from collections.abc import Sequence
from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax import partitioning
from lengen_jax import positions as position_schemes
from lengen_jax.hints import Array
from lengen_jax.models import layers
from lengen_jax.models import tokens
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import Positions


@struct.dataclass
class Context:
  """What all layers of a stack are told about the tokens.

  Attributes:
    index: int32 `[1 or B, L]`, of each token in its segment; while decoding its
      slot in the cache.
    segment_ids: int32 `[B, L]` or None.
    lengths: int32 `[1 or B, 1 or L]` or None, of each token's segment; planned
      while decoding.
    encoded: output of an encoder, `[B, S, E]`, or None.
    encoded_segment_ids: int32 `[B, S]` or None.
    contiguous: see `Model`.
  """

  index: Any
  segment_ids: Any
  lengths: Any
  encoded: Any
  encoded_segment_ids: Any
  contiguous: bool = struct.field(pytree_node=False)


class Block(nn.Module):
  """Attention, perhaps to an encoder too, and MLP, with norms and residuals.

  Attributes:
    config: the model's.
    encoding: spec of this layer's encoding.
    causal: whether tokens see earlier ones only.
    deterministic: whether dropout is off.
  """

  config: ModelConfig
  encoding: str
  causal: bool
  deterministic: bool

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    context: Context,
    positions: Positions | None,
    shared: Any,
    cache: Any,
  ) -> tuple[jax.Array, Any]:
    """One block.

    Args:
      x: `[B, L, E]`.
      context: a Context.
      positions: of the tokens, or while decoding of all slots.
      shared: see `layers.Attention`.
      cache: (keys, values), or None if not decoding.

    Returns:
      `[B, L, E]` and the new cache.
    """
    c = self.config
    dtype = jnp.dtype(c.dtype)
    pre = c.norm_placement == 'pre'
    # However the 2 N residual branches add up, their sum starts small.
    out_init_scale = 1 / (2 * c.num_layers) if pre else 1.0
    drop = nn.Dropout(c.dropout_rate, deterministic=self.deterministic)
    attention = layers.Attention(
      c.num_heads,
      c.head_dim,
      encoding=self.encoding,
      attention_scale=c.attention_scale,
      causal=self.causal,
      dtype=dtype,
      implementation=c.implementation,
      bias_form=c.bias_form,
      out_init_scale=out_init_scale,
      scaled_logits=c.scaled_logits,
      key_heads=c.key_heads,
      window=c.window,
      sinks=c.sinks,
      name='attention',
    )

    def attend(x):
      if cache is not None:
        return attention.extend(
          x,
          cache,
          context.index,
          positions,
          lengths=context.lengths,
          shared=shared,
        )
      return attention(
        x,
        positions,
        segment_ids=context.segment_ids,
        lengths=context.lengths,
        shared=shared,
        contiguous=context.contiguous,
      ), None

    def attend_to_encoded(x):
      return layers.CrossAttention(
        c.num_heads,
        c.head_dim,
        dtype,
        c.implementation,
        out_init_scale,
        c.scaled_logits,
        c.key_heads,
        name='cross_attention',
      )(
        x,
        context.encoded,
        segment_ids=context.segment_ids,
        encoded_segment_ids=context.encoded_segment_ids,
      ), None

    def think(x):
      return layers.MLP(
        c.mlp_width, c.activation, c.mlp_bias, dtype, out_init_scale, name='mlp'
      )(x), None

    def residual(branch, x, name):
      norm = layers.norm(c, f'{name}_norm')
      y, extra = branch(norm(x) if pre else x)
      x = partitioning.constrain(x + drop(y), 'batch', 'length', 'embed')
      return x if pre else norm(x), extra

    x, new_cache = residual(attend, x, 'attention')
    if context.encoded is not None:
      x, _ = residual(attend_to_encoded, x, 'cross_attention')
    x, _ = residual(think, x, 'mlp')
    return x, new_cache


class Cycle(nn.Module):
  """The blocks of one turn through the encodings, for scanning.

  Attributes:
    config: the model's.
    encodings: specs of the layers of one turn.
    causal: see Block.
    deterministic: see Block.
  """

  config: ModelConfig
  encodings: tuple
  causal: bool
  deterministic: bool

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    context: Context,
    positions: Any,
    shared: Any,
    cache: Any,
  ) -> tuple[jax.Array, Any]:
    """As Block, the last three per layer of the turn."""
    new_cache = []
    for j, encoding in enumerate(self.encodings):
      x, new = Block(
        self.config,
        encoding,
        self.causal,
        self.deterministic,
        name=f'block_{j}',
      )(x, context, positions[j], shared[j], cache[j])
      new_cache.append(new)
    return x, tuple(new_cache)


class Stack(nn.Module):
  """Everything between token embedding and output head.

  Attributes:
    config: the model's.
    causal: whether tokens see earlier ones only.
  """

  config: ModelConfig
  causal: bool

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    positions: Positions | None = None,
    *,
    segment_ids: Array | None = None,
    lengths: Array | None = None,
    encoded: jax.Array | None = None,
    encoded_segment_ids: Array | None = None,
    deterministic: bool = True,
    contiguous: bool | None = None,
    cache: Any = None,
  ) -> tuple[jax.Array, Any]:
    """Runs the layers; see `Model` and `cache.Cache`.

    Args:
      x: `[B, L, E]`, embedded tokens.
      positions: see Model.
      segment_ids: see Model.
      lengths: see Model.
      encoded: output of an encoder to attend to.
      encoded_segment_ids: its segments.
      deterministic: see Model.
      contiguous: see Model.
      cache: a Cache to go on from, which then says positions and lengths.

    Returns:
      `[B, L, E]` and the layers of the new cache.
    """
    c = self.config
    layer_encodings = create_encodings(c)
    if cache is None:
      index = tokens.position_index(x.shape[1], segment_ids)
    else:
      index = cache.length[:, None] + tokens.position_index(x.shape[1], None)
      positions, lengths = cache.positions, cache.planned
    if contiguous is None:
      contiguous = positions is None
    if positions is not None:
      positions = tokens.position_array(positions)
    if cache is None:
      tokens.check_tokens(x.shape[:2], positions, segment_ids, lengths)
    if positions is None and segment_ids is not None:
      positions = index
    for encoding in dict.fromkeys(layer_encodings):
      encodings.check_positions(encoding, positions, x.shape[1])
    if positions is None:
      positions = index
    by_layer = _by_layer(positions, c.num_layers)

    # Encodings with one instance for the whole model live here.
    at_input = (by_layer or [positions])[0]
    if cache is not None:
      at_input = position_schemes.take(at_input, index)
    shared_fns = {}
    for name, encoding in owned_encodings(layer_encodings).items():
      module = encoding.clone(name=name, parent=self)
      x = module.embed(x, at_input)
      if not encoding.embeds:
        bias_fn = module.bias_fn(bidirectional=not self.causal)
        shared_fns[encoding] = (bias_fn, module.content_fn())
    # Layers get specs and build their own: a module handed down as a field
    # would belong to the first that holds it.
    specs = [
      'nope' if e.embeds else c.encoding[i % len(c.encoding)]
      for i, e in enumerate(layer_encodings)
    ]
    shared = [shared_fns.get(e) for e in layer_encodings]
    x = nn.Dropout(c.dropout_rate, deterministic=deterministic)(x)

    context = Context(
      index, segment_ids, lengths, encoded, encoded_segment_ids, contiguous
    )
    cached = cache.layers if cache is not None else (None,) * c.num_layers
    if c.scan_layers:
      turn = len(c.encoding)
      x, cached = nn.scan(
        _remat(Cycle, c),
        variable_axes={'params': 0},
        split_rngs={'params': True, 'dropout': True},
        in_axes=(
          nn.broadcast,
          nn.broadcast if by_layer is None else 0,
          nn.broadcast,
          0,
        ),
        length=c.num_layers // turn,
        metadata_params={nn.PARTITION_NAME: 'layers'},
      )(c, tuple(specs[:turn]), self.causal, deterministic, name='layers')(
        x,
        context,
        _by_turn(positions, by_layer is not None, turn),
        tuple(shared[:turn]),
        cached[:turn],
      )
    else:
      block, new_cache = _remat(Block, c), []
      for i in range(c.num_layers):
        x, new = block(
          c, specs[i], self.causal, deterministic, name=f'layer_{i}'
        )(
          x,
          context,
          positions if by_layer is None else by_layer[i],
          shared[i],
          cached[i],
        )
        new_cache.append(new)
      cached = tuple(new_cache)
    if c.norm_placement == 'pre':
      x = layers.norm(c, 'final_norm')(x)
    return x, cached


def _by_layer(positions, num_layers):
  """Positions of each layer; None where all layers have the same."""
  leaf = jax.tree.leaves(positions)[0]
  if leaf.ndim < 3:
    return None
  if leaf.shape[0] != num_layers:
    raise errors.ConfigError(
      f'positions of {leaf.shape[0]} layers for a model of {num_layers}'
    )
  return [
    jax.tree.map(
      lambda leaf, i=i: leaf[i] if leaf.ndim > 2 else leaf, positions
    )
    for i in range(num_layers)
  ]


def _by_turn(positions, differ, turn):
  """Positions for scanning: one tree per layer of a turn."""
  if not differ:
    return (positions,) * turn
  layers = jax.tree.leaves(positions)[0].shape[0]

  def of_layers(leaf, j):
    """What all layers share, as start and index of Distances, repeated."""
    if leaf.ndim < 3:
      leaf = jnp.broadcast_to(leaf[None], (layers, *leaf.shape))
    return leaf[j::turn]

  return tuple(
    jax.tree.map(lambda leaf, j=j: of_layers(leaf, j), positions)
    for j in range(turn)
  )


def create_encodings(config: ModelConfig) -> list[encodings.Encoding]:
  """The encoding of each layer, unbound."""
  return encodings.create_layers(
    config.encoding,
    config.num_layers,
    num_heads=config.num_heads,
    head_dim=config.head_dim,
    width=config.width,
    parent=None,
  )


def owned_encodings(
  layer_encodings: Sequence[encodings.Encoding],
) -> dict[str, encodings.Encoding]:
  """Encodings with one instance at the model's root, by parameter path.

  They act at the input or are shared by the layers; each distinct one counts
  once.
  """
  owned = [e for e in dict.fromkeys(layer_encodings) if e.embeds or e.shared]
  return {
    f'encoding_{n}' if n else 'encoding': encoding
    for n, encoding in enumerate(owned)
  }


def _remat(module, config):
  """Wraps a module so that its backward pass computes activations again."""
  if config.remat == 'none':
    return module
  policy = None
  if config.remat == 'dots':
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
  return nn.remat(module, policy=policy, prevent_cse=not config.scan_layers)
