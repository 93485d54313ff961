"""Blocks of tokens: their size, and reading and writing them."""

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax import partitioning


def block_size() -> int:
  """Returns the tokens in a block, for a CPU's cache or a matrix unit."""
  return 128 if partitioning.platform() == 'cpu' else 512


def read(x_BxNxHxD: Array, n: int | Array, block: int) -> Array:
  """Returns block n of the tokens, `[B, H, block, D]`."""
  x = jax.lax.dynamic_slice_in_dim(x_BxNxHxD, n * block, block, axis=1)
  return jnp.swapaxes(x, 1, 2)


def write(x_BxNxHxD: Array, block_BxHxnxD: Array, n: int | Array) -> Array:
  """Returns x with block n replaced; the inverse of `read`."""
  new = jnp.swapaxes(block_BxHxnxD, 1, 2).astype(x_BxNxHxD.dtype)
  return jax.lax.dynamic_update_slice_in_dim(
    x_BxNxHxD, new, n * new.shape[1], axis=1
  )


def add(x_BxNxHxD: Array, block_BxHxnxD: Array, n: int | Array) -> Array:
  """Returns x with a block added to its block n."""
  before = read(x_BxNxHxD, n, block_BxHxnxD.shape[2])
  return write(x_BxNxHxD, before + block_BxHxnxD, n)
