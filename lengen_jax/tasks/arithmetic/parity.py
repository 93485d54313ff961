"""Parity of bits, with or without intermediate results."""

import dataclasses

import jax
import jax.numpy as jnp

from lengen_jax.tasks import arithmetic, draws
from lengen_jax.tasks.arithmetic import symbols
from lengen_jax.tasks.base import Length


@dataclasses.dataclass(frozen=True)
class Parity(arithmetic.ArithmeticTask):
  """The parity of bits.

  Attributes:
    scratchpad: whether the answer has the parity of each prefix of the input,
      or only that of the whole.
    format: order of a scratchpad, 'plain' from the first bit on, or 'reversed'
      from the last bit on, with the parity of each suffix.
  """

  scratchpad: bool = True
  format: str = 'plain'

  formula = 'x_1 + ... + x_i mod 2'
  source = 'arXiv:2405.20671'
  form = '[01]+'
  ranges = {'format': ('plain', 'reversed')}

  @property
  def permutation_invariant(self) -> bool:
    return not self.scratchpad

  @property
  def num_roles(self) -> int:
    return 1 if self.scratchpad else 0

  def output_length(self, length: Length) -> Length:
    return length + 1 if self.scratchpad else 2

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    return symbols.ZERO + draws.symbols(rng, 2, width)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    bits = (x == symbols.ZERO + 1).astype(jnp.int32)
    if self.format == 'reversed':
      bits = jnp.roll(bits[::-1], n - len(x))
    parities = symbols.ZERO + jnp.cumsum(bits) % 2
    if not self.scratchpad:
      return jnp.stack([parities[-1], jnp.int32(symbols.END)])
    y = jnp.append(parities, symbols.END)
    return jnp.where(jnp.arange(len(y)) == n, symbols.END, y)

  def largest_role(self, length: int) -> int:
    return length

  def roles(self, tokens: jax.Array) -> jax.Array:
    """Returns the roles of position coupling, int32 `[T] -> [1, T]`.

    In the plain format, bit i, from 0, and the parity of the bits up to it have
    role i + 1, and the separator has role 0. In the reversed one, bit i and the
    parity of the bits from it on have role i, and the separator has the role
    that precedes those of the answer, in descending order.

    Source: Cho et al. (2024), arXiv:2405.20671, and its code.
    """
    is_digit = symbols.is_digit(tokens)
    is_separator = tokens == self.separator
    in_answer = jnp.cumsum(is_separator) > 0
    bit = jnp.cumsum(is_digit & ~in_answer)
    parity = jnp.cumsum(is_digit & in_answer)
    if self.format == 'reversed':
      role = jnp.where(in_answer, jnp.maximum(bit - parity, -1), bit - 1)
    else:
      role = jnp.where(in_answer, parity, bit)
    return jnp.where(is_digit | is_separator, role, -1)[None]
