"""Arithmetic of tiles, on any chip."""

import jax
import jax.numpy as jnp

MASKED = -1e30
# The maximum of no logits: exp(MASKED - NOTHING) is 0.
NOTHING = -1e29


def dot(a, b, contract):
  """A product summed in float32, over axis `contract[0]` of a, [1] of b."""
  return jax.lax.dot_general(
    a,
    b,
    (((contract[0],), (contract[1],)), ((), ())),
    precision='highest' if b.dtype == jnp.float32 else None,
    preferred_element_type=jnp.float32,
  )
