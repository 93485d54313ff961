"""Checks of the arguments of attention.

Functions raise `errors.ConfigError` unless their docstring states otherwise.

Shapes: B batch, Q queries, K keys, H heads, G key heads, D head_dim.
"""

from collections.abc import Callable
import numbers
from typing import Any, TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import encodings, errors, specs
from lengen_jax.attention import visibility
from lengen_jax.positions import Distances, PerHead, tokens
from lengen_jax.types import Array

if TYPE_CHECKING:
  from lengen_jax.attention.call import Side

# float32 does not represent every integer above this.
MAX_LENGTH = 2**24
# Larger windows, sinks and chunks have the same effect, and sums must fit 32
# bits.
MAX_REACH = 2 * MAX_LENGTH


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


def check_term(term: Any, positions: Any, packed: bool) -> None:
  """Raises CombinationError unless a term of an encoding supports a call.

  Args:
    term: a BiasFn or ContentFn; others are not checked.
    positions: checked positions of queries or keys.
    packed: whether rows have segments.
  """
  if not isinstance(term, encodings.BiasFn | encodings.ContentFn):
    return
  encodings.check_positions(term.encoding, positions)
  if packed and not term.encoding.tileable:
    raise errors.CombinationError(
      f'{specs.describe(term.encoding)} depends on the number of keys and does '
      'not support packed or padded rows, such as those of generated tasks; '
      'leave out segment_ids, or create the encoding without official_compat'
    )


def check_mask(mask: visibility.Mask) -> None:
  """Raises unless `causal` is a bool, and window and sinks are in range."""
  if not isinstance(mask.causal, bool | np.bool_):
    raise errors.ConfigError(
      f'causal must be True or False, got {mask.causal!r:.60}'
    )
  for name, least in (('window', 1), ('sinks', 0)):
    value = getattr(mask, name)
    if name == 'window' and value is None:
      continue
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not (whole and value >= least):
      raise errors.ConfigError(
        f'{name} must be an integer, at least {least}; got {value}'
      )
  if mask.sinks and mask.window is None:
    raise errors.ConfigError(f'sinks={mask.sinks} needs a window')


def check_integers(
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


def check_bias(bias: Any, pairs: tuple[int, ...]) -> None:
  """Raises unless a bias is a function, or broadcasts to pairs."""
  is_encoding = isinstance(bias, encodings.Encoding)
  if bias is None or (callable(bias) and not is_encoding):
    return
  if not hasattr(bias, 'shape'):
    fix = '; within apply, encodings.create(spec, ...).bias_fn() makes one'
    raise errors.ConfigError(
      'bias must be a BiasFn, a function or an array, got '
      f'{errors.shown(bias)}{fix}'
    )
  check_bias_dtype(bias)
  sizes = zip(bias.shape[::-1], pairs[::-1], strict=False)
  if bias.ndim > 4 or not all(size in (1, whole) for size, whole in sizes):
    raise errors.ConfigError(
      f'bias has shape {bias.shape}; it must broadcast to {pairs}'
    )


def check_bias_dtype(bias: Array) -> None:
  """Raises unless a bias has floating-point values."""
  if not jnp.issubdtype(bias.dtype, jnp.floating):
    fix = 'convert it by bias.astype(jnp.float32)'
    if bias.dtype == bool:
      fix = (
        'for a mask, use causal, window or segment ids, or jnp.where(mask, '
        '0.0, -1e9)'
      )
    raise errors.ConfigError(
      f'bias has dtype {bias.dtype}, but it is added to the logits and must be '
      f'floating-point; {fix}'
    )


def check_bias_shape(bias: Array, pairs: tuple[int, ...]) -> None:
  """Raises unless a bias has shape (H, q, k), (1, H, q, k) or `pairs`."""
  if not hasattr(bias, 'shape'):
    raise errors.ConfigError(
      f'the bias function returned {bias!r:.60}; it must return an array of '
      f'shape {pairs[1:]}'
    )
  check_bias_dtype(bias)
  if bias.shape not in (pairs[1:], (1, *pairs[1:]), pairs):
    raise errors.ConfigError(
      f'the bias function returned shape {bias.shape}; it must be {pairs[1:]}, '
      f'or {pairs} for positions with a batch'
    )


def check_sink_logits(sink_logits: Any, num_heads: int) -> None:
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


def check_bands(bands: Any) -> None:
  """Raises unless `bands` is a list or tuple of bands."""
  if not isinstance(bands, list | tuple) or not all(
    isinstance(band, encodings.Band) for band in bands
  ):
    raise errors.ConfigError(
      f'bands must be a list or tuple of encodings.Band, got {bands!r:.60}'
    )


def check_band(
  band: encodings.Band, q_shape: tuple[int, ...], k_shape: tuple[int, ...]
) -> None:
  """Raises unless a band has the shapes of queries and keys."""
  batch, _, heads, _ = q_shape
  for name, vectors, places, shape in (
    ('q', band.q, band.q_places, q_shape),
    ('k', band.k, band.k_places, k_shape),
  ):
    valid = [(b, shape[1], h) for b in (1, batch) for h in (1, heads)]
    if vectors.shape != shape or places.shape not in valid:
      raise errors.ConfigError(
        f'a band has {name} {vectors.shape} with places {places.shape}; '
        f'expected {name} of shape {shape} with places of shape '
        f'{(batch, shape[1], 1)} or {valid[-1]}'
      )


def checked_positions(
  name: str, side: 'Side', batch: int, num_heads: int, contiguous: bool
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
  given = tokens.position_array(given)
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


def checked_logit_scale(
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
