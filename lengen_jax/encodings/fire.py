"""FIRE: functional interpolation for relative positions."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.encodings import base
from lengen_jax.types import Array, Params

_ACTIVATIONS = {'relu': jax.nn.relu, 'gelu': jax.nn.gelu}


class Fire(base.Encoding):
  """A learned function of the distance relative to the query's position.

  b(i, j) = f_theta(psi(i - j) / psi(max(i, L))) with psi(x) = ln(|c| x + 1), a
  multilayer perceptron f_theta from one number to one per head, and a learned
  threshold L = |threshold_multiplier * init_threshold|. In bidirectional
  attention, max(i, j, L) replaces max(i, L).

  Source: Li et al. (2023), arXiv:2310.04418, eq. 2-4 and appendix E, whose code
  adds biases and 1e-6 in the denominator. `shared=True` is the paper's FIRE-S.

  Attributes:
    mlp_width: hidden units per hidden layer of the MLP.
    hidden_layers: 2 as in the main text; 1 is the module of appendix E, 0 a
      linear map.
    init_c: initial c.
    init_threshold: initial L; its learned multiplier starts at 1.
    transform: psi, 'log' as above or 'identity', psi(x) = x, which has no c.
    threshold: 'learned', 'fixed' at init_threshold, or 'none'.
    normalizer: 'position' as above, 'max_length' to divide by psi(max_length)
      at every position, or 'none' to apply the MLP to psi(i - j) itself.
    max_length: required by normalizer='max_length'.
    activation: 'relu' or 'gelu', like `final_activation` of the output, which
      may also be None.
    sign: give the MLP the sign of the distance as a second input.
  """

  mlp_width: int = 32
  hidden_layers: int = 2
  init_c: float = 0.1
  init_threshold: float = 512.0
  transform: str = 'log'
  threshold: str = 'learned'
  normalizer: str = 'position'
  max_length: int | None = None
  activation: str = 'relu'
  final_activation: str | None = None
  sign: bool = False

  formula = 'b = MLP_h(ln(|c|(i-j)+1) / ln(|c| max(i, L)+1))'
  source = 'arXiv:2310.04418'
  parameters = (
    'c [1], threshold_multiplier [1], mlp_i/kernel [in, out], mlp_i/bias [out]'
  )
  beyond = 'interpolates: the input of the MLP stays in [0, 1]'

  ranges = {
    'mlp_width': '>= 1',
    'hidden_layers': '>= 0 and <= 2',
    'init_threshold': '>= 0',
    'transform': ('log', 'identity'),
    'threshold': ('learned', 'fixed', 'none'),
    'normalizer': ('position', 'max_length', 'none'),
    'max_length': 'None or >= 1',
    'activation': (*_ACTIVATIONS,),
    'final_activation': (*_ACTIVATIONS, None),
  }

  def __post_init__(self) -> None:
    super().__post_init__()
    if (self.normalizer == 'max_length') != (self.max_length is not None):
      raise errors.SpecError(
        "fire takes max_length with normalizer='max_length' and only then"
      )

  @property
  def translation_invariant(self) -> bool:
    """False for normalizer='position': beyond L, b depends on the query."""
    return self.normalizer != 'position'

  @property
  def has_rows(self) -> bool:
    """Whether rows vary slowly, which requires psi = ln and a threshold."""
    return (
      self.normalizer == 'position'
      and self.transform == 'log'
      and self.threshold != 'none'
    )

  @property
  def _learns_threshold(self) -> bool:
    return self.threshold == 'learned' and self.normalizer == 'position'

  def setup(self) -> None:
    constant = nn.initializers.constant
    axes = ('relpos_buckets',)
    if self.transform == 'log':
      self.c = self.make_param(self, 'c', constant(self.init_c), (1,), axes)
    if self._learns_threshold:
      self.threshold_multiplier = self.make_param(
        self, 'threshold_multiplier', nn.initializers.ones, (1,), axes
      )
    hidden = [self.mlp_width] * self.hidden_layers
    sizes = [1 + self.sign, *hidden, self.num_heads]
    output_axes = ['kv'] * self.hidden_layers + ['heads']
    self.mlp = [
      _Affine(sizes[i], sizes[i + 1], axis, self.make_param, name=f'mlp_{i}')
      for i, axis in enumerate(output_axes)
    ]
    # Submodules are set up when first accessed; access all of them, so that
    # every hook creates every parameter.
    for layer in self.mlp:
      _ = layer.kernel

  def tile_params(self) -> base.NamedLeaves | None:
    axes = ('relpos_buckets',)
    params: base.NamedLeaves = {}
    if self.transform == 'log':
      params['c'] = (jnp.abs(self.c), axes)
    if self._learns_threshold:
      threshold = self.threshold_multiplier * self.init_threshold
      params['threshold'] = (jnp.abs(threshold), axes)
    for i, layer in enumerate(self.mlp):
      params[f'kernel_{i}'] = (layer.kernel, layer.axes)
      params[f'bias_{i}'] = (layer.bias, layer.axes[1:])
    return params

  @nn.nowrap
  def tile(
    self, params: Params, i: Any, j: Any, *, bidirectional: bool = False
  ) -> jax.Array:
    if self.translation_invariant:
      return super().tile(params, i, j, bidirectional=bidirectional)
    distance = base.signed_distance(i, j)
    i = i.astype(jnp.float32)[..., :, None]
    if bidirectional:
      i = jnp.maximum(i, j.astype(jnp.float32)[..., None, :])
    return jnp.moveaxis(self._interpolate(params, distance, i), -1, -3)

  @nn.nowrap
  def strip(
    self, params: Params, distances: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    if not self.translation_invariant:
      return super().strip(params, distances, bidirectional=bidirectional)
    return jnp.moveaxis(self._interpolate(params, distances, None), -1, 0)

  @nn.nowrap
  def rows(
    self, params: Params, i: Array, d: Array, *, bidirectional: bool = False
  ) -> jax.Array:
    i = i.astype(jnp.float32)[:, None]
    d = d.astype(jnp.float32)[None]
    if bidirectional:
      i = jnp.maximum(i, i - d)
    d = jnp.broadcast_to(d, (i.shape[0], d.shape[1]))
    return jnp.moveaxis(self._interpolate(params, d, i), -1, -2)

  @nn.nowrap
  def row_scale(self, params: Params, positions: Array) -> jax.Array:
    """Returns 1 / psi(max(i, L)), in which the MLP is piecewise linear.

    The weight of a query between its anchors hardly depends on c, so it has no
    gradient with respect to c.
    """
    params = params | {'c': jax.lax.stop_gradient(params['c'])}
    return 1 / self._normalizer(params, positions)

  @nn.nowrap
  def _interpolate(
    self, params: Params, distance: Array, i: Array | None
  ) -> jax.Array:
    """Returns f_theta(psi(distance) / psi(max(i, L))), `[...] -> [..., H]`."""
    x = self._psi(params, jnp.abs(distance))
    if self.normalizer == 'max_length':
      x = x / self._psi(params, jnp.asarray(float(self.max_length)))
    elif self.normalizer == 'position':
      # In [0, 1] for keys up to the query.
      x = x / self._normalizer(params, i)
    h = x.reshape(-1, 1)
    if self.sign:
      h = jnp.concatenate([h, jnp.sign(distance).reshape(-1, 1)], 1)
    for n in range(self.hidden_layers + 1):
      # By default an accelerator would round the inputs, which represent
      # positions, to 16 bits.
      h = jnp.matmul(h, params[f'kernel_{n}'], precision='highest')
      h += params[f'bias_{n}'][None]
      if n < self.hidden_layers:
        h = _ACTIVATIONS[self.activation](h)
    if self.final_activation:
      h = _ACTIVATIONS[self.final_activation](h)
    return h.reshape(*x.shape, h.shape[-1])

  @nn.nowrap
  def _normalizer(self, params: Params, i: Array | None) -> jax.Array:
    """Returns psi(max(i, L))."""
    if self.threshold == 'learned':
      i = jnp.maximum(i, params['threshold'][0])
    elif self.threshold == 'fixed':
      i = jnp.maximum(i, self.init_threshold)
    else:
      # Some schemes produce negative positions.
      i = jnp.abs(i)
    return self._psi(params, i) + 1e-6

  @nn.nowrap
  def _psi(self, params: Params, x: jax.Array) -> jax.Array:
    return jnp.log1p(params['c'][0] * x) if self.transform == 'log' else x


class _Affine(nn.Module):
  """Weights and biases of one layer, both uniform in +-1/sqrt(fan_in).

  With zero biases, a ReLU layer on a non-negative number would be linear.
  """

  inputs: int
  outputs: int
  output_axis: str
  make_param: Callable

  @property
  def axes(self) -> tuple[str, str]:
    return ('relpos_buckets', self.output_axis)

  def setup(self) -> None:
    bound = self.inputs**-0.5

    def init(key: Array, shape: tuple[int, ...], dtype: type) -> jax.Array:
      return jax.random.uniform(key, shape, dtype, -bound, bound)

    shape = (self.inputs, self.outputs)
    self.kernel = self.make_param(self, 'kernel', init, shape, self.axes)
    self.bias = self.make_param(self, 'bias', init, shape[1:], self.axes[1:])
