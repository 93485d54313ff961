"""Angles of rotations and sinusoids at any position, in float32."""

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.types import Array

# From here on, the product of position and frequency would be off by 0.01 rad.
_FAR = 2**17
_PART_BITS = 12
_PART = 2**_PART_BITS


def angles(positions: Array, frequencies_F: np.ndarray) -> jax.Array:
  """Returns p w_k, up to multiples of 2 pi.

  A position p of 2**17 or more is split into 4096 a + b, and its angle is
  a (4096 w_k mod 2 pi) + b w_k. The error is below 0.002 rad up to p = 10**7,
  where that of the product is up to 0.3 rad. For lesser positions, the angle is
  the product, with an error of up to 0.008 rad.

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
  if jnp.issubdtype(p.dtype, jnp.integer):
    a, b = p >> _PART_BITS, p & (_PART - 1)
  else:
    a = jnp.floor(p / _PART)
    b = p - _PART * a
  a, b, near = (x.astype(jnp.float32) for x in (a, b, p))
  return jnp.where(jnp.abs(p) < _FAR, near * w, a * w_part + b * w)
