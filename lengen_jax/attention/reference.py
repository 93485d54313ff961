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
  (batch, q_length, heads, _), groups = q.shape, k.shape[2]
  # A key head is multiplied with the M queries of all heads that read it.
  q_BxGxMxD = jnp.swapaxes(q, 1, 2).reshape(batch, groups, -1, q.shape[3])
  logits_BxHxQxK = jnp.einsum(
    'bgmd,bkgd->bgmk', q_BxGxMxD, k, preferred_element_type=jnp.float32
  ).reshape(batch, heads, q_length, -1)
  if call.content is not None:
    k = jnp.repeat(k, heads // groups, axis=2)
    logits_BxHxQxK += call.content.logits(q, k, q_positions, k_positions)
  logits_BxHxQxK *= call.scale
  if call.logit_scale is not None:
    logits_BxHxQxK *= jnp.moveaxis(call.logit_scale, 2, 1)[..., None]
  if call.logit_cap is not None:
    logits_BxHxQxK = call.logit_cap * jnp.tanh(logits_BxHxQxK / call.logit_cap)
  bias = call.bias
  if bias is not None:
    if callable(bias):
      bias = bias(q_positions, k_positions)
      call_lib.check_bias_shape(bias, logits_BxHxQxK.shape)
    logits_BxHxQxK += bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
  visible = call_lib.visible_pairs(call.mask, call.queries, call.keys)
  if visible is not None:
    logits_BxHxQxK = jnp.where(visible[:, None], logits_BxHxQxK, MASKED)
  if call.sink_logits is None:
    weights_BxHxQxK = jax.nn.softmax(logits_BxHxQxK, -1)
  else:
    # The sink is a key without a value.
    sink_BxHxQx1 = jnp.broadcast_to(
      call.sink_logits[None, :, None, None], (*logits_BxHxQxK.shape[:3], 1)
    )
    with_sink = jnp.concatenate([logits_BxHxQxK, sink_BxHxQx1], -1)
    weights_BxHxQxK = jax.nn.softmax(with_sink, -1)[..., :-1]
  y_BxGxMxD = jnp.einsum(
    'bgmk,bkgd->bgmd',
    weights_BxHxQxK.astype(v.dtype).reshape(*q_BxGxMxD.shape[:3], -1),
    v,
    preferred_element_type=jnp.float32,
  )
  y_BxQxHxD = jnp.swapaxes(y_BxGxMxD.reshape(batch, heads, q_length, -1), 1, 2)
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
