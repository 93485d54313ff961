"""Random tokens, one column at a time.

What a column is given depends on the key and its index only: one call for all
columns would give other numbers at another width, and padding would change a
row.
"""

import jax
import jax.numpy as jnp


def column_bits(
  rng: jax.Array, width: int, shape: tuple[int, ...] = ()
) -> jax.Array:
  """Random bits for each column, uint32 `[*shape, width]`."""
  keys = jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(width))
  return jax.vmap(lambda key: jax.random.bits(key, shape), out_axes=-1)(keys)


def below(bits: jax.Array, count: int | jax.Array) -> jax.Array:
  """int32 from 0 to count - 1, uniform up to a part of count / 2^32."""
  return (bits % jnp.asarray(count, jnp.uint32)).astype(jnp.int32)


def symbols(rng: jax.Array, count: int, width: int) -> jax.Array:
  """Uniform tokens below `count`, int32 `[width]`."""
  return below(column_bits(rng, width), count)


def uniform(bits: jax.Array) -> jax.Array:
  """float32 uniform in [0, 1)."""
  return (bits >> 8).astype(jnp.float32) * 2.0**-24
