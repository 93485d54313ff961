"""Abacus positions: the place of each digit in its number."""

import dataclasses

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.positions import base
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Abacus(base.PositionScheme):
  """p = 1 + k, 2 + k, ... at the digits of a number, and 0 at other tokens.

  A number is a run of digits within a segment. k is uniform in {0 ..
  max_offset} per segment in training, and 0 at test time. With the least
  significant digit first, digits of equal significance have equal positions.

  Source: McLeish et al. (2024), arXiv:2405.17399, section 3.1; the official
  code draws one k per batch.

  Attributes:
    digits: ids of the digits.
    max_offset: the largest k.
  """

  digits: tuple = tuple(range(4, 14))
  max_offset: int = 99

  formula = 'p = place in a run of digits + k, 0 at other tokens'
  source = 'arXiv:2405.17399'
  test_time = 'k = 0'
  at_decoding = 'nothing; positions follow the tokens'
  needs_tokens = True
  random = True
  ranges = {'max_offset': '>= 0'}

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.digits or not all(
      type(one) is int and one >= 0 for one in self.digits
    ):
      raise errors.SpecError(
        f'digits of abacus is {self.digits!r}; it must be token ids, such as '
        '(4, 5, 6)'
      )

  def extent(self, length: int, train: bool) -> int:
    return length + 1 + (self.max_offset if train else 0)

  def draw(
    self,
    rng: jax.Array,
    i: Array,
    lengths: Lengths,
    tokens: Array | None = None,
    segment_ids: Array | None = None,
  ) -> Draws:
    count = jnp.full(i.shape, self.max_offset + 1)
    offset = base.per_token(base.below, rng, i.shape, count)
    return {'offset': base.per_segment(offset, i)}

  def apply(
    self,
    draws: Draws,
    i: Array,
    *,
    lengths: Lengths = None,
    tokens: Array | None = None,
    segment_ids: Array | None = None,
  ) -> Array:
    place = self.at_test(i, lengths, tokens, segment_ids)
    return jnp.where(place > 0, place + draws['offset'], 0)

  def at_test(
    self,
    i: Array,
    lengths: Lengths,
    tokens: Array | None = None,
    segment_ids: Array | None = None,
  ) -> Array:
    first_BxL = i == 0
    if segment_ids is not None:
      first_BxL |= base.segment_positions(segment_ids) == 0
    is_digit_BxL = jnp.isin(tokens, jnp.asarray(self.digits))
    column_BxL = jax.lax.broadcasted_iota(jnp.int32, i.shape, 1)
    # The last token before the number: another token, or the border.
    before_BxL = jnp.where(first_BxL, column_BxL - 1, -1)
    before_BxL = jnp.where(is_digit_BxL, before_BxL, column_BxL)
    before_BxL = jax.lax.cummax(before_BxL, axis=1)
    return column_BxL - before_BxL
