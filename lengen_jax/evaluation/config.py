"""The eval section of a config: one frozen dataclass, fields listed once."""

import dataclasses
import numbers

from lengen_jax import errors, specs


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """What a trained model is tested on.

  Attributes:
    lengths: tokens per row. Of text, each divides the longest, and all score
      the same tokens; of prompts, prompt and answer together.
    batch_tokens: tokens per batch; the rows go down as the length goes up.
    windows: of text, windows of the longest length.
    examples: of prompts and pictures, how many at most; None for all.
  """

  lengths: tuple
  batch_tokens: int
  windows: int = 64
  examples: int | None = None

  def __post_init__(self) -> None:
    specs.check_types('eval', self)
    whole = all(isinstance(n, numbers.Integral) for n in self.lengths)
    if not (whole and self.lengths and min(self.lengths) >= 1):
      raise errors.ConfigError(
        'eval.lengths must be some whole numbers from 1 on, for example '
        f"'(64, 128)'; got {self.lengths}"
      )
    if len({*self.lengths}) < len(self.lengths):
      raise errors.ConfigError(
        f'eval.lengths has a length twice: {self.lengths}'
      )
    for field in ('batch_tokens', 'windows', 'examples'):
      value = getattr(self, field)
      if value is not None and value < 1:
        raise errors.ConfigError(
          f'eval.{field} must be at least 1, got {value}'
        )
