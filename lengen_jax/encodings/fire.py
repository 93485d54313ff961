"""FIRE: functional interpolation for relative positions."""

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.encodings import base


class Fire(base.Encoding):
  """A learned function of a distance relative to the query's position.

  b(i, j) = f_theta(psi(i - j) / psi(max(i, L))) with psi(x) = ln(|c| x + 1), a
  multilayer perceptron f_theta from one number to one per head, and a learned
  threshold L = |threshold_multiplier * init_threshold|. Dividing by the query's
  own position keeps the input within [0, 1] at every length. Bidirectionally
  the normaliser is max(i, j, L).

  Source: Li et al. (2023), arXiv:2310.04418, eq. 2-4 and appendix E, whose code
  adds biases and 1e-6 in the denominator. `shared=True` is the paper's FIRE-S.

  Attributes:
    mlp_width: units of a hidden layer.
    hidden_layers: 2 as in the main text; 1 is the module of appendix E.
    init_c: initial c.
    init_threshold: initial L; the learned multiplier of it starts at 1.
  """

  mlp_width: int = 32
  hidden_layers: int = 2
  init_c: float = 0.1
  init_threshold: float = 512.0

  formula = 'b = MLP_h(ln(|c|(i-j)+1) / ln(|c| max(i, L)+1))'
  source = 'arXiv:2310.04418'
  # Constant along diagonals only while i <= L.
  translation_invariant = False

  def __post_init__(self):
    if self.hidden_layers not in (0, 1, 2):
      raise errors.SpecError(
        f'hidden_layers must be 0, 1 or 2, got {self.hidden_layers}'
      )
    if self.mlp_width < 1 or self.init_threshold < 0:
      raise errors.SpecError(
        f'mlp_width={self.mlp_width} and init_threshold='
        f'{self.init_threshold} must be positive'
      )
    super().__post_init__()

  def setup(self):
    constant = nn.initializers.constant
    axes = ('relpos_buckets',)
    self.c = self.make_param(self, 'c', constant(self.init_c), (1,), axes)
    self.threshold_multiplier = self.make_param(
      self, 'threshold_multiplier', nn.initializers.ones, (1,), axes
    )
    sizes = [1] + [self.mlp_width] * self.hidden_layers + [self.num_heads]
    last = len(sizes) - 2
    self.mlp = [
      _Affine(
        sizes[i],
        sizes[i + 1],
        'heads' if i == last else 'kv',
        self.make_param,
        name=f'mlp_{i}',
      )
      for i in range(last + 1)
    ]
    # Submodules are set up when first touched; touch all of them, so that
    # every hook creates every parameter.
    for layer in self.mlp:
      _ = layer.kernel

  def tile_params(self):
    axes = ('relpos_buckets',)
    threshold = self.threshold_multiplier * self.init_threshold
    params = {
      'c': (jnp.abs(self.c), axes),
      'threshold': (jnp.abs(threshold), axes),
    }
    for i, layer in enumerate(self.mlp):
      params[f'kernel_{i}'] = (layer.kernel, layer.axes)
      params[f'bias_{i}'] = (layer.bias, layer.axes[1:])
    return params

  @nn.nowrap
  def tile(self, params, q_positions, k_positions, *, bidirectional=False):
    i = q_positions.astype(jnp.float32)[..., :, None]
    if bidirectional:
      i = jnp.maximum(i, k_positions.astype(jnp.float32)[..., None, :])
    x = self._normalized(
      params, base.signed_distance(q_positions, k_positions), i
    )
    return jnp.moveaxis(self._mlp(params, x), -1, -3)

  @nn.nowrap
  def rows(self, params, anchors, distances, *, bidirectional=False):
    """Bias of query positions `anchors` [A] at `distances` [N]: `[A, H, N]`.

    Distances are query minus key position, signed.
    """
    i = anchors.astype(jnp.float32)[:, None]
    d = distances.astype(jnp.float32)[None]
    if bidirectional:
      i = jnp.maximum(i, i - d)
    x = self._normalized(params, d, i)
    return jnp.moveaxis(self._mlp(params, x), -1, -2)

  @nn.nowrap
  def _normalized(self, params, distance, i):
    """psi(|distance|) / psi(max(i, L)), in [0, 1] for keys up to the query."""
    c, threshold = params['c'][0], params['threshold'][0]
    denominator = jnp.log1p(c * jnp.maximum(i, threshold)) + 1e-6
    return jnp.log1p(c * jnp.abs(distance)) / denominator

  @nn.nowrap
  def _mlp(self, params, x):
    """f_theta elementwise: `[...] -> [..., H]`."""
    h = x.reshape(-1, 1)
    for i in range(self.hidden_layers + 1):
      h = h @ params[f'kernel_{i}'] + params[f'bias_{i}'][None]
      if i < self.hidden_layers:
        h = jax.nn.relu(h)
    return h.reshape(*x.shape, -1)


class _Affine(nn.Module):
  """Weights and biases of one layer, both uniform in +-1/sqrt(fan_in).

  With zero biases, flax's default, a ReLU layer on a non-negative number is
  linear and its units of negative weight are dead.
  """

  inputs: int
  outputs: int
  output_axis: str
  make_param: object

  @property
  def axes(self):
    return ('relpos_buckets', self.output_axis)

  def setup(self):
    bound = self.inputs**-0.5

    def init(key, shape, dtype):
      return jax.random.uniform(key, shape, dtype, -bound, bound)

    shape = (self.inputs, self.outputs)
    self.kernel = self.make_param(self, 'kernel', init, shape, self.axes)
    self.bias = self.make_param(self, 'bias', init, shape[1:], self.axes[1:])
