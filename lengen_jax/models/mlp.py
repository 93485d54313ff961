"""Feed-forward networks: an MLP, and a mixture of experts.

Shape suffixes: B batch, L length, E width, F hidden units, X experts, K experts
per token.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors, partitioning
from lengen_jax.models import linear


def _swiglu_clipped(gate: jax.Array, up: jax.Array) -> jax.Array:
  gate, up = jnp.minimum(gate, 7.0), jnp.clip(up, -7.0, 7.0)
  return gate * nn.sigmoid(1.702 * gate) * (up + 1.0)


# Functions of up(x).
ACTIVATIONS: dict[str, Callable[..., jax.Array]] = {
  'gelu': nn.gelu,
  'gelu_exact': functools.partial(nn.gelu, approximate=False),
  'relu': nn.relu,
}
# Functions of gate(x) and up(x).
GATED: dict[str, Callable[..., jax.Array]] = {
  'geglu': lambda gate, up: nn.gelu(gate) * up,
  'swiglu': lambda gate, up: up * nn.silu(gate),
  'swiglu_clipped': _swiglu_clipped,
}


class MLP(nn.Module):
  """Feed-forward network: down(activation(up(x))).

  Gated activations compute down(activation(gate(x), up(x))): 'geglu' gelu(gate)
  up, 'swiglu' silu(gate) up, and 'swiglu_clipped' gate sigmoid(1.702 gate)
  (up + 1) with gate at most 7 and up in [-7, 7]. 'gelu' is the approximation
  with tanh, and 'gelu_exact' the exact function.

  Sources: Shazeer (2020), arXiv:2002.05202, eq. 6; 'swiglu_clipped': the code
  of gpt-oss.

  Attributes:
    hidden: hidden units, F.
    activation: a key of ACTIVATIONS or GATED.
    use_bias: add biases.
    dtype: dtype of the computation.
    out_init_scale: scales the initial output projection.
  """

  hidden: int
  activation: str = 'gelu'
  use_bias: bool = False
  dtype: Any = jnp.float32
  out_init_scale: float = 1.0

  def __post_init__(self) -> None:
    valid = ACTIVATIONS | GATED
    if self.activation not in valid:
      raise errors.ConfigError(
        errors.one_of('activation', self.activation, valid)
      )
    super().__post_init__()

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Applies the network to each token, `[..., E] -> [..., E]`."""
    width = x.shape[-1]

    def expand(name: str) -> jax.Array:
      h_BxLxF = linear.Linear(
        (width, self.hidden),
        ('embed', 'mlp'),
        self.dtype,
        use_bias=self.use_bias,
        name=name,
      )(x)
      return partitioning.constrain(h_BxLxF, 'batch', 'length', 'mlp')

    up_BxLxF = expand('up')
    if self.activation in GATED:
      h_BxLxF = GATED[self.activation](expand('gate'), up_BxLxF)
    else:
      h_BxLxF = ACTIVATIONS[self.activation](up_BxLxF)
    return linear.Linear(
      (self.hidden, width),
      ('mlp', 'embed'),
      self.dtype,
      self.out_init_scale,
      use_bias=self.use_bias,
      name='down',
    )(h_BxLxF)


class Experts(nn.Module):
  """Mixture of experts: MLPs with gated activations and top-k routing.

  A router computes a logit per expert. The output is the sum of the outputs of
  the `per_token` experts with the largest logits, weighted by the softmax of
  these logits. All experts are computed for all tokens: suited to reading
  checkpoints, not to training at scale.

  Source: the code of gpt-oss.

  Attributes:
    count: number of experts, X.
    per_token: experts that each token uses, K.
    hidden: hidden units of each expert, F.
    activation: a key of GATED.
    use_bias: add biases to the experts. The router always has one.
    dtype: dtype of the experts. The router is float32.
    out_init_scale: scales the initial output projections.
  """

  count: int
  per_token: int
  hidden: int
  activation: str = 'swiglu_clipped'
  use_bias: bool = True
  dtype: Any = jnp.float32
  out_init_scale: float = 1.0

  def __post_init__(self) -> None:
    if self.activation not in GATED:
      raise errors.ConfigError(
        errors.one_of('activation of experts', self.activation, GATED)
      )
    super().__post_init__()

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Applies the experts to each token, `[B, L, E] -> [B, L, E]`."""
    width = x.shape[-1]
    logits_BxLxX = linear.Linear(
      (width, self.count), ('embed', None), use_bias=True, name='router'
    )(x)
    best_BxLxK, chosen_BxLxK = jax.lax.top_k(logits_BxLxX, self.per_token)
    weight_BxLxX = jnp.sum(
      nn.one_hot(chosen_BxLxK, self.count) * nn.softmax(best_BxLxK)[..., None],
      axis=-2,
    )

    def project(
      name: str, x: jax.Array, inputs: int, outputs: int, axes: tuple
    ) -> jax.Array:
      scale = self.out_init_scale if name == 'down' else 1.0
      kernel: Any = self.param(
        f'{name}_kernel',
        partitioning.named(
          nn.initializers.normal(scale * inputs**-0.5), (None, *axes)
        ),
        (self.count, inputs, outputs),
        jnp.float32,
      )
      y = jnp.einsum('blxi,xio->blxo', x, kernel.astype(self.dtype))
      if not self.use_bias:
        return y
      bias: Any = self.param(
        f'{name}_bias',
        partitioning.named(nn.initializers.zeros, (None, axes[-1])),
        (self.count, outputs),
        jnp.float32,
      )
      return y + bias[None, None].astype(self.dtype)

    shape = (*x.shape[:2], self.count, width)
    x_BxLxXxE = jnp.broadcast_to(x[:, :, None].astype(self.dtype), shape)
    expand = 'embed', 'mlp'
    gate = project('gate', x_BxLxXxE, width, self.hidden, expand)
    up = project('up', x_BxLxXxE, width, self.hidden, expand)
    h_BxLxXxF = GATED[self.activation](gate, up)
    y_BxLxXxE = project('down', h_BxLxXxF, self.hidden, width, expand[::-1])
    return jnp.einsum(
      'blx,blxe->ble', weight_BxLxX.astype(self.dtype), y_BxLxXxE
    )
