"""The base class of all position encodings.

Attention uses an encoding through the hooks of this class only. `terms` defines
the objects that the hooks return.

Shapes: B batch, L length, Q queries, K keys, H heads, D head_dim, E width.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors, partitioning, specs
from lengen_jax.encodings.terms import Band, BiasFn, ContentFn
from lengen_jax.positions import Distances, Positions
from lengen_jax.types import Array, Params

# Name to (float32 array, logical axis names).
NamedLeaves = dict[str, tuple[Array, tuple[str, ...]]]


def logical_param(
  module: nn.Module,
  name: str,
  init: Callable[..., jax.Array],
  shape: tuple[int, ...],
  axes: tuple[str | None, ...],
) -> jax.Array:
  """Creates a float32 parameter with logical axis names, as linen does."""
  return jnp.asarray(
    module.param(name, partitioning.named(init, axes), shape, jnp.float32)
  )


def check_distances(encoding: 'Encoding', *positions: Any) -> None:
  """Raises errors.CombinationError on Distances that are not supported."""
  if encoding.takes_distances:
    return
  if any(isinstance(each, Distances) for each in positions):
    raise errors.CombinationError(no_distances(encoding))


def no_distances(encoding: 'Encoding') -> str:
  """Returns why an encoding does not support Distances."""
  return (
    f'{specs.name(encoding)} needs a position per token and does not support '
    "distances of pairs; use mode='positions'"
  )


class Encoding(nn.Module):
  """Base of all encodings; without overrides it does nothing (NoPE).

  Subclasses override `embed`, `rotate` or `bands`, or define an additive bias
  by `tile_params` and either `strip` (translation invariant) or `tile`, or
  content terms by `content_params`, `content_logits` and `content_sums`.
  `setup` creates every parameter, whichever hook initialises the module.

  Attributes:
    num_heads: attention heads, H.
    head_dim: size of one head, D.
    width: width of the model, E; required by encodings that `embed`.
    shared: one instance for all layers of a model instead of one per layer.
    make_param: creates every parameter, `(module, name, init, shape, axes)`.
  """

  num_heads: int
  head_dim: int
  width: int | None = None
  shared: bool = False
  make_param: Callable = logical_param

  # Ranges of keys; see `specs.check_ranges`.
  ranges: ClassVar[Mapping[str, str | tuple]] = {}
  # A subclass overrides the following by attributes or properties, readable on
  # unbound instances. The first five are for `lengen list`.
  formula = 'nothing'
  source = ''
  # Names and shapes.
  parameters = 'none'
  # Behaviour at positions beyond those of training.
  beyond = ''
  # What decoding with a cache requires besides the tokens.
  at_decoding = 'nothing'
  # The bias or score depends only on differences of positions.
  translation_invariant = True
  # Positions may be fractional.
  fractional_positions = True
  # Keys depend on the sequence's length: a cache must hold unrotated keys, and
  # the planned length is required.
  length_dependent = False

  @property
  def caches_unrotated_keys(self) -> bool:
    """Whether keys are rotated for each new token while decoding."""
    return self.length_dependent

  @property
  def adds_to_values(self) -> bool:
    """Whether a content term is added to the output of attention."""
    return type(self).content_sums is not Encoding.content_sums

  # `rotate` returns vectors wider than head_dim, whose logits are still scaled
  # by head_dim.
  widens = False
  # Rescales positions (position interpolation).
  interpolates = False
  # Acts at the model's input, through `embed`.
  embeds = False
  # Positions below this are valid; None for no limit.
  max_position = None  # type: int | None
  # Attention must pass query and key contents to the encoding.
  needs_content = False
  # At a fixed distance the bias varies slowly with the query's position, so
  # that `rows` can be interpolated.
  has_rows = False
  # Terms of a tile depend only on the tile's own tokens.
  tileable = True
  # Masks keys at distance `window` or more, except for those at positions below
  # `sinks`. Both are fields.
  masks = False
  # Rows of positions that `embed` adds; None for any number. With more than
  # one, positions are [R, 1 or B, L].
  position_rows = 1  # type: int | None

  def __post_init__(self) -> None:
    specs.check_ranges(self)
    super().__post_init__()

  @property
  def takes_distances(self) -> bool:
    """Whether `Distances` of pairs can replace positions of tokens."""
    has_strip = type(self).strip is not Encoding.strip
    return self.translation_invariant and has_strip

  def embed(self, x: Array, positions: Positions) -> Array:
    """Adds positions to the model's input, `[B, L, E] -> [B, L, E]`."""
    return x

  def rotate(
    self,
    q: Array,
    k: Array,
    q_positions: Positions,
    k_positions: Positions,
    lengths: Array | None = None,
  ) -> tuple[Array, Array]:
    """Rotates queries and keys, `[B, L, H, D] -> [B, L, H, D]`.

    Positions are `[B, L]` or, per query head, `[B, L, H]`; then queries and
    keys have the same heads.
    """
    return q, k

  def bands(
    self, q: Array, k: Array, q_positions: Positions, k_positions: Positions
  ) -> tuple[Band, ...]:
    """Returns the bands of attention, with rotated queries and keys.

    Arguments are as in `rotate`. Pairs in no band are masked.
    """
    return ()

  def bias(
    self,
    q_positions: Positions,
    k_positions: Positions,
    *,
    bidirectional: bool = False,
  ) -> jax.Array | None:
    """Returns the additive bias, or None where the encoding has none.

    Args:
      q_positions: `[Q]` or `[B, Q]`, int32 or float32; or per head, float32
        `[B, Q, H]`.
      k_positions: `[K]`, `[B, K]` or `[B, K, H]`.
      bidirectional: whether keys after the query are visible.

    Returns:
      float32 `[H, Q, K]` or `[B, H, Q, K]`. Unless `bidirectional`, entries
      with a key after the query are finite but undefined.

    Raises:
      errors.ConfigError: positions of other shapes.
      errors.CombinationError: Distances that the encoding does not support.
    """
    check_distances(self, q_positions, k_positions)
    shapes = q_positions.shape, k_positions.shape
    if [*map(len, shapes)] not in ([1, 1], [2, 2], [3, 3]):
      raise errors.ConfigError(
        f'positions of queries and keys have shapes {shapes[0]} and '
        f'{shapes[1]}; they must be [Q] and [K], [B, Q] and [B, K], or [B, Q, '
        'H] and [B, K, H]'
      )
    bias_fn = self.bias_fn(bidirectional=bidirectional)
    return None if bias_fn is None else bias_fn(q_positions, k_positions)

  def bias_fn(self, *, bidirectional: bool = False) -> BiasFn | None:
    """The bias as a `BiasFn` over this module's parameters, or None."""
    if (leaves := self.tile_params()) is None:
      return None
    return BiasFn(*_split_axes(self, leaves), bidirectional)

  def content_bias(
    self, q: Array, k: Array, q_positions: Positions, k_positions: Positions
  ) -> jax.Array | None:
    """Returns the term added to q k before scaling; see `ContentFn`."""
    fn = self.content_fn()
    return None if fn is None else fn.logits(q, k, q_positions, k_positions)

  def content_values(
    self, weights: Array, q_positions: Positions, k_positions: Positions
  ) -> jax.Array | None:
    """Returns the term added to the output of attention; see `ContentFn`."""
    fn = self.content_fn()
    return None if fn is None else fn.values(weights, q_positions, k_positions)

  def content_fn(self) -> ContentFn | None:
    """The content terms as a `ContentFn` over the parameters, or None."""
    leaves = self.content_params()
    return None if leaves is None else ContentFn(*_split_axes(self, leaves))

  def tile_params(self) -> NamedLeaves | None:
    """Clamped parameters and constants of a tile, or None without a bias."""
    return None

  def content_params(self) -> NamedLeaves | None:
    """Arrays that the content terms depend on; see `tile_params`."""
    return None

  @nn.nowrap
  def content_logits(
    self, params: Params, q: Array, k: Array, q_pos: Positions, k_pos: Positions
  ) -> jax.Array:
    """`content_bias` as a pure function of `content_params`."""
    raise NotImplementedError(f'{type(self).__name__} has no content_logits')

  @nn.nowrap
  def content_sums(
    self, params: Params, weights: Array, q_pos: Positions, k_pos: Positions
  ) -> jax.Array | None:
    """`content_values` as a pure function of `content_params`."""
    return None

  @nn.nowrap
  def tile(
    self, params: Params, i: Any, j: Any, *, bidirectional: bool = False
  ) -> jax.Array:
    """Bias of queries at i and keys at j; a pure function, see `bias`.

    `params` are leaves of `tile_params`, heads possibly sliced.
    """
    distance = signed_distance(i, j)
    bias = self.strip(params, distance, bidirectional=bidirectional)
    return jnp.moveaxis(bias, 0, -3)

  @nn.nowrap
  def strip(
    self, params: Params, distances: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    """Bias by distance, `[...] -> [H, ...]`; a pure function.

    Distances are the query position minus the key position. Encodings that are
    not translation invariant have no strip.
    """
    raise NotImplementedError(f'{type(self).__name__} has no strip')

  @nn.nowrap
  def slopes(
    self, params: Params, *, bidirectional: bool = False
  ) -> jax.Array | None:
    """Returns s_h, `[H]`, if the bias is -s_h (p_i - p_j); None if not.

    Each softmax then depends on s_h p_j alone, a bias per key.
    """
    return None

  @nn.nowrap
  def rows(
    self, params: Params, i: Array, d: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    """Bias of queries at i by signed distance d, `[A], [N] -> [A, H, N]`."""
    raise NotImplementedError(f'{type(self).__name__} has no rows')

  @nn.nowrap
  def row_scale(self, params: Params, positions: Array) -> jax.Array:
    """Returns a monotonic function of positions, `[N] -> [N]`.

    `rows` are nearly linear in it. Where it is constant, all rows are equal.
    """
    return jnp.asarray(positions)

  @nn.nowrap
  def project(self, params: Params) -> Params:
    """Projects parameters onto their domain, after each optimizer step."""
    return params

  @nn.nowrap
  def unbound(self) -> 'Encoding':
    """This encoding without parameters: hashable, compared by value."""
    return self.clone(parent=None, name=None)


class FromFunction(Encoding):
  """Wraps a function of positions as an encoding without parameters.

  Attributes:
    function: `(q_positions, k_positions) -> [H, Q, K] or [B, H, Q, K]`, of
      positions [Q] and [K] where all rows have the same, and [B, Q] and [B, K]
      otherwise. It must not close over traced arrays. Each value must depend
      only on the two positions of its pair, because in long rows the function
      is called for one block of queries and one block of keys at a time.
  """

  function: Callable | None = None

  formula = 'b = function(i, j)'
  translation_invariant = False

  def tile_params(self) -> NamedLeaves | None:
    return {}

  @nn.nowrap
  def tile(
    self, params: Params, i: Any, j: Any, *, bidirectional: bool = False
  ) -> jax.Array:
    bias: Any = None
    if i.ndim == j.ndim == 2 and len(i) == len(j) == 1:
      bias = self._of_row(i[0], j[0])
    if bias is None:
      bias = self.function(i, j)
    if not hasattr(bias, 'astype'):
      raise errors.ConfigError(
        f'the bias function returned {bias!r:.40}; it must return an array'
      )
    if bias.dtype == bool:
      raise errors.ConfigError(
        'the bias function returned bool; it must return numbers, which are '
        'added to the logits. For a mask, use causal, window or segment_ids, '
        'or jnp.where(mask, 0.0, -1e9)'
      )
    return bias.astype(jnp.float32)

  @nn.nowrap
  def _of_row(self, i_Q: Array, j_K: Array) -> jax.Array | None:
    """Returns the bias `[1, H, Q, K]`; None if the function needs rows."""
    try:
      bias = self.function(i_Q, j_K)
    except Exception:  # A call with rows raises it, unless they are needed.
      return None
    want = (self.num_heads, *i_Q.shape, *j_K.shape)
    return bias[None] if getattr(bias, 'shape', None) == want else None


def _split_axes(
  encoding: Encoding, leaves: NamedLeaves
) -> tuple[dict[str, Array], Encoding, tuple]:
  """Returns arrays, the unbound encoding, and axes in leaf order.

  Arrays are float32: gradients are sums over tiles, in their dtype.
  """
  for name, leaf in leaves.items():
    if not isinstance(leaf, tuple | list) or len(leaf) != 2:
      raise errors.ConfigError(
        f'the parameter {name!r} of {specs.name(encoding)} must be (array, '
        f"logical axes), such as (self.s, ('heads',)); got {errors.shown(leaf)}"
      )
  params: dict[str, Array] = {
    name: jnp.asarray(leaf, jnp.float32) for name, (leaf, _) in leaves.items()
  }
  axes = tuple(leaves[name][1] for name in sorted(leaves))
  return params, encoding.unbound(), axes


def signed_distance(i: Positions, j: Any) -> jax.Array:
  """Returns query minus key position of all pairs, float32 `[..., Q, K]`.

  Integer positions are subtracted as integers, hence exactly.
  """
  if isinstance(i, Distances):
    return i.to(j)
  i, j = _signed(i), _signed(j)
  return jnp.asarray(i[..., :, None] - j[..., None, :], jnp.float32)


def _signed(positions: Array) -> jax.Array:
  """Returns positions; narrow or unsigned integers as int32."""
  positions = jnp.asarray(positions)
  whole = jnp.issubdtype(positions.dtype, jnp.integer)
  if whole and positions.dtype != jnp.int64:
    return positions.astype(jnp.int32)
  return positions


def per_head(values_H: Array, ndim: int) -> jax.Array:
  """Reshapes values per head to scale an array `[H, ...]` of `ndim` axes."""
  return jnp.reshape(values_H, (-1,) + (1,) * (ndim - 1))
