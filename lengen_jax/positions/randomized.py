"""Randomized positions: an increasing random subset of a longer range."""

import dataclasses

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.positions import base


@dataclasses.dataclass(frozen=True)
class Randomized(base.PositionScheme):
  """A sorted random sample, without replacement, of 0 .. max_position - 1.

  A segment of n tokens gets n distinct positions, every subset being equally
  likely, drawn anew for each batch: at test time too, unless `test` is 'even',
  which spaces them evenly over the range.

  Source: Ruoss et al. (2023), arXiv:2305.16843, section 3; even spacing at test
  time: Su (2023).

  Attributes:
    max_position: size of the range, at least the longest length ever used.
    test: 'random' or 'even', the positions at test time.
  """

  max_position: int | None = None
  test: str = 'random'

  formula = 'p = sorted sample of {0 .. max_position - 1}'
  source = 'arXiv:2305.16843'
  needs_lengths = True
  random = True

  def __post_init__(self):
    if self.max_position is None or self.max_position < 1:
      raise errors.SpecError(
        'randomized needs max_position, the size of the range that positions '
        f'are drawn from; got {self.max_position}'
      )
    if self.test not in ('random', 'even'):
      raise errors.SpecError(
        errors.one_of('test of randomized', self.test, ['random', 'even'])
      )

  @property
  def random_at_test(self):
    return self.test == 'random'

  def draw(self, rng, segment_positions, lengths):
    """A uniform n-subset per segment, all segments at once.

    Sorted distinct x_0 < ... < x_{n-1} below P correspond to the multiset
    y_t = x_t - t of m = P - n + 1 values. A uniform multiset is drawn by
    Polya's urn: token t takes a new value with probability m / (m + t) and
    else repeats the value of an earlier token chosen uniformly. Each token
    needs but one random number, so padding and packing change nothing.
    """
    t = segment_positions
    start = base.segment_starts(t)
    m = self.max_position - jnp.clip(lengths, 1, self.max_position) + 1
    keys = base.token_keys(rng, t.shape)
    urn = jax.vmap(jax.vmap(lambda k, n: jax.random.randint(k, (), 0, n)))(
      keys, m + t
    )
    index = start + t
    source = jnp.where(urn < m, index, start + urn - m)
    for _ in range(max(1, (t.shape[1] - 1).bit_length())):
      source = jnp.take_along_axis(source, source, axis=1)
    value = jnp.take_along_axis(urn, source, axis=1)
    # Sort within each segment; padding behind its end stays behind.
    group = 2 * start + (t >= lengths)
    _, value = jax.lax.sort((group, value), dimension=1, num_keys=2)
    positions = jnp.clip(value + t, 0, self.max_position - 1)
    return {'positions': positions.astype(jnp.int32)}

  def apply(self, draws, segment_positions, *, lengths=None):
    return draws['positions']

  def at_test(self, segment_positions, lengths):
    """floor(t (P - 1) / (n - 1)), in whole numbers without overflow."""
    t = segment_positions
    gaps = jnp.maximum(lengths - 1, 1)
    step, rest = jnp.divmod(self.max_position - 1, gaps)
    positions = t * step + self._quotient(t, rest, gaps)
    return jnp.clip(positions, 0, self.max_position - 1)

  def _quotient(self, t, rest, gaps):
    """floor(t rest / gaps) for rest < gaps, bit by bit of t.

    The product itself may exceed 32 bits.
    """
    quotient = remainder = jnp.zeros_like(t)
    for bit in reversed(range(self.max_position.bit_length())):
      remainder = 2 * remainder
      carry = remainder >= gaps
      quotient = 2 * quotient + carry
      remainder = remainder - gaps * carry + rest * (t >> bit & 1)
      carry = remainder >= gaps
      quotient = quotient + carry
      remainder = remainder - gaps * carry
    return quotient
