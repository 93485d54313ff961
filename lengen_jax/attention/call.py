"""One call of attention: its arrays, masks and options, checked once.

`dot_product_attention` makes an `AttentionCall`; every implementation takes it,
and `AttentionCall.specs` splits it over a mesh. A new argument of attention is
a new field here.

Shapes: B batch, Q queries, K keys, N either, H heads, G key heads, D head_dim.
"""

from collections.abc import Callable
import numbers
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors, partitioning, specs
from lengen_jax.attention import visibility
from lengen_jax.positions import Distances, PerHead, segment_positions
from lengen_jax.types import Array

# Logical axes of queries, and of keys and values.
Q_AXES = ('batch', 'length', 'heads', None)
K_AXES = ('batch', None, 'heads', None)
# float32 does not represent every integer above this.
MAX_LENGTH = 2**24


class Side(struct.PyTreeNode):
  """The queries or the keys of a call, or a block of them."""

  index: Any  # int32 [1 or B, N], index among the keys.
  # int32 or float32 [N] or [1 or B, N], Distances, or PerHead [1 or B, N, H].
  positions: Any = None
  segment_ids: Any = None  # int32 [B, N]; None for one segment per row.
  sink: Any = None  # bool [1 or B, N], keys visible beyond the window, or None.
  lengths: Any = None  # int32 [B], keys from this index on are masked, or None.

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
    return whole.replace(index=self.index[:, :1] + index)

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
    """Returns a gradient with respect to `learned` as that of the side."""
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
    cap = self.logit_cap
    if cap is not None and not (isinstance(cap, numbers.Real) and cap > 0):
      raise errors.ConfigError(
        f'logit_cap must be a positive number or None, got {cap!r}'
      )
    _check_sink_logits(self.sink_logits, num_heads)
    _check_bias(self.bias, (batch, num_heads, q_length, k_length))
    contiguous = self.contiguous
    if contiguous is None:
      contiguous = queries.positions is None and keys.positions is None
    q_positions = checked_positions('q', queries, batch, num_heads, contiguous)
    k_positions = checked_positions('k', keys, batch, num_heads, contiguous)
    for kind, name in ((Distances, 'Distances'), (PerHead, 'per head')):
      if isinstance(q_positions, kind) != isinstance(k_positions, kind):
        raise errors.ConfigError(
          f'only one of q_positions and k_positions is {name}; pass both {name}'
        )
    if len(q_positions.shape) != len(k_positions.shape):
      q_positions = jnp.atleast_2d(q_positions)
      k_positions = jnp.atleast_2d(k_positions)
    return self.replace(
      queries=queries.replace(positions=q_positions),
      keys=keys.replace(positions=k_positions).with_sinks(self.mask.sinks),
      logit_scale=_logit_scale(self.logit_scale, batch, q_length, num_heads),
      scale=float(scale),
      contiguous=contiguous,
    )

  def specs(self) -> 'AttentionCall':
    """Returns the PartitionSpec of each array, as a tree like the call.

    `queries` and `keys` must be the results of `Side.indexed`. Keys and values
    are whole along the sequence on every device.
    """

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
      k=partitioning.spec(*K_AXES),
      v=partitioning.spec(*K_AXES),
      queries=of_side(self.queries, 'length'),
      keys=of_side(self.keys, None),
      bias=of_function(self.bias),
      content=of_function(self.content),
      logit_scale=jax.tree.map(lambda x: _spec(x, Q_AXES), self.logit_scale),
      sink_logits=jax.tree.map(
        lambda x: partitioning.spec('heads'), self.sink_logits
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


def pad(x: Array, block: int) -> jax.Array:
  """Returns `[B, N, ...]` with zeros up to a multiple of a block of N."""
  widths = [(0, 0), (0, -x.shape[1] % block)] + [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, widths)


def _check_mask(mask: visibility.Mask) -> None:
  """Raises unless window and sinks are integers in range."""
  for name, least in (('window', 1), ('sinks', 0)):
    value = getattr(mask, name)
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
    valid = ' or '.join(map(str, shapes))
    raise errors.ConfigError(
      f'{name} has shape {value.shape}; it must be {valid}'
    )


def _check_bias(bias: Any, pairs: tuple[int, ...]) -> None:
  """Raises unless a bias is a function, or broadcasts to pairs."""
  is_encoding = isinstance(bias, encodings.Encoding)
  if bias is None or (callable(bias) and not is_encoding):
    return
  if not hasattr(bias, 'shape'):
    fix = '; within apply, encodings.create(spec, ...).bias_fn() makes one'
    raise errors.ConfigError(
      f'bias must be a BiasFn, a function or an array, got {bias!r:.60}{fix}'
    )
  sizes = zip(bias.shape[::-1], pairs[::-1], strict=False)
  if bias.ndim > 4 or not all(size in (1, whole) for size, whole in sizes):
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


def _check_sink_logits(sink_logits: Any, num_heads: int) -> None:
  """Raises unless sink logits are None or float32 `[H]`."""
  if sink_logits is None:
    return
  shape = getattr(sink_logits, 'shape', type(sink_logits).__name__)
  dtype = getattr(sink_logits, 'dtype', '')
  if shape != (num_heads,) or dtype != jnp.float32:
    raise errors.ConfigError(
      f'sink_logits are {dtype} {shape}; they must be float32 ({num_heads},), '
      'one per query head'
    )


def checked_positions(
  name: str, side: Side, batch: int, num_heads: int, contiguous: bool
) -> Any:
  """Returns checked positions of a side; standard ones for None."""
  given, length = side.positions, side.index.shape[1]
  if given is None:
    return side.index[0] if side.index.shape[0] == 1 else side.index
  shapes = [(1, length), (batch, length)]
  if isinstance(given, Distances):
    if contiguous:
      raise errors.ConfigError(
        'contiguous=True contradicts Distances, which are drawn; leave it out'
      )
    if given.index is None:
      given = given.at(jnp.arange(given.r.shape[-1], dtype=jnp.int32)[None])
    shape = *given.r.shape[:-1], given.index.shape[-1]
    if shape not in shapes:
      raise errors.ConfigError(
        f'{name}_positions are Distances of shape {shape}; they must be '
        f'{shapes[-1]}'
      )
    return given
  if encodings.is_per_head(given):
    if contiguous:
      raise errors.ConfigError(
        'contiguous=True contradicts positions per head; leave it out'
      )
    given = given if isinstance(given, PerHead) else PerHead(given)
    shapes = [(*shape, num_heads) for shape in shapes]
    if given.shape not in shapes or given.value.dtype != jnp.float32:
      raise errors.ConfigError(
        f'{name}_positions per head are {given.value.dtype} {given.shape}; '
        f'they must be float32 {shapes[-1]}'
      )
    return given
  if given.dtype not in (jnp.int32, jnp.float32):
    raise errors.ConfigError(
      f'{name}_positions are {given.dtype}; positions are int32 or float32 '
      'whatever the dtype of the model'
    )
  if given.shape not in ((length,), *shapes):
    raise errors.ConfigError(
      f'{name}_positions have shape {given.shape}; they must be {(length,)} or '
      f'{shapes[-1]}'
    )
  return jax.lax.stop_gradient(given)


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
  shape, sizes = logit_scale.shape, ((), (1,), (num_heads,))
  if shape not in {(n, q_length, *m) for n in (1, batch) for m in sizes}:
    raise errors.ConfigError(
      f'logit_scale has shape {shape}; it must be '
      f'{(batch, q_length)} or {(batch, q_length, num_heads)}'
    )
  return logit_scale.reshape(*shape[:2], -1)


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
