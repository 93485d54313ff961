"""Linear layers with kernels of any rank."""

import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import partitioning


class Linear(nn.Module):
  """Linear layer that contracts the last axes of its input with its kernel.

  The fan-in is the product of the contracted axes. Initial entries are normal
  with standard deviation init_scale / sqrt(fan-in).

  Attributes:
    shape: shape of the kernel, such as `(E, H, D)`: first its input axes.
    axes: logical axis names of the kernel.
    dtype: dtype of the computation.
    init_scale: scales the initial kernel.
    use_bias: add a bias, initially zero, of the shape of the output axes.
    inputs: number of input axes.
  """

  shape: tuple
  axes: tuple
  dtype: Any = jnp.float32
  init_scale: float = 1.0
  use_bias: bool = False
  inputs: int = 1

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    fan_in = 1
    for size in self.shape[: self.inputs]:
      fan_in *= size
    kernel: Any = self.param(
      'kernel',
      partitioning.named(
        nn.initializers.normal(self.init_scale * fan_in**-0.5), self.axes
      ),
      self.shape,
      jnp.float32,
    )
    # jnp.einsum contracts several axes in reverse order, which transposes them.
    product = _expand if kernel.size > fan_in**2 else _product
    y = product(self.inputs, x.astype(self.dtype), kernel.astype(self.dtype))
    if not self.use_bias:
      return y
    bias: Any = self.param(
      'bias',
      partitioning.named(nn.initializers.zeros, self.axes[self.inputs :]),
      self.shape[self.inputs :],
      jnp.float32,
    )
    lead = (1,) * (y.ndim - bias.ndim)
    return y + bias.reshape(lead + bias.shape).astype(self.dtype)


def _product(inputs: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
  with jax.named_scope('linear'):
    return jnp.tensordot(x, kernel, inputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _expand(inputs: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Returns the product with a kernel with more outputs than inputs.

  The kernel gradient is x^T dy; autodiff computes (dy^T x)^T. XLA on CPU
  transposes the first operand in memory, and x is smaller than dy. The custom
  gradient does not support forward-mode differentiation.
  """
  return _product(inputs, x, kernel)


def _expand_gradients(
  inputs: int, residuals: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
  x, kernel = residuals
  rows = tuple(range(x.ndim - inputs))
  outputs = tuple(range(inputs, kernel.ndim))
  dy_outputs = tuple(axis - kernel.ndim for axis in outputs)
  dx = jnp.tensordot(dy, kernel, (dy_outputs, outputs))
  return dx, jnp.tensordot(x, dy, (rows, rows))


_expand.defvjp(
  lambda inputs, x, kernel: (_expand(inputs, x, kernel), (x, kernel)),
  _expand_gradients,
)
