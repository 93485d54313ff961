"""The one entry point of attention: checks its arguments, then dispatches."""

from collections.abc import Callable
import numbers
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax import specs
from lengen_jax.attention import bias_forms
from lengen_jax.attention import blockwise
from lengen_jax.attention import fused
from lengen_jax.attention import reference
from lengen_jax.attention import sharded
from lengen_jax.hints import Array

IMPLEMENTATIONS = {
  'reference': reference.attend,
  'blockwise': sharded.over_mesh(blockwise.attend),
  'pallas': sharded.over_mesh(fused.attend),
}
# From so many pairs on, 'auto' goes block by block.
_MANY_PAIRS = 512 * 512
# Whole numbers above this have gaps in float32.
MAX_LENGTH = 2**24


def dot_product_attention(
  q: Array,
  k: Array,
  v: Array,
  *,
  bias: encodings.BiasFn | Callable[..., Array] | Array | None = None,
  content: encodings.ContentFn | None = None,
  q_positions: position_schemes.Positions | None = None,
  k_positions: position_schemes.Positions | None = None,
  q_segment_ids: Array | None = None,
  k_segment_ids: Array | None = None,
  q_offset: int | Array = 0,
  k_lengths: Array | None = None,
  causal: bool,
  window: int | None = None,
  sinks: int = 0,
  scale: float | None = None,
  logit_scale: Array | None = None,
  contiguous: bool | None = None,
  bias_form: str = 'exact',
  implementation: str = 'auto',
) -> jax.Array:
  """softmax((q k + content) scale logit_scale + bias) v.

  Masks go by index, segment and length only, never by position: positions may
  repeat. Logits and softmax are float32.

  Args:
    q: `[B, Q, H, D]`.
    k: `[B, K, G, D]`; H is a multiple of G, query head h reads head h G // H.
    v: `[B, K, G, D]`.
    bias: a function of positions, `BiasFn`; or, for the reference, any
      function of them or a float32 array that broadcasts to `[B, H, Q, K]`.
    content: a `ContentFn`, a function of contents and positions.
    q_positions: int32 or float32, `[Q]` or `[B, Q]`; None for the standard
      ones, `q_offset + arange(Q)`. Or `positions.Distances` of the queries.
    k_positions: likewise `[K]` or `[B, K]`; None for `arange(K)`. Distances
      go with Distances.
    q_segment_ids: int32 `[B, Q]`; pairs of different segments are masked.
    k_segment_ids: int32 `[B, K]`.
    q_offset: index of the first query among the keys, an int or int32 `[B]`.
    k_lengths: int32 `[B]`; keys from there on are masked.
    causal: whether keys after the query are masked.
    window: keys more than `window - 1` before (or, if not causal, after) the
      query are masked.
    sinks: so many first keys of a segment stay visible beyond the window.
    scale: factor on the logits, a number; None for 1/sqrt(D).
    logit_scale: float32 `[B, Q]` or `[B, Q, H]`, a factor per query.
    contiguous: True promises that within a segment differences of positions
      equal differences of indices; None is True where positions are None. It
      is taken at its word: the bias of a false promise is wrong wherever
      attention goes block by block.
    bias_form: 'exact'; 'anchored', which computes FIRE's bias at some queries
      and interpolates between, at contiguous positions and not in the
      reference, and gradients to match; 'auto', which is 'anchored' where that
      can be; or 'table', which no implementation has yet. A bias of distance
      alone is exact in any form. Which tiles of packed rows are anchored
      depends on what rows a device has ('blockwise'; in 'pallas' none are). See
      `bias_forms` and `fused`.
    implementation: 'reference', every pair in memory; 'blockwise', no array
      over all pairs, forward or backward; 'pallas', the same in kernels for
      TPUs and GPUs, without content terms or sinks (`fused`); or 'auto', which
      is 'blockwise' for many pairs where that can be.

  Returns:
    `[B, Q, H, D]` in the dtype of q.

  Raises:
    errors.ConfigError: shapes, dtypes or options that do not go together, or
      something that the implementation lacks, named.
  """
  _check_arrays(q, k, v)
  batch, q_length, num_heads, head_dim = q.shape
  k_length = k.shape[1]
  if implementation not in ('auto', *IMPLEMENTATIONS):
    raise errors.ConfigError(
      errors.one_of(
        'attention implementation', implementation, ['auto', *IMPLEMENTATIONS]
      )
    )
  if bias_form not in bias_forms.FORMS:
    raise errors.ConfigError(
      errors.one_of('bias_form', bias_form, bias_forms.FORMS)
    )
  if bias_form == 'table':
    raise errors.ConfigError(
      "bias_form='table' is not available with any implementation; use 'exact' "
      "or 'anchored'"
    )
  approximate = bias_form == 'anchored'
  if approximate and implementation == 'reference':
    raise errors.ConfigError(
      f'bias_form={bias_form!r} is not available with implementation='
      "'reference'; use 'blockwise'"
    )
  for name, value, least in (('window', window, 1), ('sinks', sinks, 0)):
    whole = isinstance(value, numbers.Integral)
    if value is not None and not (whole and value >= least):
      raise errors.ConfigError(
        f'{name} must be a whole number, at least {least}; got {value}'
      )
  if sinks and window is None:
    raise errors.ConfigError(f'sinks={sinks} needs a window')
  if scale is None:
    scale = head_dim**-0.5
  elif not isinstance(scale, numbers.Real):
    raise errors.ConfigError(
      f'scale must be a number, got {scale!r}; an array goes into logit_scale'
    )
  whole_numbers: tuple[tuple[str, Any, tuple], ...] = (
    ('q_offset', q_offset, ((), (batch,))),
    ('k_lengths', k_lengths, ((batch,),)),
    ('q_segment_ids', q_segment_ids, ((batch, q_length),)),
    ('k_segment_ids', k_segment_ids, ((batch, k_length),)),
  )
  for name, value, shapes in whole_numbers:
    whole = isinstance(value, numbers.Integral)
    if value is None or (whole and () in shapes):
      continue
    dtype = getattr(value, 'dtype', None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.integer):
      raise errors.ConfigError(
        f'{name} must be whole numbers, got {dtype or type(value).__name__}; '
        f'pass an array of shape {shapes[-1]}'
      )
    if value.shape not in shapes:
      raise errors.ConfigError(
        f'{name} has shape {value.shape}; it must be '
        + ' or '.join(map(str, shapes))
      )
  if bias is not None and (
    not callable(bias) or isinstance(bias, encodings.Encoding)
  ):
    _check_bias(bias, batch, num_heads, q_length, k_length)
  if contiguous is None:
    contiguous = q_positions is None and k_positions is None
  if isinstance(q_positions, position_schemes.Distances):
    if contiguous:
      raise errors.ConfigError(
        'contiguous=True contradicts Distances, which are drawn; leave it out'
      )
    _check_distances(q_positions, k_positions, batch, q_length, k_length)
  else:
    q_positions = _positions('q', q_positions, batch, q_length, q_offset)
    k_positions = _positions('k', k_positions, batch, k_length, 0)
    if q_positions.ndim != k_positions.ndim:
      q_positions, k_positions = map(jnp.atleast_2d, (q_positions, k_positions))
  if (q_segment_ids is None) != (k_segment_ids is None):
    raise errors.ConfigError(
      'q_segment_ids and k_segment_ids go together; got one of them'
    )
  if logit_scale is not None and not hasattr(logit_scale, 'shape'):
    raise errors.ConfigError(
      f'logit_scale must be an array, got {logit_scale!r}; a number goes into '
      'scale'
    )
  if logit_scale is not None and (
    logit_scale.ndim not in (2, 3)
    or logit_scale.shape[0] not in (1, batch)
    or logit_scale.shape[1] != q_length
    or logit_scale.shape[2:] not in ((), (1,), (num_heads,))
  ):
    raise errors.ConfigError(
      f'logit_scale has shape {logit_scale.shape}; it must be '
      f'{(batch, q_length)} or {(batch, q_length, num_heads)}'
    )
  reason = _no_tiles(bias, content)
  by_tiles = implementation in ('blockwise', 'pallas')
  if reason and (by_tiles or approximate):
    what = f'implementation={implementation!r}'
    if not by_tiles:
      what = f"bias_form={bias_form!r} needs implementation='blockwise', which"
    raise errors.ConfigError(f"{what} {reason}; use 'reference' and 'exact'")
  attend = IMPLEMENTATIONS[
    choose(implementation, bias_form, q_length, k_length, reason)
  ]
  return attend(
    *sharded.constrain(q, k, v),
    bias=bias,
    content=content,
    q_positions=q_positions,
    k_positions=k_positions,
    q_segment_ids=q_segment_ids,
    k_segment_ids=k_segment_ids,
    q_offset=q_offset,
    k_lengths=k_lengths,
    causal=causal,
    window=window,
    sinks=sinks,
    scale=float(scale),
    logit_scale=logit_scale,
    contiguous=contiguous,
    bias_form=bias_form,
  )


def choose(
  implementation: str,
  bias_form: str,
  q_length: int,
  k_length: int,
  reason: str | None = None,
) -> str:
  """The implementation that computes attention, its name.

  Args:
    implementation: see `dot_product_attention`.
    bias_form: likewise.
    q_length: Q.
    k_length: K.
    reason: why it cannot go by tiles; None if it can.
  """
  if implementation != 'auto':
    return implementation
  many = q_length * k_length >= _MANY_PAIRS
  by_blocks = not reason and (many or bias_form == 'anchored')
  return 'blockwise' if by_blocks else 'reference'


def _no_tiles(bias, content):
  """Why attention cannot go block by block; None if it can."""
  if bias is not None and not isinstance(bias, encodings.BiasFn):
    return 'takes a bias as a BiasFn only, not as an array or a bare function'
  if content is not None and not isinstance(content, encodings.ContentFn):
    return 'takes content as a ContentFn only'
  for term in (bias, content):
    if term is not None and not term.encoding.tileable:
      name = specs.describe(term.encoding)
      return f'cannot compute {name} for one tile at a time'
  return None


def _check_arrays(q, k, v):
  """Raises unless q, k and v have shapes that go together."""
  for name, value in (('q', q), ('k', k), ('v', v)):
    if not hasattr(value, 'shape'):
      raise errors.ConfigError(
        f'{name} must be an array, got {type(value).__name__}'
      )
    if not jnp.issubdtype(value.dtype, jnp.floating):
      raise errors.ConfigError(
        f'{name} is {value.dtype}; it must be of floating point'
      )
  ranks = {q.ndim, k.ndim, v.ndim}
  if ranks != {4} or v.shape[:3] != k.shape[:3]:
    raise errors.ConfigError(
      f'q, k and v must be [B, length, heads, head_dim] with k and v alike; '
      f'got {q.shape}, {k.shape}, {v.shape}'
    )
  if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
    raise errors.ConfigError(
      f'q {q.shape} and k {k.shape} differ in batch or head_dim'
    )
  if k.shape[2] and q.shape[2] % k.shape[2]:
    raise errors.ConfigError(
      f'{q.shape[2]} query heads are no multiple of {k.shape[2]} key heads'
    )
  if 0 in (*q.shape, *k.shape):
    raise errors.ConfigError(
      f'nothing to attend with: q {q.shape}, k {k.shape}'
    )
  longest = max(q.shape[1], k.shape[1])
  if longest > MAX_LENGTH:
    raise errors.ConfigError(
      f'length {longest} is over {MAX_LENGTH}, beyond which float32 cannot '
      'tell positions apart'
    )


def _check_bias(bias, batch, num_heads, q_length, k_length):
  """Raises unless an array of bias broadcasts to all pairs."""
  full = (batch, num_heads, q_length, k_length)
  if not hasattr(bias, 'shape'):
    fix = ''
    if isinstance(bias, str | encodings.Encoding):
      fix = (
        '; encodings.create(spec, ...) makes an encoding of a spec, and its '
        'bias_fn(), called within apply, gives the BiasFn'
      )
    raise errors.ConfigError(
      f'bias must be a BiasFn, a function or an array, got {bias!r:.60}{fix}'
    )
  fits = bias.ndim <= 4 and all(
    size in (1, whole)
    for size, whole in zip(bias.shape[::-1], full[::-1], strict=False)
  )
  if not fits:
    raise errors.ConfigError(
      f'bias has shape {bias.shape}; it must broadcast to {full}'
    )


def _check_distances(q, k, batch, q_length, k_length):
  """Raises unless Distances of queries and of keys go together."""
  if not isinstance(k, position_schemes.Distances):
    raise errors.ConfigError(
      'q_positions are Distances and k_positions are not; give both alike'
    )
  for side, distances, length in (('q', q, q_length), ('k', k, k_length)):
    shape = distances.r.shape
    if distances.index is not None:
      shape = (distances.r.shape[0], distances.index.shape[-1])
    if shape not in ((1, length), (batch, length)):
      raise errors.ConfigError(
        f'{side}_positions are Distances of shape {shape}; they must be '
        f'{(batch, length)}'
      )


def _positions(side, positions, batch, length, offset):
  """Checked positions, `[length]` or `[B, length]`; standard for None."""
  if positions is None:
    index = jnp.arange(length, dtype=jnp.int32)
    if jnp.ndim(offset) == 0:
      return offset + index
    return offset[:, None] + index[None]
  if positions.dtype not in (jnp.int32, jnp.float32):
    raise errors.ConfigError(
      f'{side}_positions are {positions.dtype}; positions are int32 or float32'
      ' whatever the dtype of the model'
    )
  if positions.shape not in ((length,), (1, length), (batch, length)):
    raise errors.ConfigError(
      f'{side}_positions have shape {positions.shape}; they must be '
      f'{(length,)} or {(batch, length)}'
    )
  return jax.lax.stop_gradient(positions)
