"""Multi-query associative recall."""

import dataclasses

import jax
import jax.numpy as jnp

from lengen_jax.tasks import base, draws
from lengen_jax.tasks.base import Length


@dataclasses.dataclass(frozen=True)
class Mqar(base.Task):
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
  def vocab_in(self) -> int:
    return self.vocabulary

  vocab_out = vocab_in

  @property
  def chance(self) -> float:
    """Accuracy of answering with any value of the context."""
    return 1 / self.pairs

  @property
  def context(self) -> int:
    """Number of tokens before the queries."""
    return 2 * self.pairs

  @property
  def min_length(self) -> int:
    return self.context + 2 * self.pairs

  def _pairs(self, rng: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns random keys and values of the context, in order, int32 `[P]`.

    The first D keys are those that are asked for.
    """
    half = self.vocabulary // 2
    key_rng, value_rng = jax.random.split(rng)
    keys = 1 + draws.distinct(key_rng, half - 1, self.pairs)
    values = half + draws.distinct(value_rng, half, self.context // 2)
    return keys, values

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    pair_rng, place_rng, filler_rng = jax.random.split(rng, 3)
    half = self.vocabulary // 2
    x = jnp.zeros(width, jnp.int32)
    if self.random_fillers:
      x = half + draws.symbols(filler_rng, half, width)
    keys, values = self._pairs(pair_rng)
    x = x.at[: self.context].set(jnp.stack([keys, values], 1).ravel())
    # The largest of log-weights plus Gumbel noise are a sample without
    # replacement.
    slot = jnp.arange((width - self.context) // 2)
    uniform = draws.uniform(draws.column_bits(place_rng, len(slot)))
    noise = -jnp.log(-jnp.log(uniform + 2.0**-25))
    score = (self.power - 1) * jnp.log1p(slot) + noise
    score = jnp.where(slot < (n - self.context) // 2, score, -jnp.inf)
    places = self.context + 2 * jax.lax.top_k(score, self.pairs)[1]
    return x.at[places].set(keys[: self.pairs])

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    column = jnp.arange(x.shape[0])
    first = jnp.full(self.vocabulary, x.shape[0]).at[x].min(column)[x]
    is_query = (0 < x) & (x < self.vocabulary // 2) & (first < column)
    return jnp.where(is_query, x.at[first + 1].get(mode='clip'), base.UNSCORED)


@dataclasses.dataclass(frozen=True)
class ForgettingMqar(Mqar):
  """`mqar` whose context then gives some keys a second value.

  The target is the last value of a key in the context.

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
    is_key_WxP = x[:, None] == keys[None]
    last = keys.shape[0] - 1 - jnp.argmax(is_key_WxP[:, ::-1], 1)
    is_query = is_key_WxP.any(1) & (jnp.arange(x.shape[0]) >= self.context)
    return jnp.where(is_query, values[last], base.UNSCORED)
