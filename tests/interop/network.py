"""A decoder that calls its layers the way T5X's example networks do.

One bias module shared by all layers, or one in each; layers in a row or
scanned; remat; a cache made by `apply`, filled by prefill or token by token.
Masks are arrays, and attention hears of positions from nobody but the encoding.
"""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from flax import struct
from flax.linen import partitioning
import jax
import jax.numpy as jnp

from lengen_jax.interop import t5x


@struct.dataclass
class Config:
  """Sizes, and how the layers are put together.

  Attributes:
    biases: keywords of RelativePositionBiases; None to have none.
    attention: keywords of MultiHeadDotProductAttention.
    shared: one bias module for all layers, as in t5 and decoder_only.
    scan: scan over the layers, as in scalable_t5.
    remat: recompute activations.
  """

  vocab: int = 16
  width: int = 16
  heads: int = 4
  head_dim: int = 4
  layers: int = 2
  dtype: Any = jnp.float32
  biases: dict | None = None
  attention: dict = struct.field(default_factory=dict)
  shared: bool = True
  scan: bool = False
  remat: bool = False


class Layer(nn.Module):
  """Attention and an MLP."""

  config: Config
  relative_embedding: Callable | None = None

  @nn.compact
  def __call__(
    self,
    x,
    mask,
    positions,
    prefill_lengths=None,
    decode=False,
    max_decode_length=None,
    prefill=False,
  ):
    cfg = self.config
    bias = None
    biases = self.relative_embedding
    if biases is None and cfg.biases is not None:
      biases = relative_position_biases(cfg, positions, decode)
    if biases is not None:
      length = max_decode_length if decode else x.shape[-2]
      bias = biases(length, length, False, decode=decode and cfg.shared)
    y = nn.RMSNorm(use_scale=False)(x)
    y = t5x.MultiHeadDotProductAttention(
      num_heads=cfg.heads,
      head_dim=cfg.head_dim,
      dtype=cfg.dtype,
      positions=positions,
      **cfg.attention,
      name='self_attention',
    )(
      y,
      y,
      mask,
      bias,
      decode=decode,
      prefill=prefill,
      prefill_lengths=prefill_lengths,
      deterministic=True,
    )
    x = x + y
    w = partitioning.param_with_axes(
      'wi',
      nn.initializers.lecun_normal(),
      (cfg.width, 2 * cfg.width),
      jnp.float32,
      axes=('embed', 'mlp'),
    )
    y = nn.relu(nn.RMSNorm(use_scale=False)(x) @ w.astype(cfg.dtype))
    w = partitioning.param_with_axes(
      'wo',
      nn.initializers.lecun_normal(),
      (2 * cfg.width, cfg.width),
      jnp.float32,
      axes=('mlp', 'embed'),
    )
    x = x + y @ w.astype(cfg.dtype)
    return (x, None) if cfg.scan else x


class Decoder(nn.Module):
  """Embedding, layers, logits."""

  config: Config

  @nn.compact
  def __call__(
    self,
    tokens,
    positions=None,
    segment_ids=None,
    *,
    decode=False,
    max_decode_length=None,
    prefill=False,
    prefill_lengths=None,
  ):
    """Logits `[B, L, V]`.

    Args:
      tokens: `[B, L]`, floats in the first call, as T5X's.
      positions: for the encoding; None for 0, 1, 2, ...
      segment_ids: `[B, L]`; None for one segment. 0 is padding.
      decode: make the cache, or take one token of each row.
      max_decode_length: slots of the cache.
      prefill: fill the cache.
      prefill_lengths: `[B]`.
    """
    cfg = self.config
    table = partitioning.param_with_axes(
      'embedding',
      nn.initializers.normal(1.0),
      (cfg.vocab, cfg.width),
      jnp.float32,
      axes=('vocab', 'embed'),
    )
    x = table[tokens.astype(jnp.int32)].astype(cfg.dtype)
    mask = None if decode else make_mask(x.shape[:2], segment_ids)
    layer = Layer
    if cfg.remat:
      layer = partitioning.remat(
        layer, prevent_cse=not cfg.scan, static_argnums=(4, 5, 6)
      )
    args = (x, mask, positions, prefill_lengths)
    args += (decode, max_decode_length, prefill)
    if cfg.scan:
      new = self.is_mutable_collection('params')
      x, _ = partitioning.scan_with_axes(
        layer,
        variable_axes={
          'params': 1 if new else partitioning.ScanIn(1),
          'cache': 0,
        },
        split_rngs={'params': True},
        in_axes=(nn.broadcast,) * 6,
        length=cfg.layers,
        axis_name='layers',
      )(cfg, name='layers')(*args)
    else:
      biases = None
      if cfg.biases is not None and cfg.shared:
        biases = relative_position_biases(cfg, positions, decode)
      for i in range(cfg.layers):
        x = layer(cfg, biases, name=f'layers_{i}')(*((x,) + args[1:]))
    kernel = partitioning.param_with_axes(
      'logits',
      nn.initializers.lecun_normal(),
      (cfg.width, cfg.vocab),
      jnp.float32,
      axes=('embed', 'vocab'),
    )
    return nn.RMSNorm(use_scale=False)(x).astype(jnp.float32) @ kernel


def relative_position_biases(cfg, positions, decode):
  """The swap: this line named T5X's class before."""
  return t5x.RelativePositionBiases(
    num_buckets=8,
    max_distance=16,
    num_heads=cfg.heads,
    dtype=cfg.dtype,
    embedding_init=nn.initializers.normal(1.0),
    positions=positions,
    name='relpos_bias',
    **cfg.biases,
  )


def make_mask(shape, segment_ids):
  """1 where a query sees a key, `[B, 1, L, L]`."""
  index = jnp.arange(shape[1])
  mask = jnp.broadcast_to(
    index[:, None] >= index[None], (shape[0], 1, shape[1], shape[1])
  )
  if segment_ids is not None:
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    mask = mask & (same & (segment_ids > 0)[:, None, :])[:, None]
  return mask.astype(jnp.float32)


def init(cfg, length=6):
  """Variables, made as T5X makes them."""
  return jax.jit(Decoder(cfg).init)(jax.random.key(0), jnp.ones((2, length)))


def empty_cache(cfg, params, tokens, positions=None):
  """A cache for as many tokens as there are."""
  _, variables = Decoder(cfg).apply(
    {'params': params},
    jnp.ones_like(tokens),
    positions,
    decode=True,
    max_decode_length=tokens.shape[1],
    mutable=['cache'],
  )
  return variables['cache']


def step(cfg, params, cache, token, length, positions=None):
  """Logits `[B, V]` of the next token, and the new cache."""
  logits, variables = Decoder(cfg).apply(
    {'params': params, 'cache': cache},
    token[:, None],
    positions,
    decode=True,
    max_decode_length=length,
    mutable=['cache'],
  )
  return logits[:, 0], variables['cache']


def over_beams(fn, cache, with_index):
  """Applies fn to the leaves that have a row for each sequence.

  T5X's beam search leaves these names alone, the index unless prefilled.
  """
  alone = {'cached_bias', 'position_embedder_index'}
  if not with_index:
    alone.add('cache_index')

  def visit(path, leaf):
    return leaf if path[-1].key in alone else fn(leaf)

  return jax.tree_util.tree_map_with_path(visit, cache)
