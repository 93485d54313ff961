"""Attention fused into kernels, in Pallas, with any bias made in the tile.

The algorithm is that of `blockwise`, a tile of pairs at a time, but a tile's
logits never leave the chip. The bias of a tile is made there too, from what
depends on the distance alone (`tables`): one row of numbers for a
translation-invariant bias, two neighbouring anchors and a weight per query for
FIRE (`plan.bands`). Its gradient is the tile's, summed along diagonals; from
there on to parameters it is that of the rows, by autodiff. Any other bias is
computed by XLA, for one block of queries at a time.

`pallas_tpu` and `pallas_gpu` have the kernels; on a CPU those for TPUs are
interpreted.

A logit scale is multiplied into the queries, in their dtype.

Shapes beside the usual: b tokens in a block of queries or keys.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax import partitioning
from lengen_jax.attention import bias_forms
from lengen_jax.attention import pallas_gpu
from lengen_jax.attention import pallas_tpu
from lengen_jax.attention import tiles
from lengen_jax.attention.fused import plan as plans
from lengen_jax.attention.fused import tables

CHIPS = {'tpu': pallas_tpu, 'gpu': pallas_gpu, 'cpu': pallas_tpu}
_DTYPES = ('bfloat16', 'float32')
_MAX_WINDOW = 2**25


def attend(
  q,
  k,
  v,
  *,
  bias,
  content,
  q_positions,
  k_positions,
  q_segment_ids,
  k_segment_ids,
  q_offset,
  k_lengths,
  causal,
  window,
  sinks,
  scale,
  logit_scale,
  contiguous,
  bias_form,
):
  """See `dot_product_attention`, which checks the arguments."""
  platform, packed = partitioning.platform(), q_segment_ids is not None
  if platform not in CHIPS:
    raise errors.ConfigError(
      f"implementation='pallas' is for TPUs and GPUs, and for tests on a CPU, "
      f"not for {platform!r}; use 'blockwise'"
    )
  wants_anchors = bias_form == 'anchored' and not (
    bias is None or bias.encoding.takes_distances
  )
  dtypes = {x.dtype for x in (q, k, v)}
  if len(dtypes) > 1 or not dtypes <= {*map(jnp.dtype, _DTYPES)}:
    raise errors.ConfigError(
      "implementation='pallas' takes q, k and v all in bfloat16 or all in "
      f'float32; got {q.dtype}, {k.dtype} and {v.dtype}'
    )
  for what, is_asked in (
    ('content terms', content is not None),
    ("bias_form='anchored' for packed rows", packed and wants_anchors),
    ('sinks', sinks),
    ('a q_offset for each row', jnp.ndim(q_offset) > 0),
    ('values of another size than keys', v.shape[-1] != q.shape[-1]),
  ):
    if is_asked:
      raise errors.ConfigError(
        f"implementation='pallas' has no {what}; use 'blockwise'"
      )
  batch, q_length, num_heads, head_dim = q.shape
  k_length = k.shape[1]
  form = _form(bias, bias_form, contiguous, packed)
  if logit_scale is not None:
    # [B, Q], or per head [B, Q, H].
    logit_scale = logit_scale.reshape(*logit_scale.shape[:2], -1, 1)
    q = (q * logit_scale).astype(q.dtype)
  if window is not None:
    # Beyond the largest length all are alike, and sums stay in 32 bits.
    window = min(window, _MAX_WINDOW)
  chip = CHIPS[platform]
  # Gradients are summed over bands, and copies, in what these are; a kernel
  # gives its part in the dtype of q.
  k, v = (x.astype(jnp.float32) for x in (k, v))
  width = chip.head_width(num_heads, head_dim)
  copies = chip.key_copies(num_heads, k.shape[2], width)
  if copies > 1:
    k, v = (jnp.repeat(x, copies, axis=2) for x in (k, v))
  block = chip.block_size(
    max(q_length, k_length), form, width, q.dtype.itemsize
  )
  q, k, v = (_flat(x, width, block) for x in (q, k, v))
  if packed:
    q_segment_ids, k_segment_ids = (
      jnp.pad(ids, ((0, 0), (0, -ids.shape[1] % block)))[:, None]
      for ids in (q_segment_ids, k_segment_ids)
    )
  places = plans.Places(
    offset=jnp.asarray(q_offset, jnp.int32).reshape(1),
    q_positions=q_positions,
    k_positions=k_positions,
    k_lengths=k_lengths,
    q_segment_ids=q_segment_ids,
    k_segment_ids=k_segment_ids,
  )
  # Whether positions are the same in all rows.
  alike = form in ('none', 'strip') or all(
    leaf.ndim == 1 or leaf.shape[0] == 1
    for leaf in jax.tree.leaves((q_positions, k_positions))
  )
  # Whether keys after a query have a higher index.
  aligned = causal and isinstance(q_offset, int) and q_offset == 0
  two_sided = form == 'anchored' and bias.bidirectional and not causal

  def plan(form, block, first, end, spacing):
    blocks_k = k.shape[1] // block
    return chip.Plan(
      form=form,
      block=block,
      first=first // block,
      blocks_q=(end - first) // block,
      blocks_k=min(end // block, blocks_k) if aligned else blocks_k,
      head_dim=width,
      itemsize=q.dtype.itemsize,
      k_length=k_length,
      causal=causal,
      window=window,
      scale=scale,
      lowest=-1 if aligned else first // block - blocks_k,
      spacing=spacing,
      two_sided=two_sided,
      alike=alike,
      interpret=platform == 'cpu',
    )

  if form == 'dense':
    one = dataclasses.replace(
      plan(form, block, 0, block, 1), blocks_k=k.shape[1] // block
    )
    y = _by_blocks(chip, one, q, k, v, bias, places)
  else:
    bands = [(form, block, 0, q.shape[1], 1)]
    if form == 'anchored':
      bands = plans.bands(q.shape[1], block, chip.EXACT, two_sided)
    parts = [
      _attend(chip, plan(*band), q, k, v, bias, places) for band in bands
    ]
    y = jnp.concatenate(parts, axis=1)
  y = y.reshape(batch, -1, num_heads, width)
  return y[:, :q_length, :, :head_dim]


def _flat(x, width, block):
  """`[B, n, H, D]` with zeros up to whole blocks and widths, heads joined."""
  missing = (0, -x.shape[1] % block), (0, 0), (0, width - x.shape[3])
  x = jnp.pad(x, ((0, 0), *missing))
  return x.reshape(*x.shape[:2], -1)


def row(bias, i, distances):
  """Bias of one query of a long row as kernels have it, `[H, N]`.

  Args:
    bias: a BiasFn whose encoding has rows.
    i: the query, an int; its position too.
    distances: query position minus key position, `[N]`.
  """
  exact = CHIPS[partitioning.platform()].EXACT
  band = plans.bands(i + 1, plans.BLOCK, exact, bias.bidirectional)[-1]
  return tables.row(band, bias, i, distances)


def _form(bias, bias_form, contiguous, packed):
  """'none', 'strip', 'anchored' or 'dense'."""
  if bias is None:
    return 'none'
  # Within a block of packed rows positions start again.
  rows_ascend = contiguous and not packed
  form = bias_forms.choose(
    bias,
    bias_form,
    contiguous if bias.encoding.takes_distances else rows_ascend,
  )
  return 'dense' if form == 'exact' else form


def _by_blocks(chip, plan, q, k, v, bias, places):
  """Attention of one block of queries after the other, `[B, Q, H D]`."""
  positions = tiles.position_blocks(places.q_positions, plan.block)
  blocks = q.shape[1] // plan.block

  def of_block(n):
    first = n * plan.block
    segment_ids = places.q_segment_ids
    if segment_ids is not None:
      segment_ids = jax.lax.dynamic_slice_in_dim(
        segment_ids, first, plan.block, axis=2
      )
    block = dataclasses.replace(
      places,
      offset=places.offset + first,
      q_positions=tables.position_block(positions, n),
      q_segment_ids=segment_ids,
    )
    own = jax.lax.dynamic_slice_in_dim(q, first, plan.block, axis=1)
    return _attend(chip, plan, own, k, v, bias, block)

  y = jax.lax.map(of_block, jnp.arange(blocks))
  return jnp.swapaxes(y, 0, 1).reshape(q.shape)


def _attend(chip, plan, q, k, v, bias, places):
  """Attention of a band of queries, `[B, blocks_q b, H D]`; k, v in float32."""
  k, v = k.astype(q.dtype), v.astype(q.dtype)
  return _in_kernels(chip, plan, q, k, v, bias, places)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _in_kernels(chip, plan, q, k, v, bias, places):
  table = tables.make(plan, bias, places)
  y, _ = chip.forward(plan, q, k, v, table, places)
  return y


def _forward_with_residuals(chip, plan, q, k, v, bias, places):
  table = tables.make(plan, bias, places)
  y, log_sum = chip.forward(plan, q, k, v, table, places)
  return y, (q, k, v, bias, places, y, log_sum)


def _backward(chip, plan, residuals, dy):
  q, k, v, bias, places, y, log_sum = residuals
  table, to_bias = jax.vjp(lambda bias: tables.make(plan, bias, places), bias)
  num_heads = q.shape[2] // plan.head_dim
  # sum_j p_ij dp_ij, by which the softmax's gradient is centred.
  centre = (y.astype(jnp.float32) * dy.astype(jnp.float32)).reshape(
    *y.shape[:2], num_heads, -1
  )
  centre = jnp.swapaxes(centre.sum(-1), 1, 2)[:, :, None]
  if 'weights' in table:
    vary = tables.weights_vary(plan, bias, places)
    places = dataclasses.replace(places, weights_vary=vary)
  given = (plan, q, k, v, table, places)
  of_queries = {'dy': dy, 'log_sum': log_sum, 'centre': centre}
  dq, dtable = chip.query_gradients(*given, **of_queries)
  (dbias,) = to_bias(dtable)
  dk, dv = chip.key_gradients(*given, **of_queries)
  before = plan.first * plan.block
  after = q.shape[1] - before - dq.shape[1]
  dq = jnp.pad(dq, ((0, 0), (before, after), (0, 0)))
  after = k.shape[1] - dk.shape[1]
  dk, dv = (jnp.pad(x, ((0, 0), (0, after), (0, 0))) for x in (dk, dv))
  return dq, dk, dv, dbias, None


_in_kernels.defvjp(_forward_with_residuals, _backward)
