"""Encodings as `flax.nnx` modules, for MaxText and other NNX models.

Each module holds an encoding's parameters as `nnx.Param`s, named as in a
checkpoint, and applies the encoding to them. `Rotary` has the call signature of
MaxText's rotary embedding.

Shapes: B batch, L length, Q queries, K keys, H heads, D head_dim, E width.
"""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors
from lengen_jax.types import Array


class _Module(nnx.Module):
  """An encoding and its parameters.

  Attributes:
    encoding: the `encodings.Encoding` without its parameters.
  """

  def __init__(
    self,
    spec: str,
    num_heads: int,
    head_dim: int,
    width: int | None,
    rngs: nnx.Rngs | None,
  ) -> None:
    self.encoding = encodings.create(
      spec,
      num_heads=num_heads,
      head_dim=head_dim,
      width=width,
      make_param=_param,
      parent=None,
    )
    cls = _CLASSES[encodings.kind(self.encoding)]
    if not isinstance(self, cls):
      raise errors.CombinationError(
        f'{spec} is not an nnx.{type(self).__name__}; it is an '
        f'nnx.{cls.__name__}'
      )
    encodings.check_width(self.encoding, f'nnx.{cls.__name__}')

    def init(key: jax.Array) -> Any:
      # Calling any one method creates all parameters.
      return self.encoding.init(key, method='tile_params')

    shapes = jax.eval_shape(init, jax.random.key(0))
    if shapes and rngs is None:
      raise errors.ConfigError(
        f'{spec} has parameters; pass rngs=nnx.Rngs(seed) to initialize them'
      )
    params = init(rngs.params())['params'] if shapes else {}
    for name, leaf in params.items():
      if isinstance(leaf, dict):
        setattr(self, name, nnx.Dict(jax.tree.map(nnx.Param, leaf)))
      else:
        setattr(self, name, nnx.Param(leaf))

  def _apply(self, method: str, *args: Any, **kwargs: Any) -> Any:
    params = nnx.to_pure_dict(nnx.state(self, nnx.Param))
    return self.encoding.apply(
      {'params': params}, *args, **kwargs, method=method
    )


class Bias(_Module):
  """An additive bias: FIRE, KERPLE, ALiBi, T5, Sandwich."""

  def __init__(
    self, spec: str, *, num_heads: int, rngs: nnx.Rngs | None = None
  ) -> None:
    """Initializes the parameters.

    Args:
      spec: spec of the encoding, such as 'fire(mlp_width=16)'.
      num_heads: H.
      rngs: `nnx.Rngs`; None if the encoding has no parameters.

    Raises:
      errors.SpecError: an unknown encoding.
      errors.CombinationError: the encoding is not an additive bias.
      errors.ConfigError: the encoding has parameters and rngs is None.
    """
    # No bias depends on the size of a head.
    super().__init__(spec, num_heads, 64, None, rngs)

  def __call__(
    self,
    q_positions: Array,
    k_positions: Array | None = None,
    *,
    bidirectional: bool = False,
  ) -> jax.Array:
    """Returns the bias of all pairs; see `encodings.Encoding.bias`.

    Args:
      q_positions: `[Q]` or `[B, Q]`, int32 or float32.
      k_positions: `[K]` or `[B, K]`; None for the positions of the queries.
      bidirectional: whether keys after the query are visible.

    Returns:
      float32 `[H, Q, K]` or `[B, H, Q, K]`.

    Raises:
      errors.LengthError: a position is beyond the table of the encoding.
      errors.CombinationError: the encoding does not support the positions.
    """
    if k_positions is None:
      k_positions = q_positions
    for positions in (q_positions, k_positions):
      encodings.check_positions(self.encoding, positions)
    return self._apply(
      'bias', q_positions, k_positions, bidirectional=bidirectional
    )

  def bias_fn(self, *, bidirectional: bool = False) -> encodings.BiasFn:
    """Returns the bias as a function, for `dot_product_attention`."""
    return self._apply('bias_fn', bidirectional=bidirectional)


class _OfHeads(_Module):
  """An encoding that depends on the size of a head."""

  def __init__(
    self,
    spec: str,
    *,
    num_heads: int,
    head_dim: int,
    rngs: nnx.Rngs | None = None,
  ) -> None:
    """See `Bias`; head_dim is D."""
    super().__init__(spec, num_heads, head_dim, None, rngs)


class Content(_OfHeads):
  """Terms that depend on contents and positions: Shaw, Transformer-XL."""

  def content_fn(self) -> encodings.ContentFn:
    """Returns the terms as functions, for `dot_product_attention`."""
    return self._apply('content_fn')


class Bands(_OfHeads):
  """Rotations by bands of distance: ReRoPE, SelfExtend and others."""

  def bands(
    self, q: Array, k: Array, q_positions: Array, k_positions: Array
  ) -> tuple[encodings.Band, ...]:
    """Returns the bands, for `dot_product_attention`.

    Args:
      q: `[B, Q, H, D]`, unrotated.
      k: `[B, K, G, D]`, unrotated.
      q_positions: `[Q]` or `[B, Q]`, int32 or float32.
      k_positions: `[K]` or `[B, K]`.

    Raises:
      errors.LengthError: a position is beyond the table of the encoding.
      errors.CombinationError: the encoding does not support the positions.
    """
    for positions in (q_positions, k_positions):
      encodings.check_positions(self.encoding, positions)
    return self._apply('bands', q, k, q_positions, k_positions)


class Rotary(_Module):
  """A rotation of queries and keys: RoPE, PI, NTK, YaRN and others."""

  def __init__(
    self, spec: str, *, head_dim: int, rngs: nnx.Rngs | None = None
  ) -> None:
    """See `Bias`; head_dim is D. All heads have the same rotation."""
    super().__init__(spec, 1, head_dim, None, rngs)

  def __call__(
    self,
    inputs: Array,
    position: Array | None = None,
    lengths: Array | None = None,
  ) -> jax.Array:
    """Rotates queries or keys.

    Args:
      inputs: `[B, L, H, D]`.
      position: `[L]` or `[B, L]`, int32 or float32, or float32 `[B, L, H]`;
        None for 0, 1, 2, ...
      lengths: int32 `[B, 1]`, the length of each sequence, for rotations that
        depend on it.

    Returns:
      `[B, L, H, D]` in the dtype of the inputs.

    Raises:
      errors.ConfigError: `inputs` or `position` have another shape.
      errors.CombinationError: the encoding does not support the positions.
      errors.LengthError: the rotation depends on the length, and `lengths` is
        None or has another shape.
    """
    if position is None:
      position = jnp.arange(inputs.shape[1], dtype=jnp.int32)
    encodings.check_positions(self.encoding, position)
    # Positions per head require as many heads of keys.
    keys = inputs if position.ndim == 3 else inputs[:, :, :0]
    rotated, _ = self._apply(
      'rotate', inputs, keys, position, position, lengths
    )
    return rotated


class Embedding(_Module):
  """An encoding added at the input of a model: sinusoidal, learned."""

  def __init__(
    self, spec: str, *, width: int, rngs: nnx.Rngs | None = None
  ) -> None:
    """See `Bias`; width is E."""
    super().__init__(spec, 1, 64, width, rngs)

  def __call__(self, inputs: Array, position: Array | None = None) -> jax.Array:
    """Adds the encoding of positions to the input.

    Args:
      inputs: `[B, L, E]`.
      position: positions of the tokens; None for 0, 1, 2, ...

    Returns:
      `[B, L, E]`.

    Raises:
      errors.LengthError: a position is beyond the table of the encoding.
      errors.CombinationError: the encoding does not support the positions.
    """
    if position is None:
      position = jnp.arange(inputs.shape[1], dtype=jnp.int32)[None]
    encodings.check_positions(self.encoding, position)
    return self._apply('embed', inputs, position)


_CLASSES = {
  'bias': Bias,
  'bands': Bands,
  'content': Content,
  'rotation': Rotary,
  'embedding': Embedding,
}


def _param(
  module: nn.Module,
  name: str,
  init: Callable[..., jax.Array],
  shape: tuple[int, ...],
  axes: tuple[str, ...],
) -> Any:
  """Creates a float32 parameter without logical axes."""
  del axes
  return module.param(name, init, shape, jnp.float32)
