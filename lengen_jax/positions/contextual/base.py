"""Base class of contextual position schemes, and sums over segments.

Shapes: B batch, L length, E width, H query heads; T tokens in a block, N blocks
of a row.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any, ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors, partitioning, specs
from lengen_jax.positions.base import segment_positions
from lengen_jax.positions.kinds import PerHead
from lengen_jax.types import Array


class Contextual(nn.Module):
  """Base of contextual schemes; the base itself is 'none'.

  Positions of 'none' are the index of each token in its segment. A subclass
  creates its parameters in `setup` and implements `values`, which are the
  positions or, if `cumulative`, their increments.

  Attributes:
    num_heads: query heads, H.
    width: size of the layer's input, E.
  """

  num_heads: int
  width: int

  # Ranges of keys; see `specs.check_ranges`.
  ranges: ClassVar[Mapping[str, str | tuple]] = {}
  # For `lengen list`; parameters are names and shapes.
  formula = 'positions of tokens unchanged'
  source = ''
  parameters = 'none'
  at_decoding = 'nothing'
  # Positions are sums of `values` over the tokens of a segment.
  cumulative = False

  def __post_init__(self) -> None:
    specs.check_ranges(self)
    super().__post_init__()

  def values(self, x: Array) -> jax.Array:
    """Returns positions or increments, float32 `[B, L, H]`, for `[B, L, E]`."""
    raise NotImplementedError(f'{type(self).__name__} has no values')

  def __call__(self, x: Array, segment_ids: Array | None = None) -> jax.Array:
    """Returns positions of tokens per head, float32 `[B, L, H]`.

    Args:
      x: `[B, L, E]`, the input of an attention layer.
      segment_ids: int32 `[B, L]` of packed rows; sums restart at each segment.
    """
    return self.positions(x, segment_ids).value

  def positions(
    self,
    x: Array,
    segment_ids: Array | None = None,
    before: PerHead | None = None,
  ) -> PerHead:
    """Returns positions with their rounding errors.

    `before`, `[B, 1, H]`, is the position of the token before x while decoding,
    0 at the start of a sequence.

    Raises:
      errors.ConfigError: x does not have the shape `[B, L, width]`.
    """
    if x.ndim != 3 or x.shape[2] != self.width:
      raise errors.ConfigError(
        f'{specs.name(self)} needs x [B, L, {self.width}], got {x.shape}'
      )
    if self.is_none:
      ids = jnp.zeros(x.shape[:2]) if segment_ids is None else segment_ids
      index_BxL = segment_positions(ids).astype(jnp.float32)
      return PerHead(jnp.repeat(index_BxL[..., None], self.num_heads, -1))
    values = self.values(x.astype(jnp.float32))
    if not self.cumulative:
      return PerHead(values)
    found = PerHead(*_sums(values, segment_ids))
    if before is None:
      return found
    return PerHead(
      *_add((found.value, found.error), (before.value, before.error))
    )

  @property
  def is_none(self) -> bool:
    """Whether the scheme computes no positions."""
    return type(self) is Contextual

  @nn.nowrap
  def slots(self, batch: int, length: int) -> PerHead | None:
    """Returns initial positions of the slots of a cache; None for 'none'."""
    if self.is_none:
      return None
    shape = batch, length, self.num_heads
    # Two arrays: a buffer that is donated twice is an error.
    value, error = (jnp.zeros(shape, jnp.float32) for _ in range(2))
    return PerHead(value, error if self.cumulative else None)


class Float32Linear(nn.Module):
  """x W in float32, `[..., inputs] -> [..., outputs]`."""

  inputs: int
  outputs: int
  axes: tuple[str, str]
  init_kernel: Callable[..., Any]

  @nn.compact
  def __call__(self, x: Array) -> jax.Array:
    kernel: Any = self.param(
      'kernel',
      partitioning.named(self.init_kernel, self.axes),
      (self.inputs, self.outputs),
      jnp.float32,
    )
    # By default an accelerator would round the inputs to 16 bits.
    return jnp.matmul(x, kernel, precision='highest')


# A sum of two float32 numbers, the second of which is less than half a unit in
# the last place of the first.
Sum = tuple[jax.Array, jax.Array]


def _add(a: Sum, b: Sum) -> Sum:
  """Adds two sums; Knuth's TwoSum, then normalization."""
  total = a[0] + b[0]
  back = total - a[0]
  error = (a[0] - (total - back)) + (b[0] - back) + (a[1] + b[1])
  value = total + error
  return value, error - (value - total)


@jax.custom_vjp
def _sums(values_BxLxH: Array, segment_ids: Array | None) -> Sum:
  """Returns sums over the tokens of each segment up to each token.

  One float32 sum over 131,072 tokens would be off by up to 0.07.
  """
  begins_BxL = jnp.zeros(values_BxLxH.shape[:2], bool)
  if segment_ids is not None:
    changes = segment_ids[:, 1:] != segment_ids[:, :-1]
    begins_BxL = begins_BxL.at[:, 1:].set(changes)
  begins_BxLxH = jnp.broadcast_to(begins_BxL[..., None], values_BxLxH.shape)
  batch, length, heads = values_BxLxH.shape
  if not length:
    return jnp.asarray(values_BxLxH), jnp.asarray(values_BxLxH)
  size = math.isqrt(length - 1) + 1

  def blocks(x_BxLxH: Array) -> jax.Array:
    x_BxLxH = jnp.pad(x_BxLxH, [(0, 0), (0, -length % size), (0, 0)])
    x_BxNxTxH = x_BxLxH.reshape(batch, -1, size, heads)
    return jnp.moveaxis(x_BxNxTxH, 2, 0)

  # Runs of one token, in N blocks of T tokens. Scans go along the first axis:
  # over the T tokens of all blocks at once, then over the N sums of blocks. T
  # is near sqrt(L), so these are about 2 sqrt(L) steps.
  runs_TxBxNxH = jax.tree.map(
    blocks, (begins_BxLxH, values_BxLxH, jnp.zeros_like(values_BxLxH))
  )

  def step(before: Any, part: Any) -> tuple[Any, Any]:
    after = _join(before, part)
    return after, after

  def shift(before: Any, part: Any) -> tuple[Any, Any]:
    return _join(before, part), before

  def nothing(runs: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros_like(x[0]), runs)

  totals_BxNxH, within_TxBxNxH = jax.lax.scan(
    step, nothing(runs_TxBxNxH), runs_TxBxNxH
  )
  totals_NxBxH = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), totals_BxNxH)
  _, before_NxBxH = jax.lax.scan(shift, nothing(totals_NxBxH), totals_NxBxH)
  before_1xBxNxH = jax.tree.map(
    lambda x: jnp.moveaxis(x, 0, 1)[None], before_NxBxH
  )
  _, *sums_TxBxNxH = _join(before_1xBxNxH, within_TxBxNxH)
  value_BxLxH, error_BxLxH = (
    jnp.moveaxis(x, 0, 2).reshape(batch, -1, heads)[:, :length]
    for x in sums_TxBxNxH
  )
  return value_BxLxH, error_BxLxH


def _join(a: Any, b: Any) -> Any:
  """Returns the sum of two runs of tokens, or b if a segment begins in it.

  A run is (whether a segment begins in it, value, error).
  """
  begins, sums = b[0], _add(a[1:], b[1:])
  own = (jnp.where(begins, x, y) for x, y in zip(b[1:], sums, strict=True))
  return a[0] | begins, *own


def _sums_forward(
  values: Array, segment_ids: Array | None
) -> tuple[Sum, Array | None]:
  return _sums(values, segment_ids), segment_ids


def _sums_backward(
  segment_ids: Array | None, gradients: Sum
) -> tuple[jax.Array, None]:
  """Sums gradients of values over the tokens from each token on."""
  if segment_ids is not None:
    segment_ids = segment_ids[:, ::-1]
  return _sums(gradients[0][:, ::-1], segment_ids)[0][:, ::-1], None


_sums.defvjp(_sums_forward, _sums_backward)
