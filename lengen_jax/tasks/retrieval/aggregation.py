"""Tracing of variables, and common and frequent words."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length


@dataclasses.dataclass(frozen=True)
class Vt(base.Task):
  """Assignments in a phrase, then a value; asks which variables have it.

  An assignment is three tokens: SET, a variable, and a value or a variable that
  was assigned before. A chain starts with a value of its own, and each of its
  assignments reads the variable of the one before. The target is the variables
  of the chain asked for, in order. Tokens: the names of variables, as many
  values, SET, the query, and the phrase.

  Source: Hsieh et al. (2024), RULER, arXiv:2404.06654, with other tokens and
  without the worked example.

  Attributes:
    chains: number of chains, one of them asked for.
    hops: assignments of a chain after its first.
    names: number of names of variables, and of values.
    phrase: number of tokens of the phrase.
  """

  chains: int = 1
  hops: int = 4
  names: int = 32
  phrase: int = 24

  family = 'retrieval'
  formula = 'SET a 7 ... SET b a ... 7: a b'
  source = 'arXiv:2404.06654'
  ranges = {
    'chains': '>= 1',
    'hops': '>= 1',
    'names': '>= {0.assignments}',
    'phrase': '>= 1',
  }

  @property
  def assignments(self) -> int:
    """Number of assignments of a row."""
    return self.chains * (self.hops + 1)

  @property
  def vocab_in(self) -> int:
    return 2 * self.names + 2 + self.phrase

  @property
  def vocab_out(self) -> int:
    return self.names

  @property
  def chance(self) -> float:
    """Accuracy of answering with any variable that is assigned."""
    return 1 / self.assignments

  @property
  def min_length(self) -> int:
    return 3 * self.assignments + 2

  @property
  def target_length(self) -> int:
    return self.hops + 1

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    name_rng, value_rng, order_rng, place_rng = jax.random.split(rng, 4)
    count, length = self.assignments, self.hops + 1
    setting, query, filler = 2 * self.names + jnp.arange(3)
    names_CxL = draws.distinct(name_rng, self.names, count).reshape(-1, length)
    values_C = self.names + draws.distinct(value_rng, self.names, self.chains)
    sources_CxL = jnp.concatenate([values_C[:, None], names_CxL[:, :-1]], 1)
    # Chains take turns at random.
    chain = draws.distinct(order_rng, count, count) // length
    same = chain[None] == chain[:, None]
    hop = jnp.sum(jnp.tril(same, -1), 1)
    rooms = jax.random.bits(place_rng, (count,))
    before = jnp.sort(draws.below(rooms, n - self.min_length + 1))
    starts = before + 3 * jnp.arange(count)
    column = jnp.arange(width)
    earlier = jnp.sum(starts[:, None] < column[None], 0)
    x = filler + (column - 3 * earlier) % self.phrase
    x = x.at[starts].set(setting)
    x = x.at[starts + 1].set(names_CxL[chain, hop])
    x = x.at[starts + 2].set(sources_CxL[chain, hop])
    return x.at[n - 2].set(query).at[n - 1].set(values_C[0])

  def _is_question(self, x: np.ndarray) -> bool:
    ids = x.tolist()
    setting, source = 2 * self.names, ids[-1] if ids else None
    starts = [i for i, token in enumerate(ids[:-4]) if token == setting]
    sources = {ids[i + 2]: ids[i + 1] for i in starts}
    for _ in range(self.hops + 1):
      source = sources.get(source)
    differ = len(sources) == len(starts)
    return source is not None and differ and ids[-2] == setting + 1

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    is_set = x == 2 * self.names
    found, source = [], x[n - 1]
    for _ in range(self.hops + 1):
      start = jnp.argmax(is_set & (jnp.roll(x, -2) == source))
      source = x[jnp.minimum(start + 1, x.shape[0] - 1)]
      found.append(source)
    return jnp.stack(found)


@dataclasses.dataclass(frozen=True)
class Cwe(base.Task):
  """Words of which some are at least ten times as frequent; asks for these.

  Of n tokens, the other words occur n / (10 common + others) times each,
  rounded down, and the common ones share the rest, as evenly as possible. The
  target is the common words, sorted by their ids.

  Source: Hsieh et al. (2024), RULER, arXiv:2404.06654. A word is one token, and
  their number does not grow with the length.

  Attributes:
    common: number of common words.
    words: number of words.
  """

  common: int = 10
  words: int = 32

  family = 'retrieval'
  formula = 'the words that are ten times as frequent or more'
  source = 'arXiv:2404.06654'
  permutation_invariant = True
  ranges = {'common': '>= 1', 'words': '> {0.common}'}

  @property
  def vocab_in(self) -> int:
    return self.words

  vocab_out = vocab_in

  @property
  def chance(self) -> float:
    return 1 / self.words

  @property
  def min_length(self) -> int:
    return 9 * self.common + self.words

  @property
  def target_length(self) -> int:
    return self.common

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    word_rng, order_rng = jax.random.split(rng)
    words = draws.distinct(word_rng, self.words, self.words)
    order = draws.shuffled(order_rng, n, width)
    rare = (n // self.min_length) * (self.words - self.common)
    # The first `rare` of the shuffled tokens are other words.
    other = self.common + order % (self.words - self.common)
    return words[jnp.where(order < rare, other, order % self.common)]

  def _is_question(self, x: np.ndarray) -> bool:
    counts = np.sort(np.bincount(x, minlength=self.words))[::-1]
    # The common words are those that occur more often than all others.
    return bool(counts[self.common - 1] > counts[self.common])

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    is_token = jnp.arange(x.shape[0]) < n
    counts = jnp.zeros(self.words, jnp.int32).at[x].add(is_token)
    return jnp.sort(jax.lax.top_k(counts, self.common)[1])


@dataclasses.dataclass(frozen=True)
class Fwe(base.Task):
  """Words whose frequencies follow a power law; asks for the most frequent.

  Of n tokens, the word of rank k occurs floor(n k^-2 / zeta(2)) times, from
  rank 2 on; other tokens are 0, the most frequent. The target is the words of
  ranks 2 to 4; of words that occur equally often, the smaller id comes first.

  Source: Hsieh et al. (2024), RULER, arXiv:2404.06654. A word is one token, and
  their number does not grow with the length.

  Attributes:
    words: number of words, without 0.
  """

  words: int = 32

  family = 'retrieval'
  formula = 'the words of ranks 2 to 4 by frequency'
  source = 'arXiv:2404.06654'
  permutation_invariant = True
  target_length = 3
  # The word of rank 4 is more frequent than that of rank 5 from here on.
  min_length = 53
  ranges = {'words': '>= 3'}

  @property
  def vocab_in(self) -> int:
    return self.words + 1

  vocab_out = vocab_in

  @property
  def chance(self) -> float:
    return 1 / self.words

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    word_rng, order_rng = jax.random.split(rng)
    words = 1 + draws.distinct(word_rng, self.words, self.words)
    ranks = jnp.arange(2, self.words + 2)
    counts = jnp.floor(n * 6 / (math.pi * ranks) ** 2).astype(jnp.int32)
    order = draws.shuffled(order_rng, n, width)
    word = jnp.searchsorted(jnp.cumsum(counts), order, side='right')
    return words.at[word].get(mode='fill', fill_value=0)

  def _is_question(self, x: np.ndarray) -> bool:
    return len({*x.tolist()} - {0}) >= self.target_length

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    counts = jnp.zeros(self.words + 1, jnp.int32).at[x].add(1).at[0].set(-1)
    return jax.lax.top_k(counts, 3)[1]
