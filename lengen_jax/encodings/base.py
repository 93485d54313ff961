"""The contract of a position encoding.

An encoding tells a Transformer where its tokens stand through any of five
hooks: `embed` at the model's input, `rotate` on queries and keys, `bias`,
`content_bias` and `content_values` inside attention. Every hook takes
positions as data and does nothing by default, so attention calls all of them
and knows no encoding by name.

A bias reaches attention as a *function of positions*, `BiasFn`, so that a fused
implementation can evaluate it for one tile at a time and differentiate it with
respect to its parameters without an array over all pairs.

Shapes: B batch, L length, Q queries, K keys, H heads, D head_dim, E width.
"""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax import partitioning
from lengen_jax import positions as position_schemes
from lengen_jax.hints import Array
from lengen_jax.hints import Params
from lengen_jax.positions import Positions


def logical_param(
  module: nn.Module,
  name: str,
  init: Callable[..., jax.Array],
  shape: tuple[int, ...],
  axes: tuple[str | None, ...],
) -> jax.Array:
  """Creates a float32 parameter with logical axis names, the linen way."""
  return jnp.asarray(
    module.param(name, partitioning.named(init, axes), shape, jnp.float32)
  )


@struct.dataclass
class BiasFn:
  """An additive attention bias as a function of positions.

  Attributes:
    params: pytree of float32 arrays, everything a tile needs. Differentiable.
    encoding: the unbound encoding whose `tile` is called.
    axes: logical axis names per leaf of `params`, in leaf order.
    bidirectional: whether keys after the query are visible.
  """

  params: Any
  encoding: 'Encoding' = struct.field(pytree_node=False)
  axes: tuple = struct.field(pytree_node=False)
  bidirectional: bool = struct.field(pytree_node=False, default=False)

  def __call__(
    self, q_positions: Positions, k_positions: Positions
  ) -> jax.Array:
    """Bias of a tile, float32: `[Q], [K] -> [H, Q, K]`, batched alike."""
    return self.encoding.tile(
      self.params, q_positions, k_positions, bidirectional=self.bidirectional
    )

  def strip(self, distances: Array) -> jax.Array:
    """Bias by signed distance, `[N] -> [H, N]`; see `Encoding.strip`."""
    return self.encoding.strip(
      self.params, distances, bidirectional=self.bidirectional
    )

  def rows(self, anchors: Array, distances: Array) -> jax.Array:
    """Bias of rows, `[A], [N] -> [A, H, N]`; see `Encoding.rows`."""
    return self.encoding.rows(
      self.params, anchors, distances, bidirectional=self.bidirectional
    )

  def row_weights(
    self, before: Array, positions: Array, after: Array
  ) -> jax.Array:
    """How far rows are from those of one anchor to those of the next.

    Of keys up to the query. Of keys after it rows are taken to be linear in the
    position.

    Args:
      before: position of the anchor before, float32 `[N]`.
      positions: of queries, likewise.
      after: of the anchor after.

    Returns:
      `[N]`, 0 at the anchor before and 1 at the one after; differentiable in
      what the scale of rows depends on.
    """
    first, here, last = (
      self.encoding.row_scale(self.params, p)
      for p in (before, positions, after)
    )
    # Where all rows are the same any weight serves.
    flat = first == last
    weights = (here - first) / jnp.where(flat, 1.0, last - first)
    return jnp.where(flat, (positions - before) / (after - before), weights)


@struct.dataclass
class ContentFn:
  """What an encoding adds to attention that depends on contents.

  Attributes:
    params: pytree of float32 arrays, everything a tile needs. Differentiable.
    encoding: the unbound encoding whose tiles are called.
    axes: logical axis names per leaf of `params`, in leaf order.
  """

  params: Any
  encoding: 'Encoding' = struct.field(pytree_node=False)
  axes: tuple = struct.field(pytree_node=False)

  def logits(
    self,
    q: Array,
    k: Array,
    q_positions: Positions,
    k_positions: Positions,
  ) -> jax.Array:
    """Added to q k before scaling, float32 `[B, H, Q, K]`."""
    return self.encoding.content_logits(
      self.params, q, k, q_positions, k_positions
    )

  def values(
    self, weights: Array, q_positions: Positions, k_positions: Positions
  ) -> jax.Array | None:
    """Added to the output, float32 `[B, Q, H, D]`; None for nothing."""
    return self.encoding.content_sums(
      self.params, weights, q_positions, k_positions
    )


class Encoding(nn.Module):
  """Base of all encodings; by itself it does nothing (NoPE).

  Subclasses override the hooks they need. An additive bias is given by
  `tile_params` and either `strip` (translation invariant) or `tile`.
  `setup` creates every parameter, whichever hook initialises the module.

  Attributes:
    num_heads: attention heads, H.
    head_dim: size of one head, D.
    width: width of the model, E; needed by encodings that `embed`.
    shared: one instance for all layers of a model instead of one per layer.
    make_param: creates every parameter, `(module, name, init, shape, axes)`;
      frameworks with their own parameter bookkeeping substitute theirs.
  """

  num_heads: int
  head_dim: int
  width: int | None = None
  shared: bool = False
  make_param: Callable = logical_param

  # Facts that schemes, caches, kernels and `lengen list` read, on unbound
  # instances too; a subclass overrides them by attributes or properties.
  formula = 'nothing'
  source = ''
  # Names and shapes.
  parameters = 'none'
  # What becomes of positions beyond those trained on.
  beyond = ''
  # What decoding with a cache needs to know beside the tokens.
  at_decoding = 'nothing'
  # The bias or score depends on positions through their difference only.
  translation_invariant = True
  # Positions may be fractional.
  fractional_positions = True
  # What it does to a key depends on the sequence's length, so that a cache
  # must hold untouched keys and the planned length must be known.
  length_dependent = False
  # Rescales positions by itself (position interpolation).
  interpolates = False
  # Acts at the model's input, through `embed`.
  embeds = False
  # Positions below this are valid; None where there is no limit.
  max_position = None  # type: int | None
  # Attention must pass query and key contents to the encoding.
  needs_content = False
  # At a given distance the bias varies so slowly with the query's position that
  # `rows` may be interpolated between.
  has_rows = False
  # A tile of its terms follows from the tile's own tokens.
  tileable = True

  @property
  def takes_distances(self) -> bool:
    """Whether distances of pairs serve in place of positions of tokens."""
    has_strip = type(self).strip is not Encoding.strip
    return self.translation_invariant and has_strip

  def embed(self, x: Array, positions: Positions) -> Array:
    """Adds positions to the model's input, `[B, L, E] -> [B, L, E]`."""
    del positions
    return x

  def rotate(
    self,
    q: Array,
    k: Array,
    q_positions: Positions,
    k_positions: Positions,
    lengths: Array | None = None,
  ) -> tuple[Array, Array]:
    """Rotates queries and keys, `[B, L, H, D] -> [B, L, H, D]`."""
    del q_positions, k_positions, lengths
    return q, k

  def bias(
    self,
    q_positions: Positions,
    k_positions: Positions,
    *,
    bidirectional: bool = False,
  ) -> jax.Array | None:
    """Additive bias, float32, or None where the encoding has none.

    Args:
      q_positions: `[Q]` or `[B, Q]`, int32 or float32.
      k_positions: `[K]` or `[B, K]`, likewise.
      bidirectional: whether keys after the query are visible.

    Returns:
      `[H, Q, K]` or `[B, H, Q, K]`. Entries with a key after the query are
      finite but mean nothing unless `bidirectional`.

    Raises:
      errors.ConfigError: positions of other shapes.
    """
    shapes = [
      p.r.shape if isinstance(p, position_schemes.Distances) else jnp.shape(p)
      for p in (q_positions, k_positions)
    ]
    if [*map(len, shapes)] not in ([1, 1], [2, 2]):
      raise errors.ConfigError(
        f'positions of queries and keys have shapes {shapes[0]} and '
        f'{shapes[1]}; they must be [Q] and [K], or [B, Q] and [B, K]'
      )
    bias_fn = self.bias_fn(bidirectional=bidirectional)
    return None if bias_fn is None else bias_fn(q_positions, k_positions)

  def bias_fn(self, *, bidirectional: bool = False) -> BiasFn | None:
    """The bias as a `BiasFn` over this module's parameters, or None."""
    tile_params = self.tile_params()
    if tile_params is None:
      return None
    params, axes = _split_axes(tile_params)
    return BiasFn(params, self.unbound(), axes, bidirectional)

  def content_bias(
    self,
    q: Array,
    k: Array,
    q_positions: Positions,
    k_positions: Positions,
  ) -> jax.Array | None:
    """What contents add to q k before the scaling, or None.

    Args:
      q: `[B, Q, H, D]`.
      k: `[B, K, H, D]`.
      q_positions: `[Q]` or `[B, Q]`.
      k_positions: `[K]` or `[B, K]`.

    Returns:
      float32 `[B, H, Q, K]`.
    """
    content_fn = self.content_fn()
    if content_fn is None:
      return None
    return content_fn.logits(q, k, q_positions, k_positions)

  def content_values(
    self, weights: Array, q_positions: Positions, k_positions: Positions
  ) -> jax.Array | None:
    """What positions add to the output of attention, or None.

    Args:
      weights: attention weights, `[B, H, Q, K]`.
      q_positions: `[Q]` or `[B, Q]`.
      k_positions: `[K]` or `[B, K]`.

    Returns:
      float32 `[B, Q, H, D]`.
    """
    content_fn = self.content_fn()
    if content_fn is None:
      return None
    return content_fn.values(weights, q_positions, k_positions)

  def content_fn(self) -> ContentFn | None:
    """The content terms as a `ContentFn` over the parameters, or None."""
    content_params = self.content_params()
    if content_params is None:
      return None
    params, axes = _split_axes(content_params)
    return ContentFn(params, self.unbound(), axes)

  def tile_params(self) -> dict[str, tuple[jax.Array, tuple]] | None:
    """What a tile of the bias needs: name to (float32 array, logical axes).

    Everything is included: parameters, already clamped, and constants per
    head. None where the encoding has no additive bias.
    """
    return None

  def content_params(self) -> dict[str, tuple[jax.Array, tuple]] | None:
    """What a tile of the content terms needs; as `tile_params`."""
    return None

  @nn.nowrap
  def content_logits(
    self,
    params: Params,
    q: Array,
    k: Array,
    q_positions: Positions,
    k_positions: Positions,
  ) -> jax.Array:
    """See `content_bias`; captures no array."""
    raise NotImplementedError(f'{type(self).__name__} has no content_logits')

  @nn.nowrap
  def content_sums(
    self,
    params: Params,
    weights: Array,
    q_positions: Positions,
    k_positions: Positions,
  ) -> jax.Array | None:
    """See `content_values`; captures no array."""
    del params, weights, q_positions, k_positions
    return None

  @nn.nowrap
  def tile(
    self,
    params: Params,
    q_positions: Positions,
    k_positions: Positions,
    *,
    bidirectional: bool = False,
  ) -> jax.Array:
    """Bias of any tile of pairs; captures no array.

    Args:
      params: what `tile_params` gave, heads possibly sliced.
      q_positions: `[Q]` or `[B, Q]`.
      k_positions: `[K]` or `[B, K]`.
      bidirectional: whether keys after the query are visible.

    Returns:
      `[H, Q, K]` or `[B, H, Q, K]`, float32.
    """
    bias = self.strip(
      params,
      signed_distance(q_positions, k_positions),
      bidirectional=bidirectional,
    )
    return jnp.moveaxis(bias, 0, -3)

  @nn.nowrap
  def strip(
    self, params: Params, distances: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    """Bias by distance, for translation-invariant encodings.

    Args:
      params: what `tile_params` gave, heads possibly sliced.
      distances: query position minus key position, any shape `[...]`.
      bidirectional: whether keys after the query are visible.

    Returns:
      `[H, ...]`, float32.
    """
    raise NotImplementedError(f'{type(self).__name__} has no strip')

  @nn.nowrap
  def rows(
    self,
    params: Params,
    anchors: Array,
    distances: Array,
    *,
    bidirectional: bool = False,
  ) -> jax.Array:
    """Bias of some queries by distance.

    For a bias that at a given distance varies slowly with the query's position.

    Args:
      params: what `tile_params` gave, heads possibly sliced.
      anchors: positions of queries, `[A]`.
      distances: query position minus key position, `[N]`.
      bidirectional: whether keys after the query are visible.

    Returns:
      `[A, H, N]`, float32.
    """
    raise NotImplementedError(f'{type(self).__name__} has no rows')

  @nn.nowrap
  def row_scale(self, params: Params, positions: Array) -> jax.Array:
    """A function of the query's position in which `rows` are nearly linear.

    The position itself by default.

    Args:
      params: what `tile_params` gave.
      positions: of queries, float32 `[N]`.

    Returns:
      `[N]`, rising or falling, constant only where rows are.
    """
    del params
    return jnp.asarray(positions)

  @nn.nowrap
  def project(self, params: Params) -> Params:
    """Puts this encoding's parameters back into their domain.

    Applied after each optimizer step; the identity by default.
    """
    return params

  @nn.nowrap
  def unbound(self) -> 'Encoding':
    """This encoding without parameters: hashable, compared by value."""
    return self.clone(parent=None, name=None)


class FromFunction(Encoding):
  """A bare function of positions as an encoding without parameters.

  Attributes:
    function: `(q_positions, k_positions) -> [H, Q, K] or [B, H, Q, K]`; it may
      close over no traced array. For a bias with parameters derive a class.
  """

  function: Callable | None = None

  formula = 'b = function(i, j)'
  translation_invariant = False

  def tile_params(self) -> dict[str, tuple[jax.Array, tuple]] | None:
    return {}

  @nn.nowrap
  def tile(
    self,
    params: Params,
    q_positions: Positions,
    k_positions: Positions,
    *,
    bidirectional: bool = False,
  ) -> jax.Array:
    del params, bidirectional
    bias = self.function(q_positions, k_positions)
    if not hasattr(bias, 'astype'):
      raise errors.ConfigError(
        f'the bias function gave {bias!r:.40}; it must give an array'
      )
    return bias.astype(jnp.float32)


def _split_axes(params_and_axes):
  """{name: (leaf, axes)} as {name: leaf} and the axes in leaf order."""
  params = {name: leaf for name, (leaf, _) in params_and_axes.items()}
  axes = tuple(params_and_axes[name][1] for name in sorted(params))
  return params, axes


def signed_distance(q_positions: Positions, k_positions: Any) -> Array:
  """Query minus key position for all pairs, float32 `[..., Q, K]`.

  Integer positions are subtracted as integers, hence exactly. Of `Distances`,
  the distance that they say.
  """
  if isinstance(q_positions, position_schemes.Distances):
    return q_positions.to(k_positions)
  return (q_positions[..., :, None] - k_positions[..., None, :]).astype(
    jnp.float32
  )


def per_head(values_H: jax.Array, ndim: int) -> jax.Array:
  """Values per head, shaped to scale an array `[H, ...]` of `ndim` axes."""
  return values_H.reshape((-1,) + (1,) * (ndim - 1))
