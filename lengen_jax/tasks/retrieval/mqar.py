"""Multi-query associative recall."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length


@dataclasses.dataclass(frozen=True)
class Mqar(base.OneVocabularyTask):
  """Pairs of key and value, then keys again; each asks for its value.

  An input of n tokens starts with D pairs. Keys are tokens 1 to V/2 - 1, values
  V/2 to V - 1, both without repetition. The key of each pair occurs once more
  at an even distance 2g after the context, where g is drawn without replacement
  with weights (1 + g)^(power - 1). The target at a key that occurred before is
  the token after its first occurrence.

  In zoology's code, random fillers are tokens of the whole vocabulary, also
  keys, that have no target. Here they are values.

  Source: Arora et al. (2023), arXiv:2312.04927, and zoology/data of its code.

  Attributes:
    vocabulary: V.
    pairs: D.
    power: exponent of the distances; small values ask soon after the context.
    random_fillers: whether other tokens are random values; otherwise 0.
  """

  vocabulary: int = 8192
  pairs: int = 4
  power: float = 0.01
  random_fillers: bool = True

  family = 'retrieval'
  formula = 'key value ... key: value'
  source = 'arXiv:2312.04927'
  tags = True
  # Number of tokens of a pair.
  pair_size = 2
  ranges = {
    'pairs': '>= 2',
    'vocabulary': 'even and >= {0.least_vocabulary}',
    'power': '> 0',
  }

  @property
  def least_vocabulary(self) -> int:
    """Minimum of V: there is a key and a value for each pair."""
    return 2 * self.pairs + 2

  @property
  def chance(self) -> float:
    """Accuracy of answering with any value of the context."""
    return self.pair_size / self.context

  @property
  def context(self) -> int:
    """Number of tokens before the queries."""
    return self.pair_size * self.pairs

  @property
  def min_length(self) -> int:
    return self.context + self.pair_size * self.pairs

  @property
  def first_value(self) -> int:
    """The least value; all greater tokens are values, too."""
    return self.vocabulary // self.pair_size * (self.pair_size - 1)

  def _pairs(self, rng: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns random keys and values of the context, in order, int32 `[P]`.

    The first D keys are those that are asked for.
    """
    key_rng, value_rng = jax.random.split(rng)
    keys = 1 + draws.distinct(key_rng, self.first_value - 1, self.pairs)
    return keys, self._values(value_rng)

  def _values(self, rng: jax.Array) -> jax.Array:
    """Returns random values of the context, in order, int32 `[P]`."""
    count = self.vocabulary - self.first_value
    size = self.context // self.pair_size
    return self.first_value + draws.distinct(rng, count, size)

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    pair_rng, place_rng, filler_rng = jax.random.split(rng, 3)
    x = jnp.zeros(width, jnp.int32)
    if self.random_fillers:
      count = self.vocabulary - self.first_value
      x = self.first_value + draws.symbols(filler_rng, count, width)
    pairs_PxS = jnp.column_stack(self._pairs(pair_rng))
    x = x.at[: self.context].set(pairs_PxS.ravel())
    # The largest of log-weights plus Gumbel noise are a sample without
    # replacement.
    slot = jnp.arange((width - self.context) // self.pair_size)
    uniform = draws.uniform(draws.column_bits(place_rng, len(slot)))
    noise = -jnp.log(-jnp.log(uniform + 2.0**-25))
    score = (self.power - 1) * jnp.log1p(slot) + noise
    slots = (n - self.context) // self.pair_size
    score = jnp.where(slot < slots, score, -jnp.inf)
    chosen_Dx1 = jax.lax.top_k(score, self.pairs)[1][:, None]
    key = jnp.arange(self.pair_size - 1)[None]
    places = self.context + self.pair_size * chosen_Dx1 + key
    return x.at[places].set(pairs_PxS[: self.pairs, :-1])

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    column = jnp.arange(x.shape[0])
    first = jnp.full(self.vocabulary, x.shape[0]).at[x].min(column)[x]
    is_query = (0 < x) & (x < self.vocabulary // 2) & (first < column)
    return jnp.where(is_query, x.at[first + 1].get(mode='clip'), base.UNSCORED)

  def _look_up(self, is_key_WxP: jax.Array, values: jax.Array) -> jax.Array:
    """Returns the last value of the key at each token after the context."""
    last = values.shape[0] - 1 - jnp.argmax(is_key_WxP[:, ::-1], 1)
    column = jnp.arange(is_key_WxP.shape[0])
    is_query = is_key_WxP.any(1) & (column >= self.context)
    return jnp.where(is_query, values[last], base.UNSCORED)


@dataclasses.dataclass(frozen=True)
class ForgettingMqar(Mqar):
  """`mqar` whose context then gives some keys a second value.

  The target is the last value of a key in the context. All values are distinct;
  in the code of Zoology, those of different keys may be equal.

  Attributes:
    updates: number of keys with a second value.
  """

  updates: int = 2

  formula = 'key value ... key: last value'
  ranges = Mqar.ranges | {'updates': '>= 1 and <= {0.pairs}'}

  @property
  def least_vocabulary(self) -> int:
    """Minimum of V: all keys and values are distinct."""
    return max(2 * self.pairs + 2, self.context)

  @property
  def context(self) -> int:
    """Number of tokens before the queries."""
    return 2 * (self.pairs + self.updates)

  def _pairs(self, rng: jax.Array) -> tuple[jax.Array, jax.Array]:
    keys, values = super()._pairs(rng)
    updated = draws.distinct(
      jax.random.fold_in(rng, 2), self.pairs, self.updates
    )
    return jnp.concatenate([keys, keys[updated]]), values

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    keys, values = x[: self.context : 2], x[1 : self.context : 2]
    return self._look_up(x[:, None] == keys[None], values)


@dataclasses.dataclass(frozen=True)
class CompositionalMqar(Mqar):
  """`mqar` with keys of two tokens, neither of which determines the value.

  The keys are all D pairs of sqrt(D) first and sqrt(D) second tokens, in random
  order. First tokens are 1 to V/3 - 1, second ones V/3 to 2V/3 - 1, values 2V/3
  to V - 1, with V/3 rounded down. Queries start at distances 3g. The target is
  at the second token of a query.

  Source: zoology/data/compositional_mqar.py of the code.
  """

  formula = 'key key value ... key key: value'
  pair_size = 3
  ranges = Mqar.ranges | {
    'pairs': 'square and >= 4',
    'vocabulary': '>= {0.least_vocabulary}',
  }

  @property
  def least_vocabulary(self) -> int:
    """Minimum of V: a third has the values of all pairs."""
    return 3 * self.pairs

  def _pairs(self, rng: jax.Array) -> tuple[jax.Array, jax.Array]:
    first_rng, second_rng, order_rng, value_rng = jax.random.split(rng, 4)
    third, side = self.vocabulary // 3, math.isqrt(self.pairs)
    first = 1 + draws.distinct(first_rng, third - 1, side)
    second = third + draws.distinct(second_rng, third, side)
    cell = draws.distinct(order_rng, self.pairs, self.pairs)
    keys_Px2 = jnp.stack([first[cell // side], second[cell % side]], 1)
    return keys_Px2, self._values(value_rng)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    first, second, values = x[: self.context].reshape(-1, 3).T
    is_first_WxP = jnp.roll(x, 1)[:, None] == first[None]
    is_second_WxP = x[:, None] == second[None]
    return self._look_up(is_first_WxP & is_second_WxP, values)
