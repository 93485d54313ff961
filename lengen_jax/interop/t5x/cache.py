"""The cache of T5X's attention, in the layout of its beam search and prefill.

Shape suffixes: B batch, H heads, D head_dim, L slots.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.types import Array


class Cache:
  """Cached keys and values.

  Attributes:
    is_new: whether this call created the cache; it then stays empty.
    key: variable of `[B, H, D, L]`.
    value: variable of `[B, H, D, L]`.
    index: variable, int32 `[]`, or `[B]` after prefill: the next free slot.
  """

  def __init__(self, module: nn.Module, key_BxLxHxD: Array) -> None:
    self.is_new = not module.has_variable('cache', 'cached_key')
    batch, length, num_heads, head_dim = key_BxLxHxD.shape
    self.key, self.value = (
      module.variable(
        'cache',
        name,
        jnp.zeros,
        (batch, num_heads, head_dim, length),
        key_BxLxHxD.dtype,
      )
      for name in ('cached_key', 'cached_value')
    )
    self.index = module.variable(
      'cache', 'cache_index', lambda: jnp.zeros((), jnp.int32)
    )

  @property
  def length(self) -> int:
    """Number of slots, L."""
    return self.key.value.shape[-1]

  def _slots(self) -> jax.Array:
    return jnp.arange(self.length)[None, None, None]

  def check_step(self, inputs_BxQxE: Array, bias: Array | None) -> None:
    """Checks the arguments of a step of decoding.

    Raises:
      errors.ConfigError: Q is not 1, or `bias` does not cover all pairs of
        slots.
    """
    rows = self.key.value.shape[0]
    if inputs_BxQxE.shape[:2] != (rows, 1):
      raise errors.ConfigError(
        f'a step of decoding takes one token for each row of the cache, '
        f'{(rows, 1)}; got {inputs_BxQxE.shape[:2]}'
      )
    pairs = (self.length, self.length)
    if bias is not None and (bias.ndim != 4 or bias.shape[2:] != pairs):
      raise errors.ConfigError(
        f'bias has shape {bias.shape}; during decoding it must be that of all '
        f'slots, [1 or B, H, {self.length}, {self.length}]: compute it for '
        'max_decode_length, or use encoding= instead'
      )

  def step_index(self) -> tuple[jax.Array, jax.Array]:
    """Returns int32 slots: the query's, `[1 or B, 1]`, and all, `[1, L]`."""
    # Rows whose cache is full are computed until all rows are finished.
    q_index = jnp.minimum(self.index.value, self.length - 1)
    return jnp.reshape(q_index, (-1, 1)), jnp.arange(self.length)[None]

  def append(
    self, key_Bx1xHxD: Array, value_Bx1xHxD: Array
  ) -> tuple[jax.Array, jax.Array]:
    """Writes a token to the next slot; returns all keys and all values."""
    index_Bx1x1x1 = jnp.reshape(self.index.value, (-1, 1, 1, 1))
    at = self._slots() == index_Bx1x1x1
    for slots, new in ((self.key, key_Bx1xHxD), (self.value, value_Bx1xHxD)):
      slots.value = jnp.where(at, jnp.moveaxis(new, 1, -1), slots.value)
    self.index.value += 1
    key, value = (
      jnp.moveaxis(slots.value, -1, 1) for slots in (self.key, self.value)
    )
    return key, value

  def fill(
    self,
    key_BxLxHxD: Array,
    value_BxLxHxD: Array,
    mask: Array | None,
    lengths_B: Array | None,
  ) -> None:
    """Writes the first tokens of each row to the first slots.

    Args:
      key_BxLxHxD: keys of all tokens.
      value_BxLxHxD: values of all tokens.
      mask: `[B, 1 or H, L, L]`; required if `lengths_B` is None.
      lengths_B: number of tokens per row; None for the number of keys visible
        to the first query.

    Raises:
      errors.ConfigError: rows are shorter or longer than the cache, `lengths_B`
        has another shape, or both `mask` and `lengths_B` are None.
    """
    rows = self.key.value.shape[0]
    if key_BxLxHxD.shape[:2] != (rows, self.length):
      raise errors.ConfigError(
        f'prefill takes rows as long as the cache, padded at their end: '
        f'{(rows, self.length)}; got {key_BxLxHxD.shape[:2]}'
      )
    if lengths_B is None:
      if mask is None:
        raise errors.ConfigError(
          'prefill needs the number of tokens of each row: pass '
          'prefill_lengths, or a mask'
        )
      lengths_B = jnp.sum(mask[:, 0, 0] > 0, axis=-1)
    if lengths_B.shape != (rows,):
      raise errors.ConfigError(
        f'prefill_lengths has shape {lengths_B.shape}; it must be {(rows,)}'
      )
    filled = self._slots() < lengths_B[:, None, None, None]
    for slots, new in ((self.key, key_BxLxHxD), (self.value, value_BxLxHxD)):
      slots.value = jnp.where(filled, jnp.moveaxis(new, 1, -1), 0)
    self.index.value = jnp.asarray(lengths_B, jnp.int32)
