"""Random tokens and orders.

A column of `column_bits` and `symbols` depends only on the key and the index of
the column, not on the padded width.
"""

import jax
import jax.numpy as jnp


def column_bits(
  rng: jax.Array, width: int, shape: tuple[int, ...] = ()
) -> jax.Array:
  """Returns random bits for each column, uint32 `[*shape, width]`."""
  keys = jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(width))
  return jax.vmap(lambda key: jax.random.bits(key, shape), out_axes=-1)(keys)


def below(bits: jax.Array, count: int | jax.Array) -> jax.Array:
  """Returns int32 below `count`, uniform up to a bias of count / 2^32."""
  return (bits % jnp.asarray(count, jnp.uint32)).astype(jnp.int32)


def symbols(rng: jax.Array, count: int, width: int) -> jax.Array:
  """Returns uniform tokens below `count`, int32 `[width]`."""
  return below(column_bits(rng, width), count)


def uniform(bits: jax.Array) -> jax.Array:
  """Returns float32 values, uniform in [0, 1)."""
  return (bits >> 8).astype(jnp.float32) * 2.0**-24


def distinct(rng: jax.Array, count: int, size: int) -> jax.Array:
  """Returns `size` distinct values below `count` in random order, int32."""
  return jax.lax.top_k(jax.random.bits(rng, (count,)), size)[1]


def shuffled(rng: jax.Array, n: int | jax.Array, width: int) -> jax.Array:
  """Returns a random order of 0 ... n - 1, then n ... width - 1, int32."""
  bits = column_bits(rng, width) >> 1
  column = jnp.arange(width)
  return jnp.lexsort((bits, jnp.where(column < n, 0, column)))
