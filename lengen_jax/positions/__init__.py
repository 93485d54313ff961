"""Position schemes, which assign positions to tokens before the model runs."""

from lengen_jax import errors, specs
from lengen_jax.positions import (
  abacus,
  contextual,
  coupled,
  equal_mean,
  interpolated,
  parts,
  pose,
  randomized,
  shifted,
  standard,
  warped,
)
from lengen_jax.positions.base import (
  PositionScheme,
  segment_lengths,
  segment_positions,
)
from lengen_jax.positions.kinds import (
  Assigned,
  Distances,
  Parts,
  PerHead,
  Positions,
  take,
)
from lengen_jax.positions.tokens import Tokens

__all__ = [
  'SCHEMES',
  'Assigned',
  'Distances',
  'Parts',
  'PerHead',
  'PositionScheme',
  'Positions',
  'Tokens',
  'contextual',
  'create',
  'register',
  'segment_lengths',
  'segment_positions',
  'take',
]

SCHEMES = {
  'standard': standard.Standard,
  'interpolated': interpolated.Interpolated,
  'randomized': randomized.Randomized,
  'shape': shifted.Shape,
  'cape': shifted.Cape,
  'random_padding': shifted.RandomPadding,
  'head_warp': warped.HeadWarp,
  'tail_warp': warped.TailWarp,
  'head_tail_warp': warped.HeadTailWarp,
  'equal_mean': equal_mean.EqualMean,
  'pose': pose.Pose,
  'abacus': abacus.Abacus,
  'coupled': coupled.Coupled,
}


def register(name: str, scheme: type[PositionScheme]) -> None:
  """Registers a PositionScheme class under `name` for use in specs.

  Raises:
    errors.SpecError: not such a class, or the name is taken or not an
      identifier.
  """
  specs.register('position scheme', SCHEMES, name, scheme, PositionScheme)


def create(spec: str) -> PositionScheme:
  """Creates a position scheme from `name` or `name(key=value, ...)`.

  `first + second` is a scheme of two parts: the encoding at the input of a
  model gets the positions of `first`, those in attention get the positions of
  `second`.

  Raises:
    errors.SpecError: unknown name or key, or a value out of range.
  """
  both = specs.parts(spec)
  if len(both) == 2:
    return parts.TwoParts(*map(create, both))
  name, _ = specs.parse(specs.imported(spec))
  if name in contextual.CONTEXTUAL:
    raise errors.SpecError(
      f'{name} computes positions from contents, in each layer; set '
      f'contextual_positions={spec!r} of the model or the layer '
      f'(--config.model.contextual_positions={spec!r})'
    )
  if name not in SCHEMES:
    valid = [*SCHEMES, *contextual.CONTEXTUAL]
    hint = '; your own is written module:name'
    raise errors.SpecError(errors.one_of('position scheme', name, valid) + hint)
  return specs.build('position scheme', SCHEMES, spec)
