"""Parts that the kernels for TPUs and GPUs share; `pallas` dispatches."""

import jax
from jax import Array
import jax.numpy as jnp

MASKED = -1e30
# Initial running maximum: exp(MASKED - NOTHING) is 0, so that masked pairs have
# weight 0 even before the first visible pair.
NOTHING = -1e29


def dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
  """Returns the float32 sum of products over one axis of a and one of b."""
  return jax.lax.dot_general(
    a,
    b,
    (((contract[0],), (contract[1],)), ((), ())),
    precision='highest' if b.dtype == jnp.float32 else None,
    preferred_element_type=jnp.float32,
  )
