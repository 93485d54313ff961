"""The gradient of sink logits, which all implementations by tiles share."""

from jax import Array
import jax.numpy as jnp


def gradient(
  sink_logits_H: Array, lse_BxHxQ: Array, delta_BxHxQ: Array
) -> Array:
  """Returns the gradient of sink logits, summed over queries, float32 `[H]`.

  A sink is a key without a value: the gradient of its weight is 0, so that only
  delta is left of the softmax's gradient.

  Args:
    sink_logits_H: the sink logits.
    lse_BxHxQ: log-sum-exp of each softmax, with the sink.
    delta_BxHxQ: sum_j p_ij dp_ij of each softmax.
  """
  weight_BxHxQ = jnp.exp(sink_logits_H[None, :, None] - lse_BxHxQ)
  return -jnp.einsum('bhq,bhq->h', weight_BxHxQ, delta_BxHxQ)
