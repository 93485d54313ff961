"""One call of attention: its arrays, masks and options, checked once.

`dot_product_attention` makes an `AttentionCall`; every implementation takes it,
and `AttentionCall.specs` splits it over a mesh. A new argument of attention is
a new field here.

Shapes: B batch, Q queries, K keys, N either, H heads, G key heads, D head_dim.
"""

from collections.abc import Callable
import dataclasses
import numbers
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors, partitioning, specs
from lengen_jax import positions as position_schemes
from lengen_jax.attention import visibility
from lengen_jax.positions import Positions
from lengen_jax.types import Array

# Logical axes of queries, and of keys and values.
Q_AXES = ('batch', 'length', 'heads', None)
K_AXES = ('batch', None, 'heads', None)
# float32 does not represent every integer above this.
MAX_LENGTH = 2**24


class Side(struct.PyTreeNode):
  """The queries or the keys of a call, or a block of them.

  Attributes:
    index: int32 `[1 or B, N]`, index among the keys.
    positions: int32 or float32 `[N]` or `[1 or B, N]`, or Distances.
    segment_ids: int32 `[B, N]`; None for one segment per row.
    sink: bool `[1 or B, N]`, keys that stay visible beyond the window; None
      for none.
    lengths: int32 `[B]`, keys from this index on are masked; None for none.
  """

  index: Any
  positions: Any = None
  segment_ids: Any = None
  sink: Any = None
  lengths: Any = None

  def map(self, function: Callable[[Any], Any]) -> 'Side':
    """Returns the same with a function applied to each array over tokens."""

    def of(x: Any) -> Any:
      if isinstance(x, position_schemes.Distances):
        return dataclasses.replace(x, index=of(x.index), start=of(x.start))
      return None if x is None else function(x)

    return self.replace(
      index=of(self.index),
      positions=of(self.positions),
      segment_ids=of(self.segment_ids),
      sink=of(self.sink),
    )

  def indexed(self) -> 'Side':
    """Returns the same with positions that can be split over tokens."""
    positions = self.positions
    if not isinstance(positions, position_schemes.Distances):
      return self.replace(positions=jnp.atleast_2d(positions))
    if positions.index is not None:
      return self
    index = jnp.arange(positions.r.shape[-1], dtype=jnp.int32)[None]
    return self.replace(positions=positions.at(index))

  def padded(self, block: int) -> 'Side':
    """Returns the same with whole blocks of tokens; indices continue."""
    whole = self.indexed().map(lambda x: pad(x, block))
    index = jnp.arange(whole.index.shape[1], dtype=jnp.int32)[None]
    return whole.replace(index=self.index[:, :1] + index)

  def block(self, n: int | Array, size: int) -> 'Side':
    """Returns block n of `size` tokens, of arrays that are `padded`."""
    return self.map(
      lambda x: jax.lax.dynamic_slice_in_dim(x, n * size, size, axis=1)
    )

  def with_sinks(self, sinks: int) -> 'Side':
    """Returns the same with the first keys of each segment as sinks."""
    if not sinks:
      return self
    in_segment = self.index
    if self.segment_ids is not None:
      in_segment = position_schemes.segment_positions(self.segment_ids)
    return self.replace(sink=in_segment < sinks)


def visible_pairs(
  mask: visibility.Mask, queries: Side, keys: Side
) -> jax.Array | None:
  """Returns which keys each query sees, bool `[1 or B, Q, K]`; None for all."""

  def of_keys(x_BxK: Any) -> Any:
    return None if x_BxK is None else x_BxK[:, None, :]

  q_ids_BxQ, k_lengths_B = queries.segment_ids, keys.lengths
  return visibility.visible(
    mask,
    queries.index[:, :, None],
    of_keys(keys.index),
    q_segment_ids=None if q_ids_BxQ is None else q_ids_BxQ[:, :, None],
    k_segment_ids=of_keys(keys.segment_ids),
    sink=of_keys(keys.sink),
    k_lengths=None if k_lengths_B is None else k_lengths_B[:, None, None],
  )


class AttentionCall(struct.PyTreeNode):
  """Arguments of `dot_product_attention`; `checked` validates them.

  Attributes:
    q: `[B, Q, H, D]`.
    k: `[B, K, G, D]`.
    v: `[B, K, G, D]`.
    queries: the Side of the queries.
    keys: the Side of the keys.
    bias: BiasFn or None; for the reference also a function or an array.
    content: ContentFn or None.
    logit_scale: float32 `[1 or B, Q, 1 or H]`, or None.
    mask: causality, window and sinks.
    scale: factor on the logits.
    q_offset: index of the first query among the keys; None if it is only known
      as an array, `queries.index`.
    contiguous: within a segment, differences of positions equal those of
      indices.
    bias_form: one of `bias_forms.FORMS`.
  """

  q: Any
  k: Any
  v: Any
  queries: Side
  keys: Side
  bias: Any
  content: Any
  logit_scale: Any
  mask: visibility.Mask = struct.field(pytree_node=False)
  scale: float = struct.field(pytree_node=False)
  q_offset: int | None = struct.field(pytree_node=False)
  contiguous: bool = struct.field(pytree_node=False)
  bias_form: str = struct.field(pytree_node=False)

  def checked(self) -> 'AttentionCall':
    """Returns the call with defaults filled in.

    Raises:
      errors.ConfigError: arguments that do not fit together.
    """
    batch, q_length, num_heads, head_dim = self.q.shape
    k_length = self.k.shape[1]
    queries, keys = self.queries, self.keys
    _check_mask(self.mask)
    for name, value, shape in (
      ('k_lengths', keys.lengths, (batch,)),
      ('q_segment_ids', queries.segment_ids, (batch, q_length)),
      ('k_segment_ids', keys.segment_ids, (batch, k_length)),
    ):
      if value is not None:
        _check_integers(name, value, [shape])
    if (queries.segment_ids is None) != (keys.segment_ids is None):
      raise errors.ConfigError(
        'q_segment_ids and k_segment_ids go together; got one of them'
      )
    scale = head_dim**-0.5 if self.scale is None else self.scale
    if not isinstance(scale, numbers.Real):
      raise errors.ConfigError(
        f'scale must be a number, got {scale!r}; pass an array as logit_scale'
      )
    _check_bias(self.bias, (batch, num_heads, q_length, k_length))
    contiguous = self.contiguous
    if contiguous is None:
      contiguous = queries.positions is None and keys.positions is None
    q_positions, k_positions = _positions(
      queries, keys, batch, contiguous=contiguous
    )
    return self.replace(
      queries=queries.replace(positions=q_positions),
      keys=keys.replace(positions=k_positions).with_sinks(self.mask.sinks),
      logit_scale=_logit_scale(self.logit_scale, batch, q_length, num_heads),
      scale=float(scale),
      contiguous=contiguous,
    )

  def specs(self) -> 'AttentionCall':
    """Returns the PartitionSpec of each array, as a tree like the call.

    Both sides must be `indexed`. Keys and values are whole along the sequence
    on every device.
    """

    def of_side(side: Side, length: str | None) -> Side:
      found = side.map(lambda x: _spec(x, ('batch', length, 'heads')))
      positions = found.positions
      if isinstance(positions, position_schemes.Distances):
        r = _spec(positions.r, ('batch', None))
        positions = dataclasses.replace(positions, r=r)
      lengths = _spec(side.lengths, ('batch',))
      return found.replace(positions=positions, lengths=lengths)

    def of_function(function: Any) -> Any:
      # Parameters per head are split with the heads.
      if function is None:
        return None
      own = [partitioning.spec(*axes) for axes in function.axes]
      return jax.tree.unflatten(jax.tree.structure(function), own)

    return self.replace(
      q=partitioning.spec(*Q_AXES),
      k=partitioning.spec(*K_AXES),
      v=partitioning.spec(*K_AXES),
      queries=of_side(self.queries, 'length'),
      keys=of_side(self.keys, None),
      bias=of_function(self.bias),
      content=of_function(self.content),
      logit_scale=_spec(self.logit_scale, Q_AXES),
    )


def query_index(
  q_offset: int | Array, batch: int, q_length: int
) -> tuple[Array, int | None]:
  """Returns indices of queries among the keys, and `q_offset` if it is an int.

  Args:
    q_offset: index of the first query, an int or int32 `[]` or `[B]`.
    batch: B.
    q_length: Q.

  Returns:
    int32 `[1 or B, Q]`; an int or None.
  """
  static = None
  if isinstance(q_offset, numbers.Integral):
    static = int(q_offset)
  else:
    _check_integers('q_offset', q_offset, [(), (batch,)])
  first_Bx1 = jnp.reshape(jnp.asarray(q_offset, jnp.int32), (-1, 1))
  return first_Bx1 + jnp.arange(q_length, dtype=jnp.int32)[None], static


def check_vectors(q: Array, k: Array, v: Array) -> None:
  """Raises ConfigError unless q, k and v are arrays that fit together."""
  for name, value in (('q', q), ('k', k), ('v', v)):
    if not hasattr(value, 'shape'):
      raise errors.ConfigError(
        f'{name} must be an array, got {type(value).__name__}'
      )
    if not jnp.issubdtype(value.dtype, jnp.floating):
      raise errors.ConfigError(
        f'{name} is {value.dtype}; it must be of a floating-point dtype'
      )
  if {q.ndim, k.ndim, v.ndim} != {4} or v.shape[:3] != k.shape[:3]:
    raise errors.ConfigError(
      'q, k and v must be [B, length, heads, head_dim], of the same B, length '
      f'and heads for k and v; got {q.shape}, {k.shape}, {v.shape}'
    )
  if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
    raise errors.ConfigError(
      f'q {q.shape} and k {k.shape} differ in batch or head_dim'
    )
  if k.shape[2] and q.shape[2] % k.shape[2]:
    raise errors.ConfigError(
      f'{q.shape[2]} query heads are not a multiple of {k.shape[2]} key heads'
    )
  if 0 in (*q.shape, *k.shape):
    raise errors.ConfigError(
      f'q and k must not be empty: got q {q.shape}, k {k.shape}'
    )
  longest = max(q.shape[1], k.shape[1])
  if longest > MAX_LENGTH:
    raise errors.ConfigError(
      f'length {longest} is over {MAX_LENGTH}, beyond which float32 does not '
      'represent every position'
    )


def tiles_refused(
  bias: Callable[..., Array] | Array | None, content: Any
) -> str | None:
  """Returns why attention cannot be computed by tiles; None if it can."""
  if bias is not None and not isinstance(bias, encodings.BiasFn):
    return 'takes a bias as a BiasFn only, not as an array or a bare function'
  if content is not None and not isinstance(content, encodings.ContentFn):
    return 'takes content as a ContentFn only'
  for term in (bias, content):
    if term is not None and not term.encoding.tileable:
      name = specs.describe(term.encoding)
      return f'cannot compute {name} for one tile at a time'
  return None


def pad(x: Any, block: int) -> Any:
  """Returns `[B, N, ...]` with zeros up to a multiple of a block of N."""
  if x is None:
    return None
  widths = [(0, 0), (0, -x.shape[1] % block)] + [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, widths)


def _check_mask(mask: visibility.Mask) -> None:
  """Raises unless window and sinks are integers in range."""
  for name, value, least in (
    ('window', mask.window, 1),
    ('sinks', mask.sinks, 0),
  ):
    whole = isinstance(value, numbers.Integral)
    if value is not None and not (whole and value >= least):
      raise errors.ConfigError(
        f'{name} must be an integer, at least {least}; got {value}'
      )
  if mask.sinks and mask.window is None:
    raise errors.ConfigError(f'sinks={mask.sinks} needs a window')


def _check_integers(
  name: str, value: Any, shapes: list[tuple[int, ...]]
) -> None:
  """Raises unless a value is an array of integers of one of the shapes."""
  dtype = getattr(value, 'dtype', None)
  if dtype is None or not jnp.issubdtype(dtype, jnp.integer):
    raise errors.ConfigError(
      f'{name} must hold integers, got {dtype or type(value).__name__}; '
      f'pass an array of shape {shapes[-1]}'
    )
  if value.shape not in shapes:
    raise errors.ConfigError(
      f'{name} has shape {value.shape}; it must be '
      + ' or '.join(map(str, shapes))
    )


def _check_bias(bias: Any, pairs: tuple[int, ...]) -> None:
  """Raises unless a bias is a function, or broadcasts to pairs."""
  is_encoding = isinstance(bias, encodings.Encoding)
  if bias is None or (callable(bias) and not is_encoding):
    return
  if not hasattr(bias, 'shape'):
    fix = ''
    if isinstance(bias, str) or is_encoding:
      fix = (
        '; encodings.create(spec, ...) makes an encoding from a spec, and its '
        'bias_fn(), called within apply, returns the BiasFn'
      )
    raise errors.ConfigError(
      f'bias must be a BiasFn, a function or an array, got {bias!r:.60}{fix}'
    )
  fits = bias.ndim <= 4 and all(
    size in (1, whole)
    for size, whole in zip(bias.shape[::-1], pairs[::-1], strict=False)
  )
  if not fits:
    raise errors.ConfigError(
      f'bias has shape {bias.shape}; it must broadcast to {pairs}'
    )


def check_bias_shape(bias: Array, pairs: tuple[int, ...]) -> None:
  """Raises unless a bias has shape (H, q, k), (1, H, q, k) or `pairs`."""
  if bias.shape not in (pairs[1:], (1, *pairs[1:]), pairs):
    raise errors.ConfigError(
      f'the bias function returned shape {bias.shape}; it must be {pairs[1:]}, '
      f'or {pairs} for positions with a batch'
    )


def _positions(
  queries: Side, keys: Side, batch: int, *, contiguous: bool
) -> tuple[Positions, Positions]:
  """Returns checked positions of both sides; standard ones for None."""
  q, k = queries.positions, keys.positions
  if not isinstance(q, position_schemes.Distances):
    q = _position_array('q', queries, batch)
    k = _position_array('k', keys, batch)
    if q.ndim != k.ndim:
      q, k = jnp.atleast_2d(q), jnp.atleast_2d(k)
    return q, k
  if contiguous:
    raise errors.ConfigError(
      'contiguous=True contradicts Distances, which are drawn; leave it out'
    )
  if not isinstance(k, position_schemes.Distances):
    raise errors.ConfigError(
      'q_positions are Distances and k_positions are not; pass Distances for '
      'both'
    )
  for name, distances, side in (('q', q, queries), ('k', k, keys)):
    length = side.index.shape[1]
    shape = distances.r.shape
    if distances.index is not None:
      shape = (distances.r.shape[0], distances.index.shape[-1])
    if shape not in ((1, length), (batch, length)):
      raise errors.ConfigError(
        f'{name}_positions are Distances of shape {shape}; they must be '
        f'{(batch, length)}'
      )
  return q, k


def _position_array(name: str, side: Side, batch: int) -> Array:
  """Returns positions `[N]` or `[1 or B, N]`; standard ones for None."""
  positions, length = side.positions, side.index.shape[1]
  if positions is None:
    return side.index[0] if side.index.shape[0] == 1 else side.index
  if positions.dtype not in (jnp.int32, jnp.float32):
    raise errors.ConfigError(
      f'{name}_positions are {positions.dtype}; positions are int32 or float32'
      ' whatever the dtype of the model'
    )
  if positions.shape not in ((length,), (1, length), (batch, length)):
    raise errors.ConfigError(
      f'{name}_positions have shape {positions.shape}; they must be '
      f'{(length,)} or {(batch, length)}'
    )
  return jax.lax.stop_gradient(positions)


def _logit_scale(
  logit_scale: Any, batch: int, q_length: int, num_heads: int
) -> Array | None:
  """Returns a checked logit scale, `[1 or B, Q, 1 or H]`."""
  if logit_scale is None:
    return None
  if not hasattr(logit_scale, 'shape'):
    raise errors.ConfigError(
      f'logit_scale must be an array, got {logit_scale!r}; pass a number as '
      'scale'
    )
  shape = logit_scale.shape
  if (
    len(shape) not in (2, 3)
    or shape[0] not in (1, batch)
    or shape[1] != q_length
    or shape[2:] not in ((), (1,), (num_heads,))
  ):
    raise errors.ConfigError(
      f'logit_scale has shape {shape}; it must be '
      f'{(batch, q_length)} or {(batch, q_length, num_heads)}'
    )
  return logit_scale.reshape(*shape[:2], -1)


def _spec(
  array: Array | None, axes: tuple[str | None, ...]
) -> jax.sharding.PartitionSpec | None:
  """Returns the spec of an array's first axes; axes of size 1 are not split."""
  if array is None:
    return None
  return partitioning.spec(
    *(
      None if size == 1 else axis
      for size, axis in zip(array.shape, axes, strict=False)
    )
  )
