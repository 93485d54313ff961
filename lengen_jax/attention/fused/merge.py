"""Softmaxes over parts of the keys, merged by their log-sum-exps.

A part is the output `[B, n, H D]` and the log-sum-exps `[B, H, 1, n]`, MASKED
for queries that see no key.
"""

from jax import Array
import jax.numpy as jnp

from lengen_jax.attention import sink_logits
from lengen_jax.attention.fused import NOTHING
from lengen_jax.attention.fused.plan import Plan

Part = tuple[Array, Array]


def merged(plan: Plan, a: Part, b: Part) -> Part:
  """Returns the softmax over the keys of two parts; its output is float32."""
  total = jnp.logaddexp(a[1], b[1])
  y = _scaled(plan, a[0], a[1] - total) + _scaled(plan, b[0], b[1] - total)
  return y, total


def with_sinks(plan: Plan, part: Part, sink_logits_H: Array | None) -> Part:
  """Returns a part with a key without a value; see `dot_product_attention`."""
  if sink_logits_H is None:
    return part
  y, lse = part
  total = jnp.logaddexp(lse, sink_logits_H[None, :, None, None])
  return _scaled(plan, y, lse - total).astype(y.dtype), total


def finite(lse: Array) -> Array:
  """Returns log-sum-exps, with 0 for queries that see no key."""
  return jnp.where(lse > NOTHING, lse, 0.0)


def sink_gradient(
  plan: Plan, part: Part, dy: Array, sink_logits_H: Array | None
) -> Array | None:
  """Returns the gradient of sink logits, summed over the queries of a part."""
  if sink_logits_H is None:
    return None
  y, lse_BxHx1xn = part
  delta_BxHx1xn = plan.delta(y, dy)
  return sink_logits.gradient(
    sink_logits_H, lse_BxHx1xn[:, :, 0], delta_BxHx1xn[:, :, 0]
  )


def _scaled(plan: Plan, y_BxnxHD: Array, log_BxHx1xn: Array) -> Array:
  """Returns outputs multiplied by exp(log) of their query and head, float32."""
  factor_BxnxHx1 = jnp.exp(jnp.moveaxis(log_BxHx1xn, 3, 1))
  y = y_BxnxHD.reshape(*y_BxnxHD.shape[:2], -1, plan.head_dim) * factor_BxnxHx1
  return y.reshape(y_BxnxHD.shape)
