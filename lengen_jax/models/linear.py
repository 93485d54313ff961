"""Linear layers with kernels of any rank."""

from collections.abc import Callable
import functools
import math
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
    lora_rank: r, adds alpha / r (x A) B for kernels A `[inputs..., r]`, normal
      with standard deviation 1 / sqrt(fan-in), and B `[r, outputs...]`, zeros.
      None for no such kernels. Source: Hu et al. (2021), arXiv:2106.09685.
    lora_alpha: alpha; None for r.
  """

  shape: tuple
  axes: tuple
  dtype: Any = jnp.float32
  init_scale: float = 1.0
  use_bias: bool = False
  inputs: int = 1
  lora_rank: int | None = None
  lora_alpha: float | None = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Multiplies the last axes of x by the kernel.

    Args:
      x: `[..., inputs...]`, whose last axes are the kernel's input axes.

    Returns:
      `[..., outputs...]` in `dtype`.
    """
    inputs, x = self.inputs, x.astype(self.dtype)
    std = math.prod(self.shape[:inputs]) ** -0.5
    init = nn.initializers.normal(self.init_scale * std)
    y = self._multiply('kernel', init, self.shape, self.axes, inputs, x)
    if self.lora_rank is not None:
      shape = (*self.shape[:inputs], self.lora_rank)
      axes = (*self.axes[:inputs], None)
      init = nn.initializers.normal(std)
      h = self._multiply('lora_in', init, shape, axes, inputs, x)
      shape = (self.lora_rank, *self.shape[inputs:])
      axes = (None, *self.axes[inputs:])
      init = nn.initializers.zeros
      scale = lora_scale(self.lora_rank, self.lora_alpha)
      y += scale * self._multiply('lora_out', init, shape, axes, 1, h)
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

  @nn.nowrap
  def _multiply(
    self,
    name: str,
    init: Callable[..., jax.Array],
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    inputs: int,
    x: jax.Array,
  ) -> jax.Array:
    """Creates a kernel; returns the product of x with it."""
    named = partitioning.named(init, axes)
    kernel: Any = self.param(name, named, shape, jnp.float32)
    # jnp.einsum contracts several axes in reverse order, which transposes them.
    expands = kernel.size > math.prod(shape[:inputs]) ** 2
    product = _expand if expands else _product
    return product(inputs, x, kernel.astype(self.dtype))


def lora_scale(rank: int, alpha: float | None) -> float:
  """Returns the factor of the product of LoRA kernels, alpha / rank."""
  return 1.0 if alpha is None else alpha / rank


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
