"""A needle in a haystack: values of keys within a long context."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length


@dataclasses.dataclass(frozen=True)
class Niah(base.Task):
  """Base of tasks with needles, a key and a number, in a haystack.

  An input of n tokens is a haystack with needles, followed by the query and the
  keys asked for. The target is the numbers of these keys, in the order of the
  query, and for each key in the order of the context. Tokens, by ascending id:
  `radix` digits, a marker before each needle, the query, `phrase` fillers, and
  `names` names, of which keys consist. The first digit of a decimal number is
  not 0.

  Source: Hsieh et al. (2024), RULER, arXiv:2404.06654, with other tokens. A
  word is one token, and essays are random fillers. The score counts digits at
  their places, not substrings.

  Attributes:
    keys: number of keys with needles.
    values: number of needles of a key.
    queries: number of keys asked for.
    haystack: 'phrase', a repeated phrase of all fillers; 'random', fillers
      drawn uniformly; or 'needles', as many needles of other keys as fit.
    depth: place of the needles asked for, from 0 (start) to 1 (just before the
      query); None draws each uniformly.
    digits: digits of a number.
    radix: number of distinct digits; 16 for UUIDs.
    names: number of names.
    key_tokens: names of a key.
    phrase: number of fillers.
  """

  keys: int = 1
  values: int = 1
  queries: int = 1
  haystack: str = 'phrase'
  depth: float | None = None
  digits: int = 7
  radix: int = 10
  names: int = 64
  key_tokens: int = 1
  phrase: int = 24

  family = 'retrieval'
  formula = 'phrase with a needle, key: its number'
  source = 'arXiv:2404.06654'
  ranges = {
    'values': '>= 1',
    'queries': '>= 1',
    'keys': '>= {0.queries}',
    'haystack': ('phrase', 'random', 'needles'),
    'depth': 'None or >= 0 and <= 1',
    'digits': '>= 1',
    'radix': '>= 2',
    'names': '> {0.keys}',
    'key_tokens': '>= 1',
    'phrase': '>= 1',
  }

  @property
  def vocab_in(self) -> int:
    return self.radix + 2 + self.phrase + self.names

  @property
  def vocab_out(self) -> int:
    return self.radix

  @property
  def needle_tokens(self) -> int:
    """Tokens of a needle."""
    return 1 + self.key_tokens + self.digits

  @property
  def chance(self) -> float:
    """Accuracy of answering with a random needle between fillers.

    With one needle, or with needles only, it is that of random digits.
    """
    needles = self.keys * self.values
    read = 1 / needles if needles > 1 and self.haystack != 'needles' else 0
    return read + (1 - read) / self.radix

  @property
  def min_length(self) -> int:
    needles = self.keys * self.values * self.needle_tokens
    return needles + 1 + self.queries * self.key_tokens

  @property
  def target_length(self) -> int:
    return self.queries * self.values * self.digits

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    name_rng, place_rng, order_rng, column_rng = jax.random.split(rng, 4)
    bits = draws.column_bits(column_rng, width)
    column = jnp.arange(width)
    setting, query, filler = self.radix + jnp.arange(3)
    # Each token of a key has its own permutation of the names. Key i consists
    # of the i-th name of each.
    name_rngs = jax.random.split(name_rng, self.key_tokens - 1)
    orders_KxN = jax.vmap(lambda rng: draws.distinct(rng, *2 * [self.names]))(
      jnp.concatenate([name_rng[None], name_rngs])
    )
    names_KxN = filler + self.phrase + orders_KxN
    count, size = self.keys * self.values, self.needle_tokens
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

    digits = draws.below(bits, self.radix)
    firsts = digits
    if self.radix == 10:
      firsts = 1 + draws.below(bits, 9)
    if self.haystack == 'random':
      fillers = draws.below(bits, self.phrase)
    else:
      earlier = jnp.sum(starts[:, None] < column[None], 0)
      fillers = (column - size * earlier) % self.phrase
    fillers += filler

    def needle(index: jax.Array, place: jax.Array) -> jax.Array:
      """Returns the tokens at places of needles, for each column.

      `index` is that of the name in the order of its place.
      """
      token = jnp.clip(place - 1, 0, self.key_tokens - 1)
      kinds = [place == 0, place <= self.key_tokens]
      kinds.append(place == self.key_tokens + 1)
      return jnp.select(
        kinds, [setting, names_KxN[token, index], firsts], digits
      )

    if self.haystack == 'needles':
      place = (column - lead) % size
      # Other keys differ from those with needles in a random token.
      drawn = draws.below(bits, self.names)
      other = self.keys + draws.below(bits, self.names - self.keys)
      differs = draws.below(bits[column - place], self.key_tokens) == place - 1
      x = needle(jnp.where(differs, other, drawn), place)
      x = jnp.where(column < lead, fillers, x)
    else:
      x = fillers
    # The last needle that starts at or before each column.
    last = jnp.sum(starts[:, None] <= column[None], 0) - 1
    place = column - starts[jnp.maximum(last, 0)]
    inside = (last >= 0) & (place < size)
    key = order[jnp.maximum(last, 0)] // self.values
    x = jnp.where(inside, needle(key, place), x)
    asked = names_KxN[:, : self.queries].T.ravel()
    ends = n - len(asked) + jnp.arange(len(asked))
    return x.at[ends[0] - 1].set(query).at[ends].set(asked)

  def _is_question(self, x: np.ndarray) -> bool:
    first = len(x) - self.queries * self.key_tokens
    if first < 1:
      return False
    asked = np.reshape(x[first:], (self.queries, -1)).tolist()
    needles = [
      x[i + 1 : i + 1 + self.key_tokens].tolist()
      for i in np.flatnonzero(x[:first] == self.radix)
    ]
    counts = {needles.count(key) for key in asked}
    return counts == {self.values} and bool(x[first - 1] == self.radix + 1)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    first = n - self.queries * self.key_tokens

    def numbers(query: jax.Array) -> jax.Array:
      is_needle = x == self.radix
      for token in range(self.key_tokens):
        name = x[first + query * self.key_tokens + token]
        is_needle &= jnp.roll(x, -1 - token) == name
      starts = jnp.nonzero(is_needle, size=self.values, fill_value=0)[0]
      digits = 1 + self.key_tokens + jnp.arange(self.digits)
      places = starts[:, None] + digits[None]
      return x[jnp.minimum(places, x.shape[0] - 1)]

    return jax.vmap(numbers)(jnp.arange(self.queries)).ravel()


class NiahSingle_1(Niah):
  """One needle in a phrase."""


@dataclasses.dataclass(frozen=True)
class NiahSingle_2(Niah):
  """One needle between random fillers."""

  haystack: str = 'random'

  formula = 'random tokens with a needle, key: its number'


@dataclasses.dataclass(frozen=True)
class NiahSingle_3(NiahSingle_2):
  """One needle with a UUID between random fillers."""

  digits: int = 32
  radix: int = 16

  formula = 'random tokens with a needle, key: its UUID'


@dataclasses.dataclass(frozen=True)
class NiahMultikey_1(Niah):
  """Four needles between random fillers, one of them asked for."""

  keys: int = 4
  haystack: str = 'random'

  formula = 'random tokens with needles of 4 keys, one key: its number'


@dataclasses.dataclass(frozen=True)
class NiahMultikey_2(Niah):
  """One needle asked for among needles only."""

  haystack: str = 'needles'

  formula = 'needles only, one key: its number'


@dataclasses.dataclass(frozen=True)
class NiahMultikey_3(NiahMultikey_2):
  """Needles only, one of them asked for, with UUIDs as keys and values."""

  digits: int = 32
  radix: int = 16
  names: int = 16
  key_tokens: int = 32

  formula = 'needles only, one UUID: its UUID'


@dataclasses.dataclass(frozen=True)
class NiahMultivalue(Niah):
  """Four needles of one key between random fillers, all asked for."""

  values: int = 4
  haystack: str = 'random'

  formula = 'random tokens with 4 needles of one key, key: their numbers'


@dataclasses.dataclass(frozen=True)
class NiahMultiquery(Niah):
  """Four needles between random fillers, all asked for."""

  keys: int = 4
  queries: int = 4
  haystack: str = 'random'

  formula = 'random tokens with needles of 4 keys, all keys: their numbers'
