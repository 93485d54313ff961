"""Coupled positions: tokens with the same role have the same position."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.positions import base
from lengen_jax.positions.base import Draws, Lengths
from lengen_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Coupled(base.PositionScheme):
  """p = s + role at tokens with a role >= 0, and 0 at other tokens.

  Roles come from a task: digits of equal significance in an addition have the
  same role. Each segment and each row of roles has its own start s. In training
  it is uniform in {1 .. max_position - 1 - m}, where m is the largest role of
  the segment; at test time s = 1.

  Source: Cho et al. (2024), arXiv:2405.20671, section 3; several rows:
  arXiv:2410.15787, section 4.
  """

  max_position: int | None = None

  formula = 'p = s + role, 0 at tokens without a role'
  source = 'arXiv:2405.20671'
  test_time = 's = 1'
  at_decoding = 'the roles of all tokens'
  needs_roles = True
  random = True
  ranges = {'max_position': '>= 2'}

  def limit(self, train: bool) -> int | None:
    # Tokens may share a role.
    return None

  def extent(self, length: int, train: bool) -> int:
    return self.max_position

  def draw(
    self, rng: jax.Array, i: Array, lengths: Lengths, roles: Any = None
  ) -> Draws:
    self._check(roles)
    starts_BxL = base.segment_starts(i)
    largest = jax.vmap(
      lambda roles_L, starts_L: jax.ops.segment_max(
        roles_L, starts_L, num_segments=len(starts_L)
      )
    )

    def start(rng: jax.Array, roles_BxL: Array) -> jax.Array:
      last_BxL = jnp.maximum(largest(roles_BxL, starts_BxL), 0)
      count_BxL = jnp.maximum(self.max_position - 1 - last_BxL, 1)
      below_BxL = base.per_token(base.below, rng, i.shape, count_BxL)
      return 1 + base.per_segment(below_BxL, i)

    keys = [jax.random.fold_in(rng, row) for row in range(len(roles))]
    rows = [start(*both) for both in zip(keys, roles, strict=True)]
    return {'start': jnp.stack(rows)}

  def apply(
    self, draws: Draws, i: Array, *, lengths: Lengths = None, roles: Any = None
  ) -> Array:
    return jnp.where(roles >= 0, draws['start'] + roles, 0)

  def at_test(self, i: Array, lengths: Lengths, roles: Any = None) -> Array:
    self._check(roles)
    return self.apply({'start': jnp.ones((), jnp.int32)}, i, roles=roles)

  def _check(self, roles: Any) -> None:
    """Checks that roles have positions, unless they are traced."""
    if isinstance(roles, jax.core.Tracer):
      return
    largest = int(np.asarray(roles).max(initial=-1))
    if 1 + largest >= self.max_position:
      raise errors.LengthError(
        f'{self} has no position for role {largest}; set max_position='
        f'{largest + 2} or more'
      )
