"""RoPE with positions mapped by bands of distance, to extend trained models.

A model with RoPE reads distances that it was trained on well, and others badly.
These encodings keep the distance of near pairs and map that of far ones into
the range of training, without parameters or training. Each band of distances
has its own positions of queries and keys, and each pair the logit of its band.

Shapes: B batch, Q queries, K keys, H heads, D head_dim.
"""

from collections.abc import Iterator
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.encodings import base, rotary
from lengen_jax.types import Array, Params

# Positions of queries `[1 or B, Q]` and keys `[1 or B, K]` in a band, and which
# pairs are in it, bool `[1 or B, Q, K]`; None for all.
Band = tuple[Array, Array, Array | None]
# Added to q k of pairs that are not visible.
_HIDDEN = -1e30


class _Bands(rotary.Rope):
  """Base: RoPE's logits at the positions of each pair's band."""

  needs_content = True
  at_decoding = 'nothing; keys are kept unrotated'
  _has_dynamic = False

  def bands(self, i: Array, j: Array) -> Iterator[Band]:
    """Yields the bands of queries at i and keys at j; later ones win."""
    raise NotImplementedError

  def rotate(self, q: Array, k: Array, *args: Any, **kwargs: Any) -> Any:
    """Returns queries and keys unchanged; `content_logits` rotates them."""
    return q, k

  def content_params(self) -> base.NamedLeaves | None:
    return {}

  @nn.nowrap
  def content_logits(
    self, params: Params, q: Array, k: Array, q_pos: Any, k_pos: Any
  ) -> jax.Array:
    i, j = (jnp.atleast_2d(p).astype(jnp.float32) for p in (q_pos, k_pos))
    plain = _products(q, k)
    logits = plain
    for q_position, k_position, within in self.bands(i, j):
      own = _products(
        self._rotate(q, q_position, None), self._rotate(k, k_position, None)
      )
      logits = (
        own if within is None else jnp.where(within[:, None], own, logits)
      )
    # Attention adds q k.
    return logits - plain


class Rerope(_Bands):
  """ReRoPE: distances from `window` on are `window`.

  Leaky ReRoPE maps a distance d from W on to W + (d - W) / leak.

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
  def bands(self, i: Array, j: Array) -> Iterator[Band]:
    if self.leak is None:
      yield jnp.full_like(i, self.window), jnp.zeros_like(j), None
    else:
      shift = self.window * (self.leak - 1)
      yield (i + shift) / self.leak, j / self.leak, None
    yield i, j, base.signed_distance(i, j) < self.window


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
  def bands(self, i: Array, j: Array) -> Iterator[Band]:
    shift = self.window - self.window / self.group
    yield jnp.floor(i / self.group) + shift, jnp.floor(j / self.group), None
    yield i, j, base.signed_distance(i, j) < self.window


class DualChunk(_Bands):
  """Dual chunk attention: positions within chunks of n = chunk - window.

  Keys are at j mod n. Queries are at i mod n for keys of their own chunk, at
  min(i mod n + n, chunk) for the previous one, and at min(2 n - 1, chunk) for
  others. Distances below `window` are exact, and none exceeds `chunk`.

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
  def bands(self, i: Array, j: Array) -> Iterator[Band]:
    n = self.chunk - self.window
    apart = base.signed_distance(jnp.floor(i / n), jnp.floor(j / n))
    i, j = jnp.mod(i, n), jnp.mod(j, n)
    yield jnp.full_like(i, min(2 * n - 1, self.chunk)), j, None
    yield jnp.minimum(i + n, self.chunk), j, apart == 1
    yield i, j, apart <= 0


class LmInfinite(Rerope):
  """LM-Infinite: the last `window` keys and the first `sinks`, at most W apart.

  Source: Han et al. (2024), arXiv:2308.16137, section 4.

  Attributes:
    window: W, number of last positions that are visible.
    sinks: number of first positions that stay visible, at distance W.
  """

  window: int = 4096
  sinks: int = 4

  formula = 'rope at min(d, W); d >= W is masked, except for the first keys'
  source = 'arXiv:2308.16137'
  beyond = 'masked'
  translation_invariant = False
  masks = True
  ranges = {**Rerope.ranges, 'sinks': '>= 0'}

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.leak is not None:
      raise errors.SpecError('lm_infinite has no leak; leave it out')

  @nn.nowrap
  def content_logits(
    self, params: Params, q: Array, k: Array, q_pos: Any, k_pos: Any
  ) -> jax.Array:
    content = super().content_logits(params, q, k, q_pos, k_pos)
    i, j = (jnp.atleast_2d(p).astype(jnp.float32) for p in (q_pos, k_pos))
    seen = base.signed_distance(i, j) < self.window
    seen |= j[:, None] < self.sinks
    return jnp.where(seen[:, None], content, _HIDDEN)


def _products(q_BxQxHxD: Array, k_BxKxHxD: Array) -> jax.Array:
  return jnp.einsum(
    'bqhd,bkhd->bhqk', q_BxQxHxD, k_BxKxHxD, preferred_element_type=jnp.float32
  )
