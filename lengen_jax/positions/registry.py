"""Registry of position schemes, and construction from a spec."""

from lengen_jax import specs
from lengen_jax.positions import (
  base,
  equal_mean,
  interpolated,
  randomized,
  shifted,
  standard,
  warped,
)

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
}


def register(name: str, scheme: type[base.PositionScheme]) -> None:
  """Registers a PositionScheme class under `name` for use in specs."""
  specs.register('position scheme', SCHEMES, name, scheme, base.PositionScheme)


def create(spec: str) -> base.PositionScheme:
  """Creates a position scheme from `name` or `name(key=value, ...)`.

  Raises:
    errors.SpecError: unknown name or key, or a value out of range.
  """
  return specs.build('position scheme', SCHEMES, spec)
