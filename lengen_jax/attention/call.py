"""One call of attention: its arrays, masks and options, checked once.

`dot_product_attention` makes an `AttentionCall`; every implementation takes it,
and `AttentionCall.specs` splits it over a mesh. A new argument of attention is
a new field here.

Shapes: B batch, Q queries, K keys, N either, H heads, G key heads, D head_dim.
"""

from collections.abc import Callable
import dataclasses
import math
import numbers
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors, partitioning
from lengen_jax.attention import checks, visibility
from lengen_jax.positions import Distances, PerHead, segment_positions
from lengen_jax.types import Array

# Logical axes of queries, and of keys and values.
Q_AXES = ('batch', 'length', 'heads', None)
K_AXES = ('batch', None, 'heads', None)


class Side(struct.PyTreeNode):
  """The queries or the keys of a call, or a block of them."""

  index: Any  # int32 [1 or B, N], index among the keys.
  # int32 or float32 [N] or [1 or B, N], Distances, or PerHead [1 or B, N, H].
  positions: Any = None
  segment_ids: Any = None  # int32 [B, N]; None for one segment per row.
  sink: Any = None  # bool [1 or B, N], keys visible beyond the window, or None.
  lengths: Any = None  # int32 [B], keys from this index on are masked, or None.
  places: Any = None  # float32 [1 or B, N, 1 or H], those of a `Band`, or None.

  def map(self, function: Callable[[Any], Any]) -> 'Side':
    """Returns the same with a function applied to each array over tokens."""

    def of(path: tuple[Any, ...], x: Any) -> Any:
      return x if path[-1].name in ('r', 'lengths') else function(x)

    return jax.tree_util.tree_map_with_path(of, self)

  def indexed(self) -> 'Side':
    """Returns the same with positions that can be split over tokens."""
    return self.replace(positions=jax.tree.map(jnp.atleast_2d, self.positions))

  def padded(self, block: int) -> 'Side':
    """Returns the same with whole blocks of tokens; indices continue."""
    whole = self.indexed().map(lambda x: pad(x, block))
    index = jnp.arange(whole.index.shape[1], dtype=jnp.int32)[None]
    # Padding repeats the last place, so that it adds no tile to a band.
    places = jax.tree.map(lambda x: pad(x, block, mode='edge'), self.places)
    return whole.replace(index=self.index[:, :1] + index, places=places)

  def block(self, n: int | Array, size: int) -> 'Side':
    """Returns block n of `size` tokens, of arrays that are `padded`."""
    return self.map(
      lambda x: jax.lax.dynamic_slice_in_dim(x, n * size, size, axis=1)
    )

  @property
  def learned(self) -> Any:
    """Positions that have a gradient, or None."""
    own = self.positions
    return own.value if isinstance(own, PerHead) else None

  def with_learned(self, value: Any) -> 'Side':
    """Returns the same with other values of `learned`, if it is not None."""
    if value is None:
      return self
    return self.replace(positions=self.positions.replace(value=value))

  def gradient(self, value: Any) -> 'Side | None':
    """Returns a gradient with respect to `learned` as a Side."""
    return None if value is None else Side(None, PerHead(value))

  def with_sinks(self, sinks: int) -> 'Side':
    """Returns the same with the first keys of each segment as sinks."""
    if not sinks:
      return self
    in_segment = self.index
    if self.segment_ids is not None:
      in_segment = segment_positions(self.segment_ids)
    return self.replace(sink=in_segment < sinks)


def visible_pairs(
  mask: visibility.Mask, queries: Side, keys: Side
) -> jax.Array | None:
  """Returns which keys each query sees, bool `[1 or B, Q, K]`; None for all."""

  def of(x: Any, *axes: int) -> Any:
    return None if x is None else jnp.expand_dims(x, axes)

  return visibility.visible(
    mask,
    of(queries.index, 2),
    of(keys.index, 1),
    q_segment_ids=of(queries.segment_ids, 2),
    k_segment_ids=of(keys.segment_ids, 1),
    sink=of(keys.sink, 1),
    k_lengths=of(keys.lengths, 1, 2),
  )


class AttentionCall(struct.PyTreeNode):
  """Arguments of `dot_product_attention`; `checked` validates them.

  Fields without a comment are as in `dot_product_attention`; `q_offset` is None
  if it is only known as an array, `queries.index`.
  """

  q: Any  # [B, Q, H, D]
  k: Any  # [B, K, G, D]
  v: Any  # [B, K, G, D]
  queries: Side
  keys: Side
  bias: Any
  content: Any
  logit_scale: Any  # [1 or B, Q, 1 or H]
  sink_logits: Any  # float32 [H], or None.
  mask: visibility.Mask = struct.field(pytree_node=False)
  scale: float = struct.field(pytree_node=False)
  q_offset: int | None = struct.field(pytree_node=False)
  contiguous: bool = struct.field(pytree_node=False)
  bias_form: str = struct.field(pytree_node=False)
  logit_cap: float | None = struct.field(pytree_node=False, default=None)
  bands: tuple[encodings.Band, ...] = ()

  def checked(self) -> 'AttentionCall':
    """Returns the call with defaults filled in.

    Raises:
      errors.ConfigError: shapes, dtypes or options that do not fit together.
      errors.CombinationError: the encoding of `bias` or `content` does not
        support the positions, or packed rows.
    """
    batch, q_length, num_heads, head_dim = self.q.shape
    k_length = self.k.shape[1]
    queries, keys = self.queries, self.keys
    checks.check_mask(self.mask)
    window, sinks = self.mask.window, min(self.mask.sinks, checks.MAX_REACH)
    if window is not None:
      window = min(window, checks.MAX_REACH)
    mask = dataclasses.replace(self.mask, window=window, sinks=sinks)
    for name, value, shape in (
      ('k_lengths', keys.lengths, (batch,)),
      ('q_segment_ids', queries.segment_ids, (batch, q_length)),
      ('k_segment_ids', keys.segment_ids, (batch, k_length)),
    ):
      if value is not None:
        checks.check_integers(name, value, [shape])
    # In a narrower dtype, the number of keys may wrap around.
    queries, keys = (
      side.replace(
        **{
          name: jnp.asarray(value, jnp.int32)
          for name in ('segment_ids', 'lengths')
          if (value := getattr(side, name)) is not None
        }
      )
      for side in (queries, keys)
    )
    if (queries.segment_ids is None) != (keys.segment_ids is None):
      raise errors.ConfigError(
        'pass both q_segment_ids and k_segment_ids, or neither'
      )
    scale = head_dim**-0.5 if self.scale is None else self.scale
    if not isinstance(scale, numbers.Real):
      raise errors.ConfigError(
        f'scale must be a number, got {scale!r}; pass an array as logit_scale'
      )
    cap = self.logit_cap
    if cap is not None and not (isinstance(cap, numbers.Real) and cap > 0):
      raise errors.ConfigError(
        f'logit_cap must be a positive number or None, got {cap!r}'
      )
    for name, value in (('scale', scale), ('logit_cap', cap)):
      if value is not None and not math.isfinite(value):
        raise errors.ConfigError(f'{name} must be finite, got {value}')
    checks.check_sink_logits(self.sink_logits, num_heads)
    for band in self.bands:
      checks.check_band(band, self.q.shape, self.k.shape)
    checks.check_bias(self.bias, (batch, num_heads, q_length, k_length))
    contiguous = self.contiguous
    if contiguous is None:
      contiguous = queries.positions is None and keys.positions is None
    q_positions = checks.checked_positions(
      'q', queries, batch, num_heads, contiguous
    )
    k_positions = checks.checked_positions(
      'k', keys, batch, num_heads, contiguous
    )
    for kind, name in ((Distances, 'Distances'), (PerHead, 'per head')):
      if isinstance(q_positions, kind) != isinstance(k_positions, kind):
        raise errors.ConfigError(
          f'only one of q_positions and k_positions is {name}; pass both {name}'
        )
    for term in (self.bias, self.content):
      for given in (q_positions, k_positions):
        checks.check_term(term, given, packed=queries.segment_ids is not None)
    if contiguous and _of_distance(self.bias) and _of_distance(self.content):
      # Indices have the same differences, and are equal in all rows.
      q_positions, k_positions = queries.index, keys.index
    if len(q_positions.shape) != len(k_positions.shape):
      q_positions = jnp.atleast_2d(q_positions)
      k_positions = jnp.atleast_2d(k_positions)
    return self.replace(
      queries=queries.replace(positions=q_positions),
      keys=keys.replace(positions=k_positions).with_sinks(sinks),
      mask=mask,
      logit_scale=checks.checked_logit_scale(
        self.logit_scale, batch, q_length, num_heads
      ),
      scale=float(scale),
      contiguous=contiguous,
    )

  def specs(self, k_length: str | None = None) -> 'AttentionCall':
    """Returns the PartitionSpec of each array, as a tree like the call.

    `queries` and `keys` must be the results of `Side.indexed`. Keys and values
    are split along the logical axis `k_length`; None for whole rows on every
    device.
    """
    k_spec = partitioning.spec('batch', k_length, 'heads', None)

    def of_side(side: Side, length: str | None) -> Side:
      def of(path: tuple[Any, ...], x: Any) -> Any:
        # Rows of Distances are whole on every device.
        own = None if path[-1].name == 'r' else length
        return _spec(x, ('batch', own, 'heads'))

      return jax.tree_util.tree_map_with_path(of, side)

    def of_function(function: Any) -> Any:
      # Parameters per head are split with the heads.
      if function is None:
        return None
      own = [partitioning.spec(*axes) for axes in function.axes]
      return jax.tree.unflatten(jax.tree.structure(function), own)

    return self.replace(
      q=partitioning.spec(*Q_AXES),
      k=k_spec,
      v=k_spec,
      queries=of_side(self.queries, 'length'),
      keys=of_side(self.keys, k_length),
      bias=of_function(self.bias),
      content=of_function(self.content),
      logit_scale=jax.tree.map(lambda x: _spec(x, Q_AXES), self.logit_scale),
      sink_logits=jax.tree.map(
        lambda x: partitioning.spec('heads'), self.sink_logits
      ),
      bands=tuple(
        band.replace(
          q=partitioning.spec(*Q_AXES),
          k=k_spec,
          q_places=_spec(band.q_places, Q_AXES),
          k_places=_spec(band.k_places, ('batch', k_length, 'heads')),
        )
        for band in self.bands
      ),
    )


def query_index(
  q_offset: int | Array, batch: int, q_length: int
) -> tuple[Array, int | None]:
  """Returns indices of queries among the keys, and `q_offset` if it is an int.

  `q_offset` is the index of the first query, an int or int32 `[]` or `[B]`. The
  indices are int32 `[1 or B, Q]`.
  """
  static = int(q_offset) if isinstance(q_offset, numbers.Integral) else None
  if static is None:
    checks.check_integers('q_offset', q_offset, [(), (batch,)])
  first_Bx1 = jnp.reshape(jnp.asarray(q_offset, jnp.int32), (-1, 1))
  return first_Bx1 + jnp.arange(q_length, dtype=jnp.int32)[None], static


def pad(x: Array, block: int, mode: str = 'constant') -> jax.Array:
  """Pads `[B, N, ...]` at the end of axis N to a multiple of `block`.

  `mode` is that of `jnp.pad`; the default pads with zeros.
  """
  widths = [(0, 0), (0, -x.shape[1] % block)] + [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, widths, mode)


def _of_distance(term: Any) -> bool:
  """Returns whether a term depends on distances only, or is None."""
  if isinstance(term, encodings.BiasFn | encodings.ContentFn):
    return term.encoding.takes_distances
  return term is None


def _spec(
  array: Array, axes: tuple[str | None, ...]
) -> jax.sharding.PartitionSpec:
  """Returns the spec of an array's first axes; axes of size 1 are not split."""
  return partitioning.spec(
    *(
      None if size == 1 else axis
      for size, axis in zip(array.shape, axes, strict=False)
    )
  )
