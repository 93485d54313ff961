"""Retrieval of a passkey from a long, repetitive text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length

KEY, QUERY, FILLER = 10, 11, 12


@dataclasses.dataclass(frozen=True)
class Passkey(base.Task):
  """Random digits within a repeated phrase, followed by a query.

  Tokens: 0 to 9 are digits, 10 precedes the passkey, 11 is the query at the end
  of the input, and tokens from 12 on are the phrase. The target is the passkey.

  Source: Mohtashami and Jaggi (2023), arXiv:2305.16300, with other tokens.

  Attributes:
    digits: number of digits of the passkey.
    depth: place of the passkey, from 0 (start) to 1 (just before the query);
      None draws it uniformly for each row.
    phrase: number of tokens of the phrase.
  """

  digits: int = 5
  depth: float | None = None
  phrase: int = 24

  family = 'retrieval'
  formula = 'filler, key, filler, query: key'
  source = 'arXiv:2305.16300'
  vocab_out = 10
  chance = 0.1
  ranges = {
    'digits': '>= 1',
    'depth': 'None or >= 0 and <= 1',
    'phrase': '>= 1',
  }

  @property
  def vocab_in(self) -> int:
    return FILLER + self.phrase

  @property
  def min_length(self) -> int:
    return self.digits + 2

  @property
  def target_length(self) -> int:
    return self.digits

  def _is_question(self, x: np.ndarray) -> bool:
    keys, last = np.flatnonzero(x == KEY).tolist(), len(x) - 1
    is_whole = len(keys) == 1 and keys[0] + self.digits < last
    return is_whole and bool(x[last] == QUERY)

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    bits, once = draws.column_bits(rng, width, (2,))
    column = jnp.arange(width)
    room = n - self.min_length
    if self.depth is None:
      start = draws.below(once[0], room + 1)
    else:
      start = jnp.round(self.depth * room).astype(jnp.int32)
    place = column - start
    # The phrase resumes after the passkey.
    read = jnp.where(place > 0, column - self.digits - 1, column)
    digits = draws.below(bits, 10)
    x = jnp.where(
      (place > 0) & (place <= self.digits), digits, FILLER + read % self.phrase
    )
    x = jnp.where(place == 0, KEY, x)
    return jnp.where(column == n - 1, QUERY, x)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    place = jnp.argmax(x == KEY) + 1 + jnp.arange(self.digits)
    return x[jnp.minimum(place, x.shape[0] - 1)]
