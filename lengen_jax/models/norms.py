"""Norms of activations, and of queries and keys. Statistics are float32."""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import partitioning
from lengen_jax.models.config import ModelConfig

# By kind of a norm of queries and keys: the axes of `[B, L, H, D]` over which
# the mean is computed, and their logical names.
_HEADS = {
  'head': ((-1,), ('kv',)),
  'unscaled': ((-1,), ('kv',)),
  'all': ((-2, -1), ('heads', 'kv')),
}


class ZeroCenteredRMSNorm(nn.Module):
  """RMS norm whose scale is 1 plus its parameter, as in Gemma.

  Attributes:
    epsilon: added to the mean square.
    dtype: dtype of the output.
    axes: axes over which the mean is computed, and that have scales.
    names: their logical names.
  """

  epsilon: float
  dtype: Any = jnp.float32
  axes: tuple = (-1,)
  names: tuple = ('embed',)

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalizes x; the result has its shape, in `dtype`."""
    scale: Any = self.param(
      'scale',
      partitioning.named(nn.initializers.zeros, self.names),
      tuple(x.shape[axis] for axis in self.axes),
      jnp.float32,
    )
    y: Any = nn.RMSNorm(
      epsilon=self.epsilon,
      dtype=jnp.float32,
      use_scale=False,
      reduction_axes=self.axes,
      parent=None,
    ).apply({}, x)
    lead = (1,) * (y.ndim - len(self.axes))
    return (y * (1.0 + scale.reshape(lead + scale.shape))).astype(self.dtype)


def create(config: ModelConfig, name: str | None) -> nn.Module:
  """Creates the norm of a ModelConfig over the width of the model."""
  dtype = jnp.dtype(config.dtype)
  if config.norm == 'rms_zero_centered':
    return ZeroCenteredRMSNorm(config.norm_epsilon, dtype, name=name)
  options: dict[str, Any] = {
    'epsilon': config.norm_epsilon,
    'dtype': dtype,
    'scale_init': partitioning.named(nn.initializers.ones, ('embed',)),
    'name': name,
  }
  if config.norm == 'rms':
    return nn.RMSNorm(**options)
  zeros = partitioning.named(nn.initializers.zeros, ('embed',))
  return nn.LayerNorm(**options, bias_init=zeros)


def of_heads(
  kind: str, zero_centered: bool, epsilon: float, dtype: Any, name: str
) -> nn.Module:
  """Creates an RMS norm of queries or keys, `[B, L, H, D]`.

  Args:
    kind: 'head' for each head, with one scale `[D]`; 'all' for all heads
      together, with scales `[H, D]`; 'unscaled' for each head, without scales.
    zero_centered: whether scales are 1 plus their parameters.
    epsilon: added to the mean square.
    dtype: dtype of the output.
    name: name of the module.
  """
  axes, names = _HEADS[kind]
  if zero_centered and kind != 'unscaled':
    return ZeroCenteredRMSNorm(epsilon, dtype, axes, names, name=name)
  return nn.RMSNorm(
    epsilon=epsilon,
    dtype=dtype,
    use_scale=kind != 'unscaled',
    scale_init=partitioning.named(nn.initializers.ones, names),
    reduction_axes=axes,
    feature_axes=axes,
    name=name,
  )
