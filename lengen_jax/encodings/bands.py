"""RoPE with positions mapped by bands of distance, to extend trained models.

A model with RoPE fails at distances beyond those of its training. These
encodings keep the distance of near pairs and map that of far ones into the
range of training, without parameters or training. Each band of distances has
its own positions of queries and keys, by which they are rotated once. They are
for causal attention: distances to later keys are not mapped. Positions are
float32, exact up to 2^24.

Shapes: B batch, Q queries, K keys, H heads, D head_dim.
"""

from collections.abc import Iterator
import math
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax.encodings import base, rotary, terms
from lengen_jax.types import Array

# Of queries `[1 or B, Q, 1 or H]` and keys `[1 or B, K, 1 or H]`.
Pair = tuple[Array, Array]
# Positions in a band, places, and limits of the band; see `terms.Band`.
Rule = tuple[Pair, Pair, tuple[float, float]]


class _Bands(rotary.Rope):
  """Base: RoPE at the positions of each pair's band."""

  at_decoding = 'nothing; keys are kept unrotated'
  caches_unrotated_keys = True
  _has_dynamic = False

  def rotate(self, q: Array, k: Array, *args: Any, **kwargs: Any) -> Any:
    """Returns queries and keys unchanged; `bands` rotates them."""
    return q, k

  def bands(
    self, q: Array, k: Array, q_positions: Array, k_positions: Array
  ) -> tuple[terms.Band, ...]:
    base.check_distances(self, q_positions, k_positions)
    i, j = map(_by_head, (q_positions, k_positions))
    return tuple(
      terms.Band(
        q=self._rotate(q, positions[0], None),
        k=self._rotate(k, positions[1], None),
        q_places=jax.lax.stop_gradient(places[0]),
        k_places=jax.lax.stop_gradient(places[1]),
        limits=limits,
      )
      for positions, places, limits in self._rules(i, j)
    )

  @nn.nowrap
  def _rules(self, i: Array, j: Array) -> Iterator[Rule]:
    """Yields the bands of queries at i and keys at j."""
    raise NotImplementedError


class Rerope(_Bands):
  """ReRoPE: a distance of `window` or more is replaced by `window`.

  Leaky ReRoPE replaces a distance d >= W by W + (d - W) / leak.

  Source: Su (2023), https://kexue.fm/archives/9708, without its scaling of
  queries, which is the attention scale `log_n`.

  Attributes:
    window: W, below which distances are kept.
    leak: None for ReRoPE.
  """

  window: int = 512
  leak: float | None = None

  formula = 'rope at distance min(d, W); leaky: W + (d - W) / leak from W on'
  source = 'https://kexue.fm/archives/9708'
  beyond = 'all are W; leaky: grow leak times as slowly'
  ranges = {**rotary.Rope.ranges, 'window': '>= 1', 'leak': 'None or >= 1'}

  @nn.nowrap
  def _rules(self, i: Array, j: Array) -> Iterator[Rule]:
    yield (i, j), (i, j), (-math.inf, self.window)
    if self.leak is None:
      far = jnp.full_like(i, self.window), jnp.zeros_like(j)
    else:
      shift = self.window * (self.leak - 1)
      far = (i + shift) / self.leak, j / self.leak
    yield far, (i, j), (self.window, math.inf)


class SelfExtend(_Bands):
  """SelfExtend: distances from `window` on are distances of groups.

  From W on, d = floor(i / G) - floor(j / G) + W - W / G.

  Source: Jin et al. (2024), arXiv:2401.01325, section 3.

  Attributes:
    window: W, below which distances are kept.
    group: G, number of positions that share one.
  """

  window: int = 1024
  group: int = 8

  formula = 'rope at d < W, else at floor(i/G) - floor(j/G) + W - W/G'
  source = 'arXiv:2401.01325'
  beyond = 'grow G times as slowly'
  translation_invariant = False
  ranges = {**rotary.Rope.ranges, 'window': '>= 1', 'group': '>= 1'}

  @nn.nowrap
  def _rules(self, i: Array, j: Array) -> Iterator[Rule]:
    yield (i, j), (i, j), (-math.inf, self.window)
    shift = self.window - self.window / self.group
    far = _quotient(i, self.group) + shift, _quotient(j, self.group)
    yield far, (i, j), (self.window, math.inf)


class DualChunk(_Bands):
  """Dual chunk attention: positions within chunks of n = chunk - window.

  Keys are at j mod n. Queries are at i mod n for keys of their own chunk, at
  min(i mod n + n, chunk) for the previous one, and at min(2 n - 1, chunk) for
  others. Distances below `window` are exact, and none exceeds `chunk`. Those to
  keys of later chunks, which only bidirectional attention has, are wrong.

  Source: An et al. (2024), arXiv:2402.17463, section 3, without its scaling of
  queries and keys.
  """

  chunk: int = 3072
  window: int = 512

  formula = 'rope at j mod n and, by chunk, i mod n, + n, 2n - 1; n = chunk - W'
  source = 'arXiv:2402.17463'
  beyond = 'none exceeds chunk'
  translation_invariant = False
  ranges = {
    **rotary.Rope.ranges,
    'window': '>= 1',
    'chunk': '> {0.window}',
  }

  @nn.nowrap
  def _rules(self, i: Array, j: Array) -> Iterator[Rule]:
    n = self.chunk - self.window
    chunks = _quotient(i, n), _quotient(j, n)
    i, j = jnp.mod(i, n), jnp.mod(j, n)
    yield (i, j), chunks, (-math.inf, 1)
    yield (jnp.minimum(i + n, self.chunk), j), chunks, (1, 2)
    far = jnp.full_like(i, min(2 * n - 1, self.chunk))
    yield (far, j), chunks, (2, math.inf)


class LmInfinite(_Bands):
  """LM-Infinite: the last W keys and the first `sinks`, at distances up to W.

  Source: Han et al. (2024), arXiv:2308.16137, section 4.

  Attributes:
    window: W, number of last positions that are visible.
    sinks: keys at positions below this stay visible, at distance W.
  """

  window: int = 4096
  sinks: int = 4

  formula = 'rope at min(d, W); d >= W is masked, except for the first keys'
  source = 'arXiv:2308.16137'
  beyond = 'masked'
  translation_invariant = False
  masks = True
  ranges = {**rotary.Rope.ranges, 'window': '>= 1', 'sinks': '>= 0'}

  @nn.nowrap
  def _rules(self, i: Array, j: Array) -> Iterator[Rule]:
    yield (i, j), (i, j), (-math.inf, self.window)
    far = jnp.full_like(i, self.window), jnp.zeros_like(j)
    # Far keys that are not sinks are in no band.
    sinks = jnp.where(j < self.sinks, j, math.inf)
    yield far, (i, sinks), (self.window, math.inf)


def _quotient(x: Array, n: int) -> jax.Array:
  """Returns floor(x / n).

  XLA multiplies by the reciprocal of a constant n, which may be off by one at
  multiples of n; the remainder is exact.
  """
  return jnp.round((x - jnp.mod(x, n)) / n)


def _by_head(positions: Array) -> jax.Array:
  """Returns positions as float32 `[1 or B, N, 1 or H]`."""
  positions = jnp.atleast_2d(positions).astype(jnp.float32)
  return positions.reshape(*positions.shape[:2], -1)
