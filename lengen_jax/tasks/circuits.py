"""Parity and majority, of a whole input or of all tokens up to each.

Source: Arora et al. (2023), arXiv:2312.04927, and zoology/data/circuits.py of
its code.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length

END = 2


class Circuit(base.Task):
  """Base of the tasks; bits are uniform."""

  family = 'synthetic'
  source = 'arXiv:2312.04927'
  tags = True


class CumulativeParity(Circuit):
  """Whether the number of ones is odd, at each bit."""

  formula = 'x_1 + ... + x_t mod 2 at each t'

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return jnp.cumsum(x) % 2


class CumulativeMajority(Circuit):
  """Whether at least half of the bits are ones, at each bit."""

  formula = 'x_1 + ... + x_t >= t / 2 at each t'

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return 2 * jnp.cumsum(x) > jnp.arange(x.shape[0])


class EndCircuit(Circuit):
  """Base of the tasks with one target, at a token after the nominal length.

  Bits are tokens 0 and 1, and the last token is `end`.
  """

  vocab_in = 3
  end = END

  def input_length(self, length: Length) -> Length:
    return length + 1

  output_length = input_length

  def _is_question(self, x: np.ndarray) -> bool:
    return np.flatnonzero(x == self.end).tolist() == [len(x) - 1]

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    bits = draws.symbols(rng, 2, width)
    return jnp.where(jnp.arange(width) < n, bits, END)


class Parity(EndCircuit):
  """Whether the number of ones is odd."""

  formula = 'x_1 ... x_n end: sum x_i mod 2'

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return jnp.where(x == END, jnp.sum(x == 1) % 2, base.UNSCORED)


class Majority(EndCircuit):
  """Whether more than half of the bits are ones."""

  formula = 'x_1 ... x_n end: sum x_i > n / 2'

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    is_most = 2 * jnp.sum(x == 1) > jnp.arange(x.shape[0])
    return jnp.where(x == END, is_most, base.UNSCORED)


@dataclasses.dataclass(frozen=True)
class VocabMajority(base.OneVocabularyTask, EndCircuit):
  """The most frequent token.

  Of V = `vocabulary` ids, 1 to V - 1 are uniform, and the last token is 0. If
  several are the most frequent, the least of them replaces the first other
  token.
  """

  end = 0
  formula = 'x_1 ... x_n end: the most frequent token'
  ranges = {'vocabulary': '>= 3'}

  @property
  def chance(self) -> float:
    return 1 / (self.vocabulary - 1)

  def _counts(self, x: jax.Array) -> jax.Array:
    """Returns how often each token but 0 occurs, int32 `[V]`."""
    return jnp.zeros(self.vocabulary, jnp.int32).at[x].add(x > 0)

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    x = 1 + draws.symbols(rng, self.vocabulary - 1, width)
    x = jnp.where(jnp.arange(width) < n, x, 0)
    counts = self._counts(x)
    most = jnp.argmax(counts)
    is_tied = jnp.sum(counts == counts[most]) > 1
    other = jnp.argmax(x != most)
    return x.at[other].set(jnp.where(is_tied, most, x[other]))

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return jnp.where(x == 0, jnp.argmax(self._counts(x)), base.UNSCORED)
