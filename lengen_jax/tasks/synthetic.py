"""Recall and selection over long ranges, with a target at tokens of the input.

Targets depend on earlier tokens only; a bidirectional model can read answers of
`flip_flop`, and of `induction_heads` with `copied` of 2 or more, from the next
token.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length

WRITE, READ, IGNORE, BIT = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True)
class FlipFlop(base.Task):
  """Instructions w, r and i, each with a bit; r repeats the last bit written.

  The nominal length is the number of instructions; an input has twice as many
  tokens. The first instruction is w and the last r. Bits after w and i are
  uniform. The target at r is the bit written last. Tokens: w 0, r 1, i 2, bits
  3 and 4.

  Source: Liu et al. (2023), arXiv:2306.00946.

  Attributes:
    ignore: probability of i; w and r have half of the rest each. The paper
      trains with 0.8, and tests with 0.8, 0.1 and 0.98.
  """

  ignore: float = 0.8

  family = 'synthetic'
  formula = 'w 1 ... i 0 ... r: 1'
  source = 'arXiv:2306.00946'
  vocab_in = 5
  vocab_out = 5
  tags = True
  min_length = 2
  ranges = {'ignore': '>= 0 and <= 1'}

  def input_length(self, length: Length) -> Length:
    return 2 * length

  output_length = input_length

  def _is_question(self, x: np.ndarray) -> bool:
    kinds, bits = x[::2], x[1::2]
    return bool(
      len(kinds) == len(bits)
      and kinds[:1].tolist() == [WRITE]
      and (kinds < BIT).all()
      and (bits >= BIT).all()
    )

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    bits = draws.column_bits(rng, width // 2, (2,))
    slot = jnp.arange(width // 2)
    uniform = draws.uniform(bits[0])
    half = (1 + self.ignore) / 2
    kind = jnp.where(uniform < half, WRITE, READ)
    kind = jnp.where(uniform < self.ignore, IGNORE, kind)
    kind = jnp.where(slot == 0, WRITE, kind)
    kind = jnp.where(slot == n - 1, READ, kind)
    bit = BIT + draws.below(bits[1], 2)
    bit = jnp.where(kind == READ, bit[_last_write(kind)], bit)
    return jnp.stack([kind, bit], 1).ravel()

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    kind, bit = x[::2], x[1::2]
    read = jnp.where(kind == READ, bit[_last_write(kind)], base.UNSCORED)
    return jnp.full(x.shape, base.UNSCORED).at[::2].set(read)


def _last_write(kind: jax.Array) -> jax.Array:
  """Returns the index of the last w up to each instruction."""
  slot = jnp.arange(kind.shape[0])
  return jax.lax.cummax(jnp.where(kind == WRITE, slot, 0))


@dataclasses.dataclass(frozen=True)
class SelectiveCopying(base.OneVocabularyTask):
  """Data among noise, then markers; asks for the data.

  The nominal length is the number of tokens before the markers. The target at
  the j-th marker is the j-th data token. Tokens: noise 0, data 1 to A - 2,
  marker A - 1.

  Source: Gu and Dao (2023), arXiv:2312.00752, and state-spaces/s4.

  Attributes:
    vocabulary: A.
    data: number of data tokens, and of markers.
    selective: whether the data is at random places, or comes first.
  """

  data: int = 16
  selective: bool = True

  family = 'synthetic'
  formula = '0 a 0 0 b 0 ... marker marker: a b'
  source = 'arXiv:2312.00752'
  tags = True
  ranges = {'vocabulary': '>= 4', 'data': '>= 1'}

  @property
  def chance(self) -> float:
    return 1 / (self.vocabulary - 2)

  @property
  def min_length(self) -> int:
    return self.data

  def input_length(self, length: Length) -> Length:
    return length + self.data

  output_length = input_length

  def _is_question(self, x: np.ndarray) -> bool:
    before, after = x[: -self.data], x[-self.data :]
    marker = self.vocabulary - 1
    return bool(
      (after == marker).all()
      and (before != marker).all()
      and (before > 0).sum() == self.data
    )

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    place_rng, data_rng = jax.random.split(rng)
    place = jnp.arange(width)
    if self.selective:
      place = draws.shuffled(place_rng, n, width)
    is_data = place < self.data
    x = jnp.where(
      is_data, 1 + draws.symbols(data_rng, self.vocabulary - 2, width), 0
    )
    return jnp.where(jnp.arange(width) < n, x, self.vocabulary - 1)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    is_marker = x == self.vocabulary - 1
    is_data = (x > 0) & ~is_marker
    places = jnp.nonzero(is_data, size=x.shape[0], fill_value=0)[0]
    number = jnp.maximum(jnp.cumsum(is_marker) - 1, 0)
    return jnp.where(is_marker, x[places[number]], base.UNSCORED)


@dataclasses.dataclass(frozen=True)
class InductionHeads(base.OneVocabularyTask):
  """Recall of the tokens that followed the first occurrence of a trigger token.

  A row has random tokens with one trigger, then a second trigger. The nominal
  length is the number of tokens before the second trigger. The targets start
  there and are the tokens after the first trigger. All of them but the last
  also follow the second trigger as inputs. Tokens: 1 to V - 2, trigger V - 1.

  Source: Gu and Dao (2023), arXiv:2312.00752, and HazyResearch/safari.

  Attributes:
    vocabulary: V.
    copied: number of targets.
  """

  copied: int = 1

  family = 'synthetic'
  formula = '... trigger a ... trigger: a'
  source = 'arXiv:2312.00752'
  tags = True
  ranges = {'vocabulary': '>= 4', 'copied': '>= 1'}

  @property
  def chance(self) -> float:
    return 1 / (self.vocabulary - 2)

  @property
  def min_length(self) -> int:
    return self.copied + 2

  def input_length(self, length: Length) -> Length:
    return length + self.copied

  output_length = input_length

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    symbol_rng, place_rng = jax.random.split(rng)
    x = 1 + draws.symbols(symbol_rng, self.vocabulary - 2, width)
    place = draws.below(jax.random.bits(place_rng), n - self.copied - 1)
    x = x.at[jnp.stack([place, n])].set(self.vocabulary - 1)
    repeated = jnp.arange(1, self.copied)
    return x.at[n + repeated].set(x[place + repeated])

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    is_trigger, column = x == self.vocabulary - 1, jnp.arange(x.shape[0])
    first = jnp.argmax(is_trigger)
    since = column - jax.lax.cummax(jnp.where(is_trigger, column, first))
    is_query = (column - since > first) & (since < self.copied)
    return jnp.where(
      is_query, x.at[first + 1 + since].get(mode='clip'), base.UNSCORED
    )


@dataclasses.dataclass(frozen=True)
class AssociativeRecall(base.OneVocabularyTask):
  """Recall of the value that belongs to a key.

  A row has pairs of a key and its value, then a trigger and one of these keys,
  whose value is the target. The nominal length is the number of pairs. Keys are
  drawn uniformly; equal keys have equal values. The last key is uniform among
  the distinct keys of the row. With K = V / 2 - 1, rounded down, tokens are
  keys 1 to K, values K + 1 to 2 K, and the trigger V - 1.

  Source: Fu et al. (2022), arXiv:2212.14052, and HazyResearch/safari.

  Attributes:
    vocabulary: V.
  """

  family = 'synthetic'
  formula = 'a 1 b 2 a 1 ... trigger b: 2'
  source = 'arXiv:2212.14052'
  tags = True
  ranges = {'vocabulary': '>= 4'}

  @property
  def keys(self) -> int:
    """Number of keys, K, and of values."""
    return self.vocabulary // 2 - 1

  @property
  def chance(self) -> float:
    return 1 / self.keys

  def input_length(self, length: Length) -> Length:
    return 2 * length + 2

  output_length = input_length

  def _is_question(self, x: np.ndarray) -> bool:
    *pairs, trigger, asked = [0, 0, *map(int, x)]
    keys, values = pairs[2::2], pairs[3::2]
    return (
      len(keys) == len(values)
      and all(1 <= key <= self.keys for key in keys)
      and all(self.keys < value <= 2 * self.keys for value in values)
      and len({*zip(keys, values, strict=True)}) == len({*keys})
      and trigger == self.vocabulary - 1
      and asked in keys
    )

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    key_rng, value_rng, asked_rng = jax.random.split(rng, 3)
    keys = draws.symbols(key_rng, self.keys, width // 2)
    values_K = draws.symbols(value_rng, self.keys, self.keys)
    pairs = jnp.stack([1 + keys, 1 + self.keys + values_K[keys]], 1).ravel()
    in_row = jnp.arange(len(keys)) < n
    is_seen_K = jnp.zeros(self.keys, bool).at[keys].max(in_row)
    # Keys in random order, those of the row first.
    order_K = draws.distinct(asked_rng, self.keys, self.keys)
    asked = jnp.argmin(jnp.where(is_seen_K, order_K, self.keys))
    return pairs.at[2 * n].set(self.vocabulary - 1).at[2 * n + 1].set(1 + asked)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    column = jnp.arange(x.shape[0])
    is_query = jnp.roll(x == self.vocabulary - 1, 1) & (column > 0)
    asked = x[jnp.argmax(is_query)]
    value = x.at[jnp.argmax(x == asked) + 1].get(mode='clip')
    return jnp.where(is_query, value, base.UNSCORED)
