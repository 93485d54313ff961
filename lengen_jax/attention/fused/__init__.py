"""Parts that the kernels for TPUs and GPUs share; `pallas` dispatches."""

import jax
from jax import Array
import jax.numpy as jnp

MASKED = -1e30
# The maximum before any logit: exp(MASKED - NOTHING) is 0.
NOTHING = -1e29


def dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
  """Returns a product summed in float32.

  Args:
    a: a matrix.
    b: a matrix.
    contract: the axis of a and the axis of b to sum over.
  """
  return jax.lax.dot_general(
    a,
    b,
    (((contract[0],), (contract[1],)), ((), ())),
    precision='highest' if b.dtype == jnp.float32 else None,
    preferred_element_type=jnp.float32,
  )
