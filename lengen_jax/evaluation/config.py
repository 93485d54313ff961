"""The eval section of a config."""

import dataclasses
import numbers

from lengen_jax import errors, specs


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Data for the evaluation of a trained model.

  Attributes:
    lengths: tokens per row. For text, each length divides the longest, and all
      lengths score the same tokens. For prompts, a row includes the answer.
    batch_tokens: tokens per batch; longer rows mean fewer rows.
    windows: for text, number of windows of the longest length.
    examples: maximum number of prompts or pictures; None for all.
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
      if (n := getattr(self, field)) is not None and n < 1:
        raise errors.ConfigError(f'eval.{field} must be at least 1, got {n}')
