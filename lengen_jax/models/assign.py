"""Positions that a scheme assigns to the tokens of a batch, for a model."""

from typing import Any

import jax

from lengen_jax import encodings
from lengen_jax.models import blocks
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import Assigned, Parts, PositionScheme
from lengen_jax.types import Array


def assign(
  config: ModelConfig,
  scheme: PositionScheme,
  index: Array,
  *,
  lengths: Array,
  rng: jax.Array | None,
  train: bool,
  equal_rows: bool,
  roles: Array | None = None,
  **seen: Any,
) -> Assigned:
  """Returns the positions of a batch, `scheme(index, ...)`.

  Args:
    config: a ModelConfig.
    scheme: a position scheme.
    index: int32 `[B, L]`, index of each token in its segment.
    lengths: int32, broadcastable to `[B, L]`; see PositionScheme.
    rng: a key; see PositionScheme.
    train: whether the batch is for training.
    equal_rows: whether all rows have the same index and lengths. Positions that
      are then equal in all rows are computed for one row.
    roles: int32 `[R, B, L]`, or None. With several rows of roles, the encoding
      at the input gets several rows of positions.
    **seen: `tokens`, `segment_ids` and `chunks`; see PositionScheme.

  Raises:
    errors.LengthError: a position is beyond the table of an encoding.
    errors.CombinationError: an encoding does not take as many rows of roles.
  """
  for encoding in blocks.distinct_encodings(config):
    encodings.check_extent(encoding, scheme, index.shape[1], train)
    if roles is not None:
      encodings.check_roles(encoding, scheme, len(roles))

  def call(
    part: PositionScheme, rng: jax.Array | None, num_layers: int | None
  ) -> Any:
    shared = equal_rows and not (part.needs_tokens or part.needs_roles)
    shared &= part.same_rows or not part.draws(train)
    return part(
      index[:1] if shared else index,
      lengths=lengths[:1] if shared else lengths,
      roles=roles,
      rng=rng,
      train=train,
      num_layers=num_layers,
      **seen,
    )

  found: Any = scheme.by_part(call, rng, config.num_layers)
  if scheme.in_attention.needs_roles and not isinstance(found, Parts):
    # Encodings in attention that use positions have one row of roles.
    found = Parts(found, found[0])
  return found
