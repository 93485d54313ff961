"""What attention gets from an encoding: functions of positions, and bands.

A bias reaches attention as a *function of positions*, `BiasFn`, which fused
implementations evaluate tile by tile and differentiate without an array over
all pairs.

Shapes: B batch, Q queries, K keys, H heads, G key heads, D head_dim.
"""

from collections.abc import Callable
from typing import Any, TYPE_CHECKING

from flax import struct
import jax
import jax.numpy as jnp

from lengen_jax import errors, specs
from lengen_jax.positions import Distances, PerHead
from lengen_jax.types import Array, Params

if TYPE_CHECKING:
  from lengen_jax.encodings.base import Encoding


@struct.dataclass
class BiasFn:
  """An additive attention bias as a function of positions.

  Attributes:
    params: float32 arrays that a tile depends on. Differentiable.
    encoding: the unbound encoding whose `tile` is called.
    axes: logical axis names per leaf of `params`, in leaf order.
    bidirectional: whether keys after the query are visible.
  """

  params: Any
  encoding: 'Encoding' = struct.field(pytree_node=False)
  axes: tuple = struct.field(pytree_node=False)
  bidirectional: bool = struct.field(pytree_node=False, default=False)

  def __call__(self, q_pos: Any, k_pos: Any) -> jax.Array:
    """Bias of a tile, float32 `[H, Q, K]` or `[B, H, Q, K]`.

    Positions per head, `[B, Q, H]` and `[B, K, H]`, are evaluated by head, with
    the head's part of the parameters.
    """
    if is_per_head(q_pos):
      return _bias_by_head(self, q_pos, k_pos)
    return self.encoding.tile(
      self.params, q_pos, k_pos, bidirectional=self.bidirectional
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

  @property
  def slopes(self) -> jax.Array | None:
    """The slopes `[H]` of a bias per key, or None; see `Encoding.slopes`."""
    return self.encoding.slopes(self.params, bidirectional=self.bidirectional)

  def row_weights(
    self, before: Array, positions: Array, after: Array
  ) -> jax.Array:
    """Returns weights that interpolate rows of the bias between two anchors.

    Arguments are positions of queries and of the anchors around them, float32
    `[N]`. Weights are 0 at the anchor before and 1 at that after. They hold for
    keys up to the query.
    """
    first, here, last = (
      self.encoding.row_scale(self.params, p)
      for p in (before, positions, after)
    )
    # Where all rows are equal, any weight is correct.
    flat, apart = first == last, after - before
    weights = (here - first) / jnp.where(flat, 1.0, last - first)
    # Far positions of both anchors may be equal in float32.
    linear = (positions - before) / jnp.where(apart == 0, 1.0, apart)
    return jnp.where(flat, linear, weights)


@struct.dataclass
class ContentFn:
  """Terms of attention that depend on positions and contents; see BiasFn."""

  params: Any
  encoding: 'Encoding' = struct.field(pytree_node=False)
  axes: tuple = struct.field(pytree_node=False)

  def logits(self, q: Array, k: Array, q_pos: Any, k_pos: Any) -> jax.Array:
    """Returns the term added to q k before scaling, float32 `[B, H, Q, K]`.

    q is `[B, Q, H, D]` and k `[B, K, H, D]`; positions are as in `BiasFn`.
    """
    if is_per_head(q_pos):
      return _by_head(
        self,
        lambda params, head, q, k, i, j: self.encoding.content_logits(
          params, q[:, :, None], k[:, :, None], i.value, j.value
        ),
        (q, k, q_pos, k_pos),
      )
    return self.encoding.content_logits(self.params, q, k, q_pos, k_pos)

  def values(self, weights: Array, q_pos: Any, k_pos: Any) -> jax.Array | None:
    """Returns the term added to the output, float32 `[B, Q, H, D]`, or None.

    Attention weights are `[B, H, Q, K]`.

    Raises:
      errors.CombinationError: the encoding adds to values, and the positions
        are per head.
    """
    if not self.encoding.adds_to_values:
      return None
    if is_per_head(q_pos):
      raise errors.CombinationError(
        f'{specs.name(self.encoding)} adds to values and does not support '
        'positions per head'
      )
    return self.encoding.content_sums(self.params, weights, q_pos, k_pos)


class Band(struct.PyTreeNode):
  """Queries and keys for the pairs of a band of attention.

  A pair is in the band if the place of the query minus that of the key is at
  least the first and less than the second of `limits`. Bands are disjoint.

  Attributes:
    q: `[B, Q, H, D]`.
    k: `[B, K, G, D]`.
    q_places: float32 `[1 or B, Q, 1 or H]`.
    k_places: float32 `[1 or B, K, 1 or H]`.
    limits: two numbers.
  """

  q: Any
  k: Any
  q_places: Any
  k_places: Any
  limits: tuple[float, float] = struct.field(pytree_node=False)


def is_per_head(positions: Any) -> bool:
  """Returns whether positions differ by head, `[B, N, H]`."""
  if isinstance(positions, Distances):
    return False
  return isinstance(positions, PerHead) or positions.ndim == 3


def _bias_by_head(bias: BiasFn, q_pos: Any, k_pos: Any) -> jax.Array:
  """Returns the bias of a tile at positions per head, `[B, H, Q, K]`."""
  encoding, bidirectional = bias.encoding, bias.bidirectional
  num_heads = q_pos.shape[2]

  def tile(params: Params, head: Array, i: PerHead, j: PerHead) -> jax.Array:
    if encoding.takes_distances:
      found = encoding.strip(params, i.to(j), bidirectional=bidirectional)
      found = jnp.moveaxis(found, 0, 1)
    else:
      found = encoding.tile(
        params, i.value, j.value, bidirectional=bidirectional
      )
    if found.shape[1] == 1:
      return found
    if found.shape[1] != num_heads:
      # On a mesh, each device has some of the heads.
      raise errors.ConfigError(
        f'the bias function returned {found.shape[1]} heads for positions of '
        f"{num_heads}; if heads are split over devices, use 'reference'"
      )
    # Without parameters per head, the function returns all heads.
    return jax.lax.dynamic_slice_in_dim(found, head, 1, axis=1)

  return _by_head(bias, tile, (q_pos, k_pos))


def _by_head(
  fn: BiasFn | ContentFn, of_head: Callable[..., jax.Array], arrays: tuple
) -> jax.Array:
  """Returns `of_head` of all heads, `[B, H, Q, K]`.

  `of_head` takes the parameters of one head, its index, and the arrays without
  their third axis, the heads; it returns `[B, 1, Q, K]`.
  """
  *others, q_pos, k_pos = arrays
  q_pos, k_pos = (
    p if isinstance(p, PerHead) else PerHead(p) for p in (q_pos, k_pos)
  )
  names = sorted(fn.params)
  axis_of = {
    name: axes.index('heads')
    for name, axes in zip(names, fn.axes, strict=True)
    if 'heads' in axes
  }
  split = {
    n: jnp.moveaxis(fn.params[n], axis, 0) for n, axis in axis_of.items()
  }

  def one(inputs: tuple) -> jax.Array:
    own, head, arrays = inputs
    own = {n: jnp.expand_dims(x, axis_of[n]) for n, x in own.items()}
    return of_head({**fn.params, **own}, head, *arrays)[:, 0]

  by_head = jax.tree.map(
    lambda x: jnp.moveaxis(x, 2, 0), (*others, q_pos, k_pos)
  )
  inputs = split, jnp.arange(q_pos.shape[2]), by_head
  if fn.encoding.takes_distances:
    found = jax.vmap(one)(inputs)
  else:
    # One head at a time: hidden layers of all heads would need H times the
    # memory.
    found = jax.lax.map(jax.checkpoint(one), inputs)
  return jnp.moveaxis(found, 0, 1)
