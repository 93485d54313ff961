"""Attention with every pair in memory; the definition for the others."""

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax.attention import call as call_lib
from lengen_jax.attention.call import AttentionCall

# Finite, so that a row without a visible key gives no NaN.
MASKED = -(2.0**127)


def attend(call: AttentionCall) -> Array:
  """Returns attention, `[B, Q, H, D]`; see `dot_product_attention`."""
  q, k, v = call.q, call.k, call.v
  q_positions, k_positions = call.queries.positions, call.keys.positions
  groups = q.shape[2] // k.shape[2]
  if groups > 1:
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
  logits_BxHxQxK = jnp.einsum(
    'bqhd,bkhd->bhqk', q, k, preferred_element_type=jnp.float32
  )
  if call.content is not None:
    logits_BxHxQxK += call.content.logits(q, k, q_positions, k_positions)
  logits_BxHxQxK *= call.scale
  if call.logit_scale is not None:
    logits_BxHxQxK *= jnp.moveaxis(call.logit_scale, 2, 1)[..., None]
  bias = call.bias
  if bias is not None:
    if callable(bias):
      bias = bias(q_positions, k_positions)
      call_lib.check_bias_shape(bias, logits_BxHxQxK.shape)
    logits_BxHxQxK += bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
  visible = call_lib.visible_pairs(call.mask, call.queries, call.keys)
  if visible is not None:
    logits_BxHxQxK = jnp.where(visible[:, None], logits_BxHxQxK, MASKED)
  weights_BxHxQxK = jax.nn.softmax(logits_BxHxQxK, -1)
  y_BxQxHxD = jnp.einsum(
    'bhqk,bkhd->bqhd',
    weights_BxHxQxK.astype(v.dtype),
    v,
    preferred_element_type=jnp.float32,
  )
  if call.content is not None:
    values = call.content.values(weights_BxHxQxK, q_positions, k_positions)
    y_BxQxHxD += 0.0 if values is None else values
  limits = call.keys.lengths, call.queries.segment_ids, call.mask.window
  starts_within = call.q_offset is not None and call.q_offset >= 0
  may_see_none = not starts_within or any(limit is not None for limit in limits)
  if visible is not None and may_see_none:
    # Fully masked queries output zero.
    y_BxQxHxD *= visible.any(-1)[:, :, None, None]
  return y_BxQxHxD.astype(q.dtype)
