"""Position schemes of two parts: for the input of a model and for attention."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax

from lengen_jax import errors
from lengen_jax.positions import base, kinds
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class TwoParts(base.PositionScheme):
  """The scheme `first + second`, which returns Parts.

  The encoding at the input of a model gets the positions of `first`, those in
  attention get the positions of `second`. Both draw independently.
  """

  first: base.PositionScheme
  second: base.PositionScheme

  def __call__(
    self,
    segment_positions: Array,
    *,
    rng: jax.Array | None = None,
    num_layers: int | None = None,
    **given: Any,
  ) -> kinds.Assigned:
    def call(
      scheme: base.PositionScheme,
      rng: jax.Array | None,
      num_layers: int | None,
    ) -> Any:
      return scheme(segment_positions, rng=rng, num_layers=num_layers, **given)

    return self.by_part(call, rng, num_layers)

  def __str__(self) -> str:
    return f'{self.first} + {self.second}'

  @property
  def at_input(self) -> base.PositionScheme:
    return self.first

  @property
  def in_attention(self) -> base.PositionScheme:
    return self.second

  def by_part(
    self,
    call: Callable[..., kinds.Positions],
    rng: jax.Array | None,
    num_layers: int | None,
  ) -> kinds.Parts:
    # The input is one layer.
    at_input: Any = call(self.first, rng, 1)
    if rng is not None:
      rng = jax.random.fold_in(self.checked_key(rng), 1)
    in_attention: Any = call(self.second, rng, num_layers)
    if self.second.needs_roles:
      if len(in_attention) > 1:
        raise errors.ConfigError(
          f'{self.second} has {len(in_attention)} rows of positions; attention '
          'takes one'
        )
      in_attention = in_attention[0]
    return kinds.Parts(at_input, in_attention)

  def limit(self, train: bool) -> int | None:
    limits = self.first.limit(train), self.second.limit(train)
    return min((one for one in limits if one is not None), default=None)

  @property
  def random(self) -> bool:
    return self.first.random or self.second.random

  @property
  def random_at_test(self) -> bool:
    return self.first.random_at_test or self.second.random_at_test

  @property
  def standard_at_test(self) -> bool:
    return self.first.standard_at_test and self.second.standard_at_test

  @property
  def same_rows(self) -> bool:
    return all(
      one.same_rows or not one.random for one in (self.first, self.second)
    )

  @property
  def needs_lengths(self) -> bool:
    return self.first.needs_lengths or self.second.needs_lengths

  @property
  def needs_tokens(self) -> bool:
    return self.first.needs_tokens or self.second.needs_tokens

  @property
  def needs_roles(self) -> bool:
    return self.first.needs_roles or self.second.needs_roles

  @property
  def takes_chunks(self) -> bool:
    return self.first.takes_chunks or self.second.takes_chunks

  @property
  def contiguous(self) -> bool:
    return self.second.contiguous
