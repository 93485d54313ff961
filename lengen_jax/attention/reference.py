"""Attention written down: every pair in memory. The others must equal it."""

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.positions import base as positions_base

# Finite, so that a row without a visible key gives no NaN.
MASKED = -(2.0**127)


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
  del contiguous, bias_form  # Every pair is computed, exactly.
  groups = q.shape[2] // k.shape[2]
  if groups > 1:
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
  logits_BxHxQxK = jnp.einsum(
    'bqhd,bkhd->bhqk', q, k, preferred_element_type=jnp.float32
  )
  if content is not None:
    logits_BxHxQxK += content.logits(q, k, q_positions, k_positions)
  logits_BxHxQxK *= scale
  if logit_scale is not None:
    if logit_scale.ndim == 2:
      logit_scale = logit_scale[..., None]
    logits_BxHxQxK *= jnp.moveaxis(logit_scale, 2, 1)[..., None]
  if bias is not None:
    if callable(bias):
      bias = bias(q_positions, k_positions)
      pairs = logits_BxHxQxK.shape
      if bias.shape not in (pairs[1:], (1, *pairs[1:]), pairs):
        raise errors.ConfigError(
          f'the bias function gave shape {bias.shape}; it must be {pairs[1:]}, '
          f'or {pairs} for positions with a batch'
        )
    logits_BxHxQxK += bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
  mask = visible(
    q.shape[1],
    k.shape[1],
    q_segment_ids=q_segment_ids,
    k_segment_ids=k_segment_ids,
    q_offset=q_offset,
    k_lengths=k_lengths,
    causal=causal,
    window=window,
    sinks=sinks,
  )
  if mask is not None:
    logits_BxHxQxK = jnp.where(mask[:, None], logits_BxHxQxK, MASKED)
  weights_BxHxQxK = jax.nn.softmax(logits_BxHxQxK, -1)
  y_BxQxHxD = jnp.einsum(
    'bhqk,bkhd->bqhd',
    weights_BxHxQxK.astype(v.dtype),
    v,
    preferred_element_type=jnp.float32,
  )
  if content is not None:
    values = content.values(weights_BxHxQxK, q_positions, k_positions)
    y_BxQxHxD += 0.0 if values is None else values
  first_sees = isinstance(q_offset, int) and q_offset >= 0
  limits = k_lengths, q_segment_ids, window, None if first_sees else q_offset
  if mask is not None and any(limit is not None for limit in limits):
    # Nothing is what a query gets that sees no key.
    y_BxQxHxD *= mask.any(-1)[:, :, None, None]
  return y_BxQxHxD.astype(q.dtype)


def visible(
  q_length,
  k_length,
  *,
  q_segment_ids,
  k_segment_ids,
  q_offset,
  k_lengths,
  causal,
  window,
  sinks,
):
  """Which keys each query sees, bool `[1 or B, Q, K]`; None where all."""
  q_offset = jnp.reshape(jnp.asarray(q_offset, jnp.int32), (-1, 1))
  q_index_BxQ = q_offset + jnp.arange(q_length, dtype=jnp.int32)[None]
  k_index_1xK = jnp.arange(k_length, dtype=jnp.int32)[None]
  behind_BxQxK = q_index_BxQ[:, :, None] - k_index_1xK[:, None, :]
  masks = []
  if causal:
    masks.append(behind_BxQxK >= 0)
  if window is not None:
    near = jnp.abs(behind_BxQxK) < window
    if sinks:
      index = k_index_1xK
      if k_segment_ids is not None:
        index = positions_base.segment_positions(k_segment_ids)
      near |= (index < sinks)[:, None, :]
    masks.append(near)
  if q_segment_ids is not None:
    masks.append(q_segment_ids[:, :, None] == k_segment_ids[:, None, :])
  if k_lengths is not None:
    masks.append((k_index_1xK < k_lengths[:, None])[:, None, :])
  if not masks:
    return None
  mask = masks[0]
  for other in masks[1:]:
    mask &= other
  return mask
