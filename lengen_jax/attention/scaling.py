"""Logit scales: a factor on the attention logits of each query."""

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import Any, ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors, specs
from lengen_jax.encodings import base
from lengen_jax.types import Array


class LogitScale(nn.Module):
  """Base class of logit scales; it leaves the logits unchanged.

  Attributes:
    num_heads: attention heads, H.
    make_param: creates every parameter; see `encodings.Encoding`.
  """

  num_heads: int
  make_param: Callable = base.logical_param

  # Ranges of keys; see `specs.check_ranges`.
  ranges: ClassVar[Mapping[str, str | tuple]] = {}
  formula = 'logits unchanged'
  source = ''
  # Names and shapes of parameters; requirements of decoding besides tokens.
  parameters = 'none'
  at_decoding = 'nothing'
  # Needs the true length of each sequence, planned while decoding.
  length_dependent = False
  # Depends on the number of visible keys: in a window or a chunk,
  # `index_in_segment` is that number less one.
  counts_keys = False

  def __post_init__(self) -> None:
    specs.check_ranges(self)
    super().__post_init__()

  def __call__(
    self, index_in_segment: Array, *, lengths: Array | None = None
  ) -> jax.Array | None:
    """Returns the factor of each query.

    Args:
      index_in_segment: int32 `[B, Q]`, index in its segment of the last key
        that each query sees; in causal attention the query's own.
      lengths: int32 `[B, 1]` or `[B, Q]`, the length of each segment.

    Returns:
      float32 `[1 or B, Q]` or `[1 or B, Q, H]`; None for no scaling.
    """
    del index_in_segment, lengths
    return None


class Constant(LogitScale):
  """One factor for all queries.

  Gemma's query_pre_attn_scalar s in place of head_dim is the factor
  sqrt(head_dim / s).
  """

  factor: float = 1.0

  formula = 'logits * factor'
  source = 'Gemma 2'
  ranges = {'factor': '> 0'}

  def __call__(
    self, index_in_segment: Array, *, lengths: Array | None = None
  ) -> jax.Array | None:
    del lengths
    return jnp.full(index_in_segment.shape, self.factor, jnp.float32)


class LogN(LogitScale):
  """Su's log-n scaling: log_m n for n keys and training length m.

  Su argues that this scale keeps the entropy of attention stable as the length
  grows. Per query n = i + 1, which suits causal attention and a cache; per
  sequence n is the length of the sequence.

  Source: Su (2021, 2023); `clip` as in Qwen's code.

  Attributes:
    train_length: m.
    per: 'query' or 'sequence'.
    clip: never scale below 1, so that lengths up to m are unchanged.
  """

  train_length: int | None = None
  per: str = 'query'
  clip: bool = True

  formula = 'logits * max(1, log_m n), n = i + 1'
  source = 'Su (2021)'
  at_decoding = "nothing; with per='sequence' the planned length"
  ranges = {'train_length': '>= 2', 'per': ('query', 'sequence')}

  @property
  def length_dependent(self) -> bool:
    return self.per == 'sequence'

  def __call__(
    self, index_in_segment: Array, *, lengths: Array | None = None
  ) -> jax.Array | None:
    n = index_in_segment + 1
    if self.per == 'sequence':
      if lengths is None:
        raise errors.LengthError(
          "log_n(per='sequence') needs lengths: the length of each segment"
        )
      # Rows may have the same indices and different lengths.
      shape = jnp.broadcast_shapes(lengths.shape, index_in_segment.shape)
      n = jnp.broadcast_to(lengths, shape)
    # In float32: 16 bits do not distinguish long lengths.
    factor_BxQ = _log(n) / math.log(self.train_length)
    return jnp.maximum(factor_BxQ, 1.0) if self.clip else factor_BxQ


class SSMax(LogitScale):
  """Scalable softmax: s_h ln n for n visible keys, s learned per head.

  Source: Nakanishi (2025), arXiv:2501.19399, eq. 4.

  `init_s` is the initial s, and the key `init` in specs.
  """

  # A field named init would hide the method of the module.
  init_s: float = dataclasses.field(default=1.0, metadata={'key': 'init'})

  formula = 'logits * s_h ln n, n visible keys'
  source = 'arXiv:2501.19399'
  parameters = 's [H]'
  counts_keys = True

  def setup(self) -> None:
    init = nn.initializers.constant(self.init_s)
    self.s = self.make_param(self, 's', init, (self.num_heads,), ('heads',))

  def __call__(
    self, index_in_segment: Array, *, lengths: Array | None = None
  ) -> jax.Array | None:
    del lengths
    return self.s[None, None] * _log(index_in_segment + 1)[..., None]


class Llama4(LogitScale):
  """Llama 4's temperature: 1 + beta ln(1 + floor((i + 1) / train_length)).

  Source: Meta (2025), as in the released code.
  """

  beta: float = 0.1
  train_length: int = 8192

  formula = 'logits * (1 + beta ln(1 + floor((i + 1) / m)))'
  source = 'Llama 4'
  ranges = {'train_length': '>= 1'}

  def __call__(
    self, index_in_segment: Array, *, lengths: Array | None = None
  ) -> jax.Array | None:
    del lengths
    steps = (index_in_segment + 1) // self.train_length
    return 1.0 + self.beta * _log(1 + steps)


def _log(n: Array) -> jax.Array:
  # Padding may have length 0.
  return jnp.log(jnp.maximum(n, 1).astype(jnp.float32))


SCALES = {
  'none': LogitScale,
  'constant': Constant,
  'log_n': LogN,
  'ssmax': SSMax,
  'llama4': Llama4,
}


def register(name: str, scale: type[LogitScale]) -> None:
  """Registers a LogitScale class under `name` for use in specs.

  Raises:
    errors.SpecError: not such a class, or the name is taken or not an
      identifier.
  """
  specs.register('attention scale', SCALES, name, scale, LogitScale)


def create(spec: str, *, num_heads: int, **module: Any) -> LogitScale:
  """Creates a logit scale from a spec, `name` or `name(key=value, ...)`.

  `module` holds `name` and `parent` of the linen module.

  Raises:
    errors.SpecError: unknown name or key, or a value out of range.
  """
  return specs.build(
    'attention scale', SCALES, spec, num_heads=num_heads, **module
  )
