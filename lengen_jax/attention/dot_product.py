"""The entry point of attention: checks arguments, then dispatches."""

from collections.abc import Callable, Sequence
import functools
from typing import Any

import jax

from lengen_jax import encodings, errors, partitioning
from lengen_jax.attention import (
  bias_forms,
  blockwise,
  checks,
  pallas,
  reference,
  ring,
  visibility,
)
from lengen_jax.attention import call as call_lib
from lengen_jax.attention.call import AttentionCall
from lengen_jax.positions import PerHead, Positions
from lengen_jax.types import Array

Attend = Callable[[AttentionCall], jax.Array]


def _over_mesh(attend: Attend, around: Any = None) -> Attend:
  """Returns `attend` mapped over the devices of the mesh, if one is active.

  Each device computes its rows, heads and queries: the compiler alone would
  fetch blocks of a split sequence one at a time, and sum gradients of a bias
  over all devices for every tile. If a sequence is split, keys travel with
  `around`, a function of a Ring and a call; or else each device has all keys.
  """

  @functools.wraps(attend)
  def of_all(call: AttentionCall) -> jax.Array:
    if not partitioning.is_active():
      return attend(call)
    axis, parts = partitioning.spec('length')[0], partitioning.shards('length')
    chosen = ring.choose(call, axis, parts) if around else None
    queries, keys = call.queries.indexed(), call.keys.indexed()
    call = call.replace(queries=queries, keys=keys)
    if parts > 1:
      # Each device has other queries first.
      call = call.replace(q_offset=None)
    specs = call.specs('length' if chosen else None)
    return jax.shard_map(
      functools.partial(around, chosen) if chosen else attend,
      in_specs=(specs,),
      out_specs=specs.q,
      check_vma=False,
    )(call)

  return of_all


def _over_all_pairs(call: AttentionCall) -> jax.Array:
  """Returns attention over all pairs; every device has whole rows of keys."""

  def constrained(x: Any) -> Any:
    return x.replace(
      q=partitioning.constrain(x.q, *call_lib.Q_AXES),
      k=partitioning.constrain(x.k, *call_lib.K_AXES),
    )

  v = partitioning.constrain(call.v, *call_lib.K_AXES)
  call_bands = tuple(map(constrained, call.bands))
  return reference.attend(constrained(call).replace(v=v, bands=call_bands))


IMPLEMENTATIONS: dict[str, Attend] = {
  'reference': _over_all_pairs,
  'blockwise': _over_mesh(blockwise.attend, ring.attend),
  'pallas': _over_mesh(pallas.attend),
}
# 'auto' is blockwise from this many pairs of a query and a key.
_MANY_PAIRS = 512 * 512


def dot_product_attention(
  q: Array,
  k: Array,
  v: Array,
  *,
  bias: encodings.BiasFn | Callable[..., Array] | Array | None = None,
  content: encodings.ContentFn | None = None,
  bands: Sequence[encodings.Band] = (),
  q_positions: Positions | PerHead | None = None,
  k_positions: Positions | PerHead | None = None,
  q_segment_ids: Array | None = None,
  k_segment_ids: Array | None = None,
  q_offset: int | Array = 0,
  k_lengths: Array | None = None,
  causal: bool,
  window: int | None = None,
  sinks: int = 0,
  scale: float | None = None,
  logit_scale: Array | None = None,
  sink_logits: Array | None = None,
  logit_cap: float | None = None,
  contiguous: bool | None = None,
  bias_form: str = 'exact',
  implementation: str = 'auto',
) -> jax.Array:
  """Computes softmax(cap((q k + content) scale logit_scale) + bias) v.

  cap(x) is `logit_cap` tanh(x / `logit_cap`), or x.

  Masks depend on index, segment and length only, never on positions, which may
  repeat; those of bands depend on places. Logits and softmax are float32. Fully
  masked queries output zero. Only the reference has forward-mode and second
  derivatives.

  Args:
    q: `[B, Q, H, D]`.
    k: `[B, K, G, D]`; H is a multiple of G, query head h reads head h G // H.
    v: `[B, K, G, D]`.
    bias: a function of positions, `BiasFn`; for the reference also any function
      of positions, or a floating-point array that broadcasts to
      `[B, H, Q, K]`. Its values are finite; -1e9 masks a pair.
    content: a `ContentFn`, a function of contents and positions.
    bands: each `Band` has its own queries and keys, in place of q and k, for
      the pairs in it. Pairs in no band are masked.
    q_positions: int32 or float32, `[Q]` or `[B, Q]`; None for the standard
      ones, `q_offset + arange(Q)`. Or per query head, float32 `[B, Q, H]` or
      `positions.PerHead`, which have a gradient. Or `positions.Distances` of
      the queries.
    k_positions: likewise `[K]`, `[B, K]` or `[B, K, H]`; None for `arange(K)`.
      Distances require Distances for the queries.
    q_segment_ids: int32 `[B, Q]`; pairs of different segments are masked.
    k_segment_ids: int32 `[B, K]`.
    q_offset: index of the first query among the keys, an int or int32 `[B]`.
    k_lengths: int32 `[B]`; keys from this index on are masked.
    causal: whether keys after the query are masked.
    window: keys more than `window - 1` before (or, if not causal, after) the
      query are masked.
    sinks: number of first keys of a segment that stay visible beyond the
      window.
    scale: factor on the logits, a number; None for 1/sqrt(D).
    logit_scale: float32 `[B, Q]` or `[B, Q, H]`, a factor per query.
    sink_logits: float32 `[H]`, logits of one more key per head, whose value is
      0: a term e^sink in the sum of each softmax.
    logit_cap: bounds the scaled logits, before bias and mask.
    contiguous: True promises that within a segment differences of positions
      equal differences of indices; None is True where positions are None. The
      promise is not checked: if it is broken, the bias may be wrong.
    bias_form: 'exact'; 'anchored', which computes FIRE's bias and its gradients
      at some queries and interpolates between them, for contiguous positions
      and not in the reference; or 'auto', which is 'anchored' where available.
      A bias that depends on distance alone is exact in any form. In packed
      rows, 'blockwise' interpolates only in tiles whose queries lie within one
      segment in all rows of the device; 'pallas' does not interpolate. See
      `bias_forms` and `fused.anchors`.
    implementation: 'reference', which holds every pair in memory; 'blockwise',
      without an array over all pairs, forward or backward; 'pallas', the same
      in kernels for TPUs and GPUs; or 'auto', which is 'blockwise' for many
      pairs where available. 'pallas' requires q, k and v all in bfloat16 or all
      in float32, and values of the size of keys. It does not support content
      terms, bands, sinks, `logit_cap`, a `q_offset` per row, or
      bias_form='anchored' in packed rows. With a bias, positions per head
      require a TPU, a bias linear in them, and no `sink_logits`.

  Returns:
    `[B, Q, H, D]` in the dtype of q.

  Raises:
    errors.ConfigError: shapes, dtypes or options that do not fit together, or
      that the implementation does not support.
    errors.CombinationError: the encoding of `bias` or `content` does not
      support the positions, or packed rows.
  """
  checks.check_vectors(q, k, v)
  checks.check_bands(bands)
  for name, value, valid in (
    ('attention implementation', implementation, ['auto', *IMPLEMENTATIONS]),
    ('bias_form', bias_form, bias_forms.FORMS),
  ):
    if value not in valid:
      raise errors.ConfigError(errors.one_of(name, value, valid))
  q_index, static_offset = call_lib.query_index(q_offset, *q.shape[:2])
  k_index, _ = call_lib.query_index(0, *k.shape[:2])
  queries = call_lib.Side(q_index, q_positions, q_segment_ids)
  keys = call_lib.Side(k_index, k_positions, k_segment_ids, lengths=k_lengths)
  call = call_lib.AttentionCall(
    q=q,
    k=k,
    v=v,
    queries=queries,
    keys=keys,
    bias=bias,
    content=content,
    logit_scale=logit_scale,
    sink_logits=sink_logits,
    logit_cap=logit_cap,
    mask=visibility.Mask(causal, window, sinks),
    scale=scale,
    q_offset=static_offset,
    contiguous=contiguous,
    bias_form=bias_form,
    bands=tuple(bands),
  ).checked()
  refused = checks.tiles_refused(bias, content)
  _check_support(implementation, bias_form, refused)
  chosen = choose(implementation, bias_form, q.shape[1], k.shape[1], refused)
  return IMPLEMENTATIONS[chosen](call)


def choose(
  implementation: str,
  bias_form: str,
  q_length: int,
  k_length: int,
  refused: str | None = None,
) -> str:
  """Returns the implementation's name; `refused` is from `tiles_refused`."""
  if implementation != 'auto':
    return implementation
  many = q_length * k_length >= _MANY_PAIRS
  by_blocks = not refused and (many or bias_form == 'anchored')
  return 'blockwise' if by_blocks else 'reference'


def _check_support(
  implementation: str, bias_form: str, refused: str | None
) -> None:
  """Raises unless the implementation supports the call."""
  anchored = bias_form == 'anchored'
  if anchored and implementation == 'reference':
    raise errors.ConfigError(
      "bias_form='anchored' is not available with implementation='reference'; "
      "use 'blockwise'"
    )
  by_tiles = implementation in ('blockwise', 'pallas')
  if refused and (by_tiles or anchored):
    what = f'implementation={implementation!r}'
    if not by_tiles:
      what = "bias_form='anchored' needs implementation='blockwise', which"
    raise errors.ConfigError(f"{what} {refused}; use 'reference' and 'exact'")
