"""A needle in a haystack: values of keys within a long context."""

import dataclasses

import jax
import jax.numpy as jnp

from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length

KEY, QUERY, FILLER = 10, 11, 12


@dataclasses.dataclass(frozen=True)
class Niah(base.Task):
  """Base of tasks with needles, a key and a number, in a haystack.

  An input of n tokens is a haystack with needles and, at its end, the query and
  the keys asked for. The target is the numbers of these keys, in the order of
  the query and then that of the context. Tokens: 0 to 9 are digits, the first
  of a number is not 0; 10 precedes a key, 11 is the query, then follow the
  tokens of the phrase and the names of keys.

  Source: Hsieh et al. (2024), RULER, arXiv:2404.06654, with other tokens. A
  name is one token. The score counts digits at their places, not substrings.
  RULER's niah_single_2 and 3 and niah_multikey_3 are not here: they differ in
  the text around needles, or have UUIDs.

  Attributes:
    keys: number of keys with needles.
    values: number of needles of a key.
    queries: number of keys asked for.
    haystack: 'phrase', a repeated phrase, or 'needles', as many needles of
      other keys as fit.
    depth: place of the needles asked for, from 0 (start) to 1 (just before the
      query); None draws each uniformly.
    digits: digits of a number.
    names: number of names of keys.
    phrase: number of tokens of the phrase.
  """

  keys: int = 1
  values: int = 1
  queries: int = 1
  haystack: str = 'phrase'
  depth: float | None = None
  digits: int = 7
  names: int = 64
  phrase: int = 24

  family = 'retrieval'
  formula = 'phrase with a needle, key: its number'
  source = 'arXiv:2404.06654'
  vocab_out = 10
  ranges = {
    'values': '>= 1',
    'queries': '>= 1',
    'keys': '>= {0.queries}',
    'haystack': ('phrase', 'needles'),
    'depth': 'None or >= 0 and <= 1',
    'digits': '>= 1',
    'names': '> {0.keys}',
    'phrase': '>= 1',
  }

  @property
  def vocab_in(self) -> int:
    return FILLER + self.phrase + self.names

  @property
  def chance(self) -> float:
    """Accuracy of reading one of the needles in a phrase at random.

    It is that of random digits if there is one needle, or too many to count.
    """
    needles = self.keys * self.values
    read = 1 / needles if needles > 1 and self.haystack == 'phrase' else 0
    return read + (1 - read) / 10

  @property
  def min_length(self) -> int:
    return self.keys * self.values * (self.digits + 2) + 1 + self.queries

  @property
  def target_length(self) -> int:
    return self.queries * self.values * self.digits

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    name_rng, place_rng, order_rng, column_rng = jax.random.split(rng, 4)
    bits = draws.column_bits(column_rng, width)
    column = jnp.arange(width)
    names = FILLER + self.phrase + draws.distinct(name_rng, *2 * [self.names])
    count, size = self.keys * self.values, self.digits + 2
    # The haystack has `room` units, with needles before some of them.
    room = n - self.min_length
    unit, lead = 1, 0
    if self.haystack == 'needles':
      unit, lead, room = size, room % size, room // size
    before = draws.below(jax.random.bits(place_rng, (count,)), room + 1)
    if self.depth is not None:
      asked = jnp.arange(count) < self.queries * self.values
      depth = jnp.round(self.depth * room).astype(jnp.int32)
      before = jnp.where(asked, depth, before)
    order = jnp.lexsort((jax.random.bits(order_rng, (count,)), before))
    starts = lead + unit * before[order] + size * jnp.arange(count)

    digits = draws.below(bits, 10)
    firsts = 1 + draws.below(bits, 9)
    earlier = jnp.sum(starts[:, None] < column[None], 0)
    phrase = FILLER + (column - size * earlier) % self.phrase

    def needle(keys: jax.Array, place: jax.Array) -> jax.Array:
      """Returns the tokens at places of needles, for each column."""
      kinds = [place == 0, place == 1, place == 2]
      return jnp.select(kinds, [KEY, keys, firsts], digits)

    if self.haystack == 'phrase':
      x = phrase
    else:
      others = names[self.keys + draws.below(bits, self.names - self.keys)]
      x = needle(others, (column - lead) % size)
      x = jnp.where(column < lead, phrase, x)
    # The last needle that starts at or before each column.
    last = jnp.sum(starts[:, None] <= column[None], 0) - 1
    place = column - starts[jnp.maximum(last, 0)]
    inside = (last >= 0) & (place < size)
    keys = names[order[jnp.maximum(last, 0)] // self.values]
    x = jnp.where(inside, needle(keys, place), x)
    ends = n - self.queries + jnp.arange(self.queries)
    return (
      x.at[n - self.queries - 1].set(QUERY).at[ends].set(names[: self.queries])
    )

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    def numbers(query: jax.Array) -> jax.Array:
      key = x[n - self.queries + query]
      is_needle = (x == KEY) & (jnp.roll(x, -1) == key)
      starts = jnp.nonzero(is_needle, size=self.values, fill_value=0)[0]
      places = starts[:, None] + 2 + jnp.arange(self.digits)[None]
      return x[jnp.minimum(places, x.shape[0] - 1)]

    return jax.vmap(numbers)(jnp.arange(self.queries)).ravel()


class NiahSingle_1(Niah):
  """One needle in a phrase."""


@dataclasses.dataclass(frozen=True)
class NiahMultikey_1(Niah):
  """Four needles in a phrase, one of them asked for."""

  keys: int = 4

  formula = 'phrase with needles of 4 keys, one key: its number'


@dataclasses.dataclass(frozen=True)
class NiahMultikey_2(Niah):
  """One needle asked for among needles only."""

  haystack: str = 'needles'

  formula = 'needles only, one key: its number'


@dataclasses.dataclass(frozen=True)
class NiahMultivalue(Niah):
  """Four needles of one key, all asked for."""

  values: int = 4

  formula = 'phrase with 4 needles of one key, key: their numbers'


@dataclasses.dataclass(frozen=True)
class NiahMultiquery(Niah):
  """Four needles in a phrase, all asked for."""

  keys: int = 4
  queries: int = 4

  formula = 'phrase with needles of 4 keys, all keys: their numbers'
