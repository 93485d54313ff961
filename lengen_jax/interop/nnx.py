"""Encodings as modules of `flax.nnx`, for MaxText and others who build on it.

They are thin: each holds an encoding's parameters as `nnx.Param`s, under the
names they have in a checkpoint, and calls the encoding's own functions on them.
`Rotary` is called as MaxText calls its rotary embedding.

Shapes: B batch, L length, Q queries, K keys, H heads, D head_dim, E width.
"""

from flax import nnx
import jax
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax.hints import Array


class _Module(nnx.Module):
  """An encoding and its parameters.

  Attributes:
    encoding: the `encodings.Encoding` without its parameters.
  """

  def __init__(self, spec, num_heads, head_dim, width, rngs):
    self.encoding = encodings.create(
      spec,
      num_heads=num_heads,
      head_dim=head_dim,
      width=width,
      make_param=_param,
      parent=None,
    )
    fits = _CLASSES[encodings.kind(self.encoding)]
    if not isinstance(self, fits):
      raise errors.CombinationError(
        f'{spec} is no nnx.{type(self).__name__}; it is an nnx.{fits.__name__}'
      )

    def init(key):
      # Whichever method is asked for, every parameter is made.
      return self.encoding.init(key, method='tile_params')

    shapes = jax.eval_shape(init, jax.random.key(0))
    if shapes and rngs is None:
      raise errors.ConfigError(
        f'{spec} has parameters; pass rngs=nnx.Rngs(seed) to draw them'
      )
    params = init(rngs.params())['params'] if shapes else {}
    for name, leaf in params.items():
      if isinstance(leaf, dict):
        setattr(self, name, nnx.Dict(jax.tree.map(nnx.Param, leaf)))
      else:
        setattr(self, name, nnx.Param(leaf))

  def _apply(self, method, *args, **kwargs):
    params = nnx.to_pure_dict(nnx.state(self, nnx.Param))
    return self.encoding.apply(
      {'params': params}, *args, **kwargs, method=method
    )


class Bias(_Module):
  """An additive bias: FIRE, KERPLE, ALiBi, T5, Sandwich."""

  def __init__(
    self, spec: str, *, num_heads: int, rngs: nnx.Rngs | None = None
  ) -> None:
    """Draws the parameters.

    Args:
      spec: of the encoding, such as 'fire(mlp_width=16)'.
      num_heads: H.
      rngs: `nnx.Rngs`; None where the encoding has no parameters.

    Raises:
      errors.SpecError: no such encoding.
      errors.CombinationError: the encoding is no additive bias.
      errors.ConfigError: it has parameters and rngs is None.
    """
    # No bias reads the size of a head.
    super().__init__(spec, num_heads, 64, None, rngs)

  def __call__(
    self,
    q_positions: Array,
    k_positions: Array | None = None,
    *,
    bidirectional: bool = False,
  ) -> jax.Array:
    """The bias of all pairs; see `encodings.Encoding.bias`.

    Args:
      q_positions: `[Q]` or `[B, Q]`, int32 or float32.
      k_positions: `[K]` or `[B, K]`; None for those of the queries.
      bidirectional: whether keys after the query are visible.

    Returns:
      float32 `[H, Q, K]` or `[B, H, Q, K]`.
    """
    if k_positions is None:
      k_positions = q_positions
    for positions in (q_positions, k_positions):
      encodings.check_positions(self.encoding, positions)
    return self._apply(
      'bias', q_positions, k_positions, bidirectional=bidirectional
    )

  def bias_fn(self, *, bidirectional: bool = False) -> encodings.BiasFn:
    """The bias as a function, as `dot_product_attention` takes it."""
    return self._apply('bias_fn', bidirectional=bidirectional)


class Content(_Module):
  """Terms that go by contents and positions: Shaw, Transformer-XL."""

  def __init__(
    self,
    spec: str,
    *,
    num_heads: int,
    head_dim: int,
    rngs: nnx.Rngs | None = None,
  ) -> None:
    """As `Bias`, and D."""
    super().__init__(spec, num_heads, head_dim, None, rngs)

  def content_fn(self) -> encodings.ContentFn:
    """The terms as functions, as `dot_product_attention` takes them."""
    return self._apply('content_fn')


class Rotary(_Module):
  """A rotation of queries and keys: RoPE, PI, NTK, YaRN and others."""

  def __init__(
    self, spec: str, *, head_dim: int, rngs: nnx.Rngs | None = None
  ) -> None:
    """As `Bias`; any number of heads is turned alike."""
    super().__init__(spec, 1, head_dim, None, rngs)

  def __call__(
    self,
    inputs: Array,
    position: Array | None = None,
    lengths: Array | None = None,
  ) -> jax.Array:
    """Turns queries, or keys.

    Args:
      inputs: `[B, L, H, D]`.
      position: `[L]` or `[B, L]`, int32 or float32; None for 0, 1, 2, ...
      lengths: int32 `[B, 1]`, the length of each sequence, where the rotation
        goes by it.

    Returns:
      `[B, L, H, D]` in the dtype of the inputs.
    """
    if position is None:
      position = jnp.arange(inputs.shape[1], dtype=jnp.int32)
    encodings.check_positions(self.encoding, position)
    if inputs.shape[-1] != self.encoding.head_dim:
      raise errors.ConfigError(
        f'inputs have heads of {inputs.shape[-1]}; this rotation was made for '
        f'head_dim={self.encoding.head_dim}'
      )
    no_keys = inputs[:, :, :0]
    turned, _ = self._apply(
      'rotate', inputs, no_keys, position, position, lengths
    )
    return turned


class Embedding(_Module):
  """What is added at the input of a model: sinusoidal, learned."""

  def __init__(
    self, spec: str, *, width: int, rngs: nnx.Rngs | None = None
  ) -> None:
    """As `Bias`, with E in place of the heads."""
    super().__init__(spec, 1, 64, width, rngs)

  def __call__(self, inputs: Array, position: Array | None = None) -> jax.Array:
    """Adds positions, `[B, L, E] -> [B, L, E]`; None for 0, 1, 2, ..."""
    if position is None:
      position = jnp.arange(inputs.shape[1], dtype=jnp.int32)[None]
    encodings.check_positions(self.encoding, position)
    return self._apply('embed', inputs, position)


_CLASSES = {
  'bias': Bias,
  'content': Content,
  'rotation': Rotary,
  'embedding': Embedding,
}


def _param(module, name, init, shape, axes):
  """Creates a float32 parameter without a word on how it is sharded."""
  del axes
  return module.param(name, init, shape, jnp.float32)
