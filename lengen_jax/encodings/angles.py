"""Angles of rotations and sinusoids at any position, in float32."""

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.types import Array

# From here on, the product of position and frequency would be off by 0.01 rad.
_FAR = 2**17
_PART = 4096


def angles(positions: Array, frequencies_F: np.ndarray) -> jax.Array:
  """Returns p w_k, up to multiples of 2 pi.

  A position p >= 2**17 is split into 4096 a + b, and its angle is
  a (4096 w_k mod 2 pi) + b w_k. The error is below 0.002 rad up to p = 10**7,
  where that of the product is up to 0.3 rad.

  Args:
    positions: int32 or float32, of any shape.
    frequencies_F: float64 `[F]`.

  Returns:
    float32, of the shape of `positions` with an axis F added.
  """
  p = jnp.asarray(positions)[..., None]
  w, w_part = (
    jnp.asarray(w_F.reshape([1] * (p.ndim - 1) + [-1]), jnp.float32)
    for w_F in (frequencies_F, np.mod(_PART * frequencies_F, 2 * np.pi))
  )
  a = p // _PART
  b = p - _PART * a
  a, b, near = (x.astype(jnp.float32) for x in (a, b, p))
  return jnp.where(p < _FAR, near * w, a * w_part + b * w)
