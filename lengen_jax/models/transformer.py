"""Transformers from the layers of `layers.py`: a decoder language model."""

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax.models import layers
from lengen_jax.models.config import ModelConfig


class Block(nn.Module):
  """Attention and MLP, each behind a layer norm and around it a residual.

  Attributes:
    config: the model's.
    encoding: spec of this layer's encoding.
    deterministic: whether dropout is off.
  """

  config: ModelConfig
  encoding: str
  deterministic: bool

  @nn.compact
  def __call__(self, x, positions, segment_ids, lengths, shared):
    """One block, `[B, L, E] -> [B, L, E]`; see `layers.Attention`."""
    c = self.config
    dtype = jnp.dtype(c.dtype)
    # However the 2 N residual branches add up, their sum starts small.
    out_init_scale = 1 / (2 * c.num_layers)
    drop = nn.Dropout(c.dropout_rate, deterministic=self.deterministic)
    y = layers.Attention(
      c.num_heads,
      c.head_dim,
      encoding=self.encoding,
      attention_scale=c.attention_scale,
      dtype=dtype,
      implementation=c.implementation,
      bias_form=c.bias_form,
      out_init_scale=out_init_scale,
      name='attention',
    )(
      layers.norm(dtype, 'attention_norm')(x),
      positions,
      segment_ids=segment_ids,
      lengths=lengths,
      shared=shared,
    )
    x += drop(y)
    y = layers.MLP(c.mlp_width, dtype, out_init_scale, name='mlp')(
      layers.norm(dtype, 'mlp_norm')(x)
    )
    return x + drop(y)


class Cycle(nn.Module):
  """The blocks of one turn through the encodings, for scanning.

  Attributes:
    config: the model's.
    encodings: specs of the layers of one turn.
    deterministic: whether dropout is off.
  """

  config: ModelConfig
  encodings: tuple
  deterministic: bool

  @nn.compact
  def __call__(self, x, positions, segment_ids, lengths, shared):
    for j, encoding in enumerate(self.encodings):
      x = Block(self.config, encoding, self.deterministic, name=f'block_{j}')(
        x, positions, segment_ids, lengths, shared[j]
      )
    return x, None


class DecoderLM(nn.Module):
  """A causal, pre-norm, GPT-style language model.

  Parameters: `embed/table`, `layer_{i}/attention/{query,key,value,out}/kernel`,
  `layer_{i}/attention/encoding/...`, `layer_{i}/mlp/{up,down}/kernel`,
  `layer_{i}/{attention,mlp}_norm/{scale,bias}`, `final_norm/{scale,bias}`. An
  encoding that acts at the input or is shared by all layers is `encoding/...`.
  With `scan_layers` the layers are stacked; see `stacking`.

  Attributes:
    config: sizes, encoding and precision.
  """

  config: ModelConfig

  @nn.compact
  def __call__(
    self,
    inputs,
    positions=None,
    *,
    segment_ids=None,
    lengths=None,
    deterministic=True,
  ):
    """Logits of the next token.

    Args:
      inputs: int32 `[B, L]`, token ids.
      positions: int32 or float32, `[B, L]` or `[1, L]`, from a position
        scheme; None for the standard ones.
      segment_ids: int32 `[B, L]` where rows are packed.
      lengths: int32 `[B, 1]` or `[B, L]`, the length of each token's segment,
        for methods that depend on it.
      deterministic: whether dropout is off; else it draws from the rng stream
        'dropout'.

    Returns:
      float32 `[B, L, V]`.

    Raises:
      errors.LengthError: a position beyond an encoding's table.
      errors.CombinationError: positions that an encoding cannot take.
    """
    c = self.config
    layer_encodings = create_encodings(c)
    distinct = list(dict.fromkeys(layer_encodings))
    index = layers.position_index(inputs.shape[1], segment_ids)
    if positions is not None:
      positions = layers.position_array(positions)
    elif segment_ids is not None:
      positions = index
    for encoding in distinct:
      encodings.check_positions(encoding, positions, inputs.shape[1])
    if positions is None:
      positions = index

    dtype = jnp.dtype(c.dtype)
    embed = layers.Embed(c.vocab_size, c.width, dtype, name='embed')
    x_BxLxE = embed(inputs)

    # Encodings with one instance for the whole model live here.
    shared_fns = {}
    for name, encoding in owned_encodings(layer_encodings).items():
      module = encoding.clone(name=name, parent=self)
      x_BxLxE = module.embed(x_BxLxE, positions)
      if not encoding.embeds:
        shared_fns[encoding] = (module.bias_fn(), module.content_fn())
    # Layers get specs and build their own: a module handed down as a field
    # would belong to the first that holds it.
    per_layer = [
      (
        'nope' if e.embeds else c.encoding[i % len(c.encoding)],
        shared_fns.get(e),
      )
      for i, e in enumerate(layer_encodings)
    ]
    x_BxLxE = nn.Dropout(c.dropout_rate, deterministic=deterministic)(x_BxLxE)

    if c.scan_layers:
      x_BxLxE = self._scan(
        x_BxLxE, positions, segment_ids, lengths, per_layer, deterministic
      )
    else:
      block = _remat(Block, c)
      for i, (encoding, shared) in enumerate(per_layer):
        x_BxLxE = block(c, encoding, deterministic, name=f'layer_{i}')(
          x_BxLxE, positions, segment_ids, lengths, shared
        )
    return embed.logits(layers.norm(dtype, 'final_norm')(x_BxLxE))

  def _scan(self, x, positions, segment_ids, lengths, per_layer, deterministic):
    c = self.config
    turn, shared = zip(*per_layer[: len(c.encoding)], strict=True)
    x, _ = nn.scan(
      _remat(Cycle, c),
      variable_axes={'params': 0},
      split_rngs={'params': True, 'dropout': True},
      in_axes=nn.broadcast,
      length=c.num_layers // len(turn),
      metadata_params={nn.PARTITION_NAME: 'layers'},
    )(
      c, turn, deterministic, name='layers'
    )(x, positions, segment_ids, lengths, shared)
    return x


def create_encodings(config):
  """The encoding of each layer, unbound."""
  return encodings.create_layers(
    config.encoding,
    config.num_layers,
    num_heads=config.num_heads,
    head_dim=config.head_dim,
    width=config.width,
    parent=None,
  )


def owned_encodings(layer_encodings):
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
