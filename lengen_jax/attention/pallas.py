"""Attention in Pallas kernels, with any bias made in the tile.

The algorithm is that of `blockwise`, a tile of pairs at a time, but a tile's
logits never leave the chip. Kernels compute the bias of a tile from a table by
distance (`fused.by_distance`, `fused.tables`): one row for a
translation-invariant bias, rows of two neighbouring anchors and a weight per
query for FIRE (`fused.anchors`). XLA computes any other bias, some tiles at a
time (`fused.dense`).

`pallas_tpu` and `pallas_gpu` hold the kernels; on a CPU those for TPUs are
interpreted. A logit scale is multiplied into the queries, in their dtype.
"""

import dataclasses
import types

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax import encodings, errors, partitioning
from lengen_jax.attention import bias_forms, pallas_gpu, pallas_tpu
from lengen_jax.attention import call as call_lib
from lengen_jax.attention.call import AttentionCall
from lengen_jax.attention.fused import anchors, by_distance, dense
from lengen_jax.attention.fused import plan as plans

# `pallas_tpu` or `pallas_gpu`.
Chip = types.ModuleType
CHIPS: dict[str, Chip] = {
  'tpu': pallas_tpu,
  'gpu': pallas_gpu,
  'cpu': pallas_tpu,
}
_DTYPES = ('bfloat16', 'float32')


def attend(call: AttentionCall) -> Array:
  """Returns attention, `[B, Q, H, D]`; see `dot_product_attention`."""
  platform = partitioning.platform()
  _check(call, platform)
  chip, form = CHIPS[platform], _form(call)
  batch, q_length, num_heads, head_dim = call.q.shape
  k_length = call.k.shape[1]
  q, dtype = call.q, call.q.dtype
  if call.logit_scale is not None:
    q = (q * call.logit_scale[..., None]).astype(dtype)
  # Kernels return gradients of keys in the dtype of q; ranges and copies are
  # summed in float32.
  k, v = (x.astype(jnp.float32) for x in (call.k, call.v))
  width = chip.plan.head_width(num_heads, head_dim)
  copies = chip.plan.key_copies(num_heads, k.shape[2], width)
  if copies > 1:
    k, v = (jnp.repeat(x, copies, axis=2) for x in (k, v))
  longest = max(q_length, k_length)
  block = chip.plan.block_size(longest, form, width, dtype.itemsize)
  q, k, v = (_flat(x, width, block) for x in (q, k, v))
  aligned = call.mask.causal and call.q_offset == 0
  flat = call.replace(q=q, k=k, v=v, logit_scale=None)
  anchored = form == 'anchored'
  two_sided = anchored and call.bias.bidirectional and not call.mask.causal

  positions = call.queries.positions, call.keys.positions
  shared = form in ('none', 'keys', 'strip') or all(
    leaf.ndim == 1 or leaf.shape[0] == 1 for leaf in jax.tree.leaves(positions)
  )

  def of_range(queries: anchors.QueryRange) -> Array:
    first, blocks_k = (x // queries.block for x in (queries.first, k.shape[1]))
    lowest = -1 if aligned else first - blocks_k
    if aligned:
      blocks_k = min(queries.end // queries.block, blocks_k)
    end = k_length if k_length < blocks_k * queries.block else None
    plan = chip.plan.Plan(
      form=queries.form,
      block=queries.block,
      first=first,
      blocks_q=(queries.end - queries.first) // queries.block,
      blocks_k=blocks_k,
      head_dim=width,
      itemsize=dtype.itemsize,
      mask=dataclasses.replace(call.mask, k_length=end),
      scale=call.scale,
      lowest=lowest,
      spacing=queries.spacing,
      two_sided=two_sided,
      shared_positions=shared,
      interpret=platform == 'cpu',
    )
    own = flat.replace(k=k.astype(dtype), v=v.astype(dtype))
    attend = dense.attend if queries.form == 'dense' else by_distance.attend
    return attend(chip, plan, own)

  ranges = [anchors.QueryRange(form, block, 0, q.shape[1], 1)]
  if anchored:
    ranges = anchors.query_ranges(q.shape[1], block, chip.plan.EXACT, two_sided)
  y = jnp.concatenate([of_range(queries) for queries in ranges], axis=1)
  y = y.reshape(batch, -1, num_heads, width)
  return y[:, :q_length, :, :head_dim]


def row(bias: encodings.BiasFn, i: int, distances_N: Array) -> Array:
  """Returns the bias of query i at position i as kernels do, `[H, N]`."""
  exact = CHIPS[partitioning.platform()].plan.EXACT
  *_, queries = anchors.query_ranges(
    i + 1, plans.BLOCK, exact, bias.bidirectional
  )
  if queries.form == 'dense':
    return bias.rows(jnp.array([i]), distances_N)[0]
  index = i - queries.first
  before = queries.first + index // queries.spacing * queries.spacing
  near, far = bias.rows(
    jnp.array([before, before + queries.spacing]), distances_N
  )
  weight = bias_forms.interpolation_weights(
    bias, jnp.array([queries.first]), jnp.array([index]), queries.spacing
  )[0, 0]
  if bias.bidirectional:
    linear = (i - before) / queries.spacing
    weight = jnp.where(distances_N < 0, linear, weight)[None]
  return near + weight * (far - near)


def _check(call: AttentionCall, platform: str) -> None:
  """Raises unless kernels support the call."""
  if platform not in CHIPS:
    raise errors.ConfigError(
      "implementation='pallas' is for TPUs and GPUs, and for tests on a CPU, "
      f"not for {platform!r}; use 'blockwise'"
    )
  q, k, v, bias = call.q, call.k, call.v, call.bias
  dtypes = {x.dtype for x in (q, k, v)}
  if len(dtypes) > 1 or not dtypes <= {*map(jnp.dtype, _DTYPES)}:
    raise errors.ConfigError(
      "implementation='pallas' takes q, k and v all in bfloat16 or all in "
      f'float32; got {q.dtype}, {k.dtype} and {v.dtype}'
    )
  needs_anchors = call.bias_form == 'anchored' and not (
    bias is None or bias.encoding.takes_distances
  )
  packed = call.queries.segment_ids is not None
  per_head = bias is not None and call.queries.learned is not None
  on_tpu = CHIPS[platform] is pallas_tpu
  for what, is_used in (
    ('content terms', call.content is not None),
    ('bands of distance', call.bands),
    ('positions per head on a GPU', per_head and not on_tpu),
    (
      'positions per head, except for a bias linear in them',
      per_head and bias.slopes is None,
    ),
    (
      'sink_logits with positions per head',
      per_head and call.sink_logits is not None,
    ),
    ('logit_cap', call.logit_cap is not None),
    ("bias_form='anchored' for packed rows", packed and needs_anchors),
    ('sinks', call.mask.sinks),
    ('a q_offset for each row', call.queries.index.shape[0] > 1),
    (
      f'keys of size {k.shape[-1]} with values of size {v.shape[-1]}, as pope '
      'has them',
      v.shape[-1] != k.shape[-1],
    ),
  ):
    if is_used:
      raise errors.ConfigError(
        f"implementation='pallas' does not support {what}; use 'blockwise'"
      )


def _form(call: AttentionCall) -> str:
  """Returns 'none', 'keys', 'strip', 'anchored' or 'dense'."""
  bias, contiguous = call.bias, call.contiguous
  if bias is None:
    return 'none'
  if not bias.encoding.takes_distances:
    # In packed rows, positions restart within a block.
    contiguous = contiguous and call.queries.segment_ids is None
  per_head = call.queries.learned is not None
  form = bias_forms.choose(bias, call.bias_form, contiguous, per_head)
  return 'dense' if form == 'exact' else form


def _flat(x_BxNxHxD: Array, width: int, block: int) -> Array:
  """Returns `[B, N, H D]` with zeros up to whole blocks and widths."""
  x = call_lib.pad(x_BxNxHxD, block)
  x = jnp.pad(x, ((0, 0),) * 3 + ((0, width - x.shape[3]),))
  return x.reshape(*x.shape[:2], -1)
