"""Attention with every pair in memory; the definition for the others."""

import functools

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax.attention import bands, checks
from lengen_jax.attention import call as call_lib
from lengen_jax.attention.call import AttentionCall

# Finite, so that a row without a visible key gives no NaN.
MASKED = -(2.0**127)


def attend(call: AttentionCall) -> Array:
  """Returns attention, `[B, Q, H, D]`; see `dot_product_attention`."""
  v = call.v
  q_positions, k_positions = call.queries.positions, call.keys.positions
  (batch, q_length, heads, _), groups = call.q.shape, call.k.shape[2]
  visible = call_lib.visible_pairs(call.mask, call.queries, call.keys)
  visible_BxHxQxK = None if visible is None else visible[:, None]
  if call.bands:
    inside = [bands.pairs(b.limits, b.q_places, b.k_places) for b in call.bands]
    products = [_products(call, band.q, band.k) for band in call.bands]
    logits_BxHxQxK = jnp.select(inside, products)
    in_any = functools.reduce(jnp.logical_or, inside)
    visible_BxHxQxK = in_any if visible is None else in_any & visible[:, None]
  else:
    logits_BxHxQxK = _products(call, call.q, call.k)
  logits_BxHxQxK *= call.scale
  if call.logit_scale is not None:
    logits_BxHxQxK *= jnp.moveaxis(call.logit_scale, 2, 1)[..., None]
  if call.logit_cap is not None:
    logits_BxHxQxK = call.logit_cap * jnp.tanh(logits_BxHxQxK / call.logit_cap)
  bias = call.bias
  if bias is not None:
    if callable(bias):
      given = q_positions, k_positions
      if not isinstance(bias, encodings.BiasFn):
        given = tuple(getattr(x, 'value', x) for x in given)
      bias = bias(*given)
      checks.check_bias_shape(bias, logits_BxHxQxK.shape)
    logits_BxHxQxK += bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
  if visible_BxHxQxK is not None:
    logits_BxHxQxK = jnp.where(visible_BxHxQxK, logits_BxHxQxK, MASKED)
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
    weights_BxHxQxK.astype(v.dtype).reshape(batch, groups, -1, v.shape[1]),
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
  if visible_BxHxQxK is not None and (may_see_none or call.bands):
    # Fully masked queries output zero.
    y_BxQxHxD *= jnp.swapaxes(visible_BxHxQxK.any(-1), 1, 2)[..., None]
  return y_BxQxHxD.astype(call.q.dtype)


def _products(call: AttentionCall, q: Array, k: Array) -> Array:
  """Returns q k + content, float32 `[B, H, Q, K]`."""
  (batch, q_length, heads, head_dim), groups = q.shape, k.shape[2]
  # A key head is multiplied with the M queries of all heads that read it.
  q_BxGxMxD = jnp.swapaxes(q, 1, 2).reshape(batch, groups, -1, head_dim)
  products_BxHxQxK = jnp.einsum(
    'bgmd,bkgd->bgmk', q_BxGxMxD, k, preferred_element_type=jnp.float32
  ).reshape(batch, heads, q_length, -1)
  if call.content is None:
    return products_BxHxQxK
  k = jnp.repeat(k, heads // groups, axis=2)
  return products_BxHxQxK + call.content.logits(
    q, k, call.queries.positions, call.keys.positions
  )
