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
  """

  scratchpad: bool = True

  formula = 'x_1 + ... + x_i mod 2'
  source = 'arXiv:2405.20671'
  form = '[01]+'

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
    parities = symbols.ZERO + jnp.cumsum(x == symbols.ZERO + 1) % 2
    if not self.scratchpad:
      return jnp.stack([parities[-1], jnp.int32(symbols.END)])
    y = jnp.append(parities, symbols.END)
    return jnp.where(jnp.arange(len(y)) == n, symbols.END, y)

  def roles(self, tokens: jax.Array) -> jax.Array:
    """Returns the roles of position coupling, int32 `[T] -> [1, T]`.

    Bit i, from 0, and the parity of the bits up to it have role i + 1.

    Source: Cho et al. (2024), arXiv:2405.20671, and its code.
    """
    is_separator = tokens == self.separator
    seen = jnp.cumsum(symbols.is_digit(tokens))
    before = jax.lax.cummax(jnp.where(is_separator, seen, 0))
    role = jnp.where(symbols.is_digit(tokens), seen - before, -1)
    return jnp.where(is_separator, 0, role)[None]
