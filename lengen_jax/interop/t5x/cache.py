"""The cache of T5X's attention, as its beam search and prefill expect it.

Shape suffixes: B batch, H heads, D head_dim, L slots.
"""

import jax.numpy as jnp

from lengen_jax import errors


class Cache:
  """Keys and values of the slots, as T5X lays them out for its beam search.

  Attributes:
    is_new: made by this very call, which fills nothing.
    key: variable of `[B, H, D, L]`.
    value: likewise.
    index: variable, int32 `[]`, or `[B]` once rows are prefilled: the slot that
      the next token goes into.
  """

  def __init__(self, module, key_BxLxHxD):
    self.is_new = not module.has_variable('cache', 'cached_key')
    batch, length, num_heads, head_dim = key_BxLxHxD.shape
    shape = (batch, num_heads, head_dim, length)
    dtype = key_BxLxHxD.dtype
    self.key = module.variable('cache', 'cached_key', jnp.zeros, shape, dtype)
    self.value = module.variable(
      'cache', 'cached_value', jnp.zeros, shape, dtype
    )
    self.index = module.variable(
      'cache', 'cache_index', lambda: jnp.zeros((), jnp.int32)
    )

  @property
  def length(self):
    """Slots, L."""
    return self.key.value.shape[-1]

  def _slots(self):
    return jnp.arange(self.length)[None, None, None]

  def check_step(self, inputs, bias):
    """Raises unless inputs are a token for each row, and a bias of all pairs.

    Args:
      inputs: `[B, 1, E]`.
      bias: `[1 or B, 1 or H, L, L]`, or None.
    """
    rows = self.key.value.shape[0]
    if inputs.shape[:2] != (rows, 1):
      raise errors.ConfigError(
        f'a step of decoding takes one token for each row of the cache, '
        f'{(rows, 1)}; got {inputs.shape[:2]}'
      )
    pairs = (self.length, self.length)
    if bias is not None and (bias.ndim != 4 or bias.shape[2:] != pairs):
      raise errors.ConfigError(
        f'bias has shape {bias.shape}; while decoding it is that of all slots, '
        f'[1 or B, H, {self.length}, {self.length}]: ask for it with '
        'max_decode_length, or use encoding= instead'
      )

  def append(self, key_Bx1xHxD, value_Bx1xHxD):
    """Puts a token into the next slot; returns all, `[B, L, H, D]` each."""
    index_Bx1x1x1 = jnp.reshape(self.index.value, (-1, 1, 1, 1))
    at = self._slots() == index_Bx1x1x1
    for slots, new in ((self.key, key_Bx1xHxD), (self.value, value_Bx1xHxD)):
      slots.value = jnp.where(at, jnp.moveaxis(new, 1, -1), slots.value)
    self.index.value += 1
    return tuple(
      jnp.moveaxis(slots.value, -1, 1) for slots in (self.key, self.value)
    )

  def fill(self, key_BxLxHxD, value_BxLxHxD, mask, lengths_B):
    """Puts the first tokens of each row into the first slots.

    Args:
      key_BxLxHxD: of all tokens.
      value_BxLxHxD: likewise.
      mask: `[B, 1 or H, L, L]`; None if lengths are given.
      lengths_B: how many; None to count what the first query sees.
    """
    rows = self.key.value.shape[0]
    if key_BxLxHxD.shape[:2] != (rows, self.length):
      raise errors.ConfigError(
        f'prefill takes rows as long as the cache, padded at their end: '
        f'{(rows, self.length)}; got {key_BxLxHxD.shape[:2]}'
      )
    if lengths_B is None and mask is None:
      raise errors.ConfigError(
        'prefill needs to know how much of each row to take: prefill_lengths, '
        'or a mask'
      )
    if lengths_B is None:
      lengths_B = jnp.sum(mask[:, 0, 0] > 0, axis=-1)
    if lengths_B.shape != (rows,):
      raise errors.ConfigError(
        f'prefill_lengths has shape {lengths_B.shape}; it must be {(rows,)}'
      )
    filled = self._slots() < lengths_B[:, None, None, None]
    for slots, new in ((self.key, key_BxLxHxD), (self.value, value_BxLxHxD)):
      slots.value = jnp.where(filled, jnp.moveaxis(new, 1, -1), 0)
    self.index.value = lengths_B.astype(jnp.int32)
