"""Linear layers as einsums."""

import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import partitioning


class Einsum(nn.Module):
  """Linear layer with a kernel of any rank, such as `[E, H, D]`.

  The fan-in is the product of the kernel axes that the equation contracts.
  Initial entries are normal with standard deviation init_scale / sqrt(fan-in).

  Attributes:
    equation: einsum of input and kernel.
    shape: shape of the kernel.
    axes: logical axis names of the kernel.
    dtype: dtype of the computation.
    init_scale: scales the initial kernel.
    use_bias: add a bias, initially zero, along the output axes of the kernel.
  """

  equation: str
  shape: tuple
  axes: tuple
  dtype: Any = jnp.float32
  init_scale: float = 1.0
  use_bias: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    kernel_axes, output_axes = self.equation.split(',')[1].split('->')
    fan_in = 1
    for axis, size in zip(kernel_axes, self.shape, strict=True):
      fan_in *= 1 if axis in output_axes else size
    kernel: Any = self.param(
      'kernel',
      partitioning.named(
        nn.initializers.normal(self.init_scale * fan_in**-0.5), self.axes
      ),
      self.shape,
      jnp.float32,
    )
    expands = kernel.size > fan_in**2
    y = (_expand if expands else jnp.einsum)(
      self.equation, x.astype(self.dtype), kernel.astype(self.dtype)
    )
    if not self.use_bias:
      return y
    outputs = [i for i, axis in enumerate(kernel_axes) if axis in output_axes]
    shape = tuple(self.shape[i] for i in outputs)
    axes = tuple(self.axes[i] for i in outputs)
    bias: Any = self.param(
      'bias',
      partitioning.named(nn.initializers.zeros, axes),
      shape,
      jnp.float32,
    )
    lead = (1,) * (y.ndim - bias.ndim)
    return y + bias.reshape(lead + shape).astype(self.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _expand(equation: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Returns jnp.einsum for a kernel with more outputs than inputs.

  The kernel gradient is einsum(x, dy); autodiff computes einsum(dy, x). XLA on
  CPU transposes the first operand in memory, and x is smaller than dy. The
  custom gradient does not support forward-mode differentiation.
  """
  return jnp.einsum(equation, x, kernel)


def _expand_gradients(
  equation: str, residuals: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
  x, kernel = residuals
  x_axes, rest = equation.split(',')
  kernel_axes, y_axes = rest.split('->')
  dx = jnp.einsum(f'{y_axes},{kernel_axes}->{x_axes}', dy, kernel)
  return dx, jnp.einsum(f'{x_axes},{y_axes}->{kernel_axes}', x, dy)


_expand.defvjp(
  lambda equation, x, kernel: (_expand(equation, x, kernel), (x, kernel)),
  _expand_gradients,
)
