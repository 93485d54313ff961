"""The eval section of a config."""

import dataclasses
import math
import numbers

from lengen_jax import errors, specs

# Least temperature and top_p: smaller ones underflow in float32.
_LEAST = 1e-30


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Data for the evaluation of a trained model.

  Attributes:
    lengths: tokens per row. For text, each length divides the longest, and all
      lengths score the same tokens. For prompts, a row includes the answer.
    batch_tokens: tokens per batch; longer rows mean fewer rows.
    windows: for text, number of windows of the longest length.
    steps: for text, steps of training whose models lengen compare evaluates
      too; their checkpoints are kept.
    examples: maximum number of prompts or pictures; None for all.
    temperature: for prompts, 0 for greedy decoding; else answers are sampled
      from softmax(logits / temperature).
    top_p: for prompts, sampling is from the most probable tokens whose
      probabilities add up to at least `top_p`; see `generation.sample`.
  """

  lengths: tuple
  batch_tokens: int
  windows: int = 64
  steps: tuple = ()
  examples: int | None = None
  temperature: float = 0.0
  top_p: float = 1.0

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
    check_steps(self.steps)
    for field in ('batch_tokens', 'windows', 'examples'):
      if (n := getattr(self, field)) is not None and n < 1:
        raise errors.ConfigError(f'eval.{field} must be at least 1, got {n}')
    check_sampling('eval.', self.temperature, self.top_p)


def check_steps(steps: tuple) -> None:
  """Raises errors.ConfigError if steps are not ascending from 1 on."""
  whole = all(isinstance(n, int) and n >= 1 for n in steps)
  if not whole or [*steps] != sorted({*steps}):
    raise errors.ConfigError(
      'eval.steps must be ascending whole numbers from 1 on, such as '
      f"'(250, 500, 1000)'; got {steps}"
    )


def check_sampling(prefix: str, temperature: float, top_p: float) -> None:
  """Raises errors.ConfigError if answers cannot be sampled with the options."""
  samples = math.isfinite(temperature) and temperature >= _LEAST
  if temperature != 0 and not samples:
    raise errors.ConfigError(
      f'{prefix}temperature must be 0 for greedy decoding, or positive and at '
      f'least {_LEAST}; got {temperature}'
    )
  if not _LEAST <= top_p <= 1:
    raise errors.ConfigError(
      f'{prefix}top_p must be above 0 and at most 1, and at least {_LEAST}; '
      f'got {top_p}'
    )
  if top_p < 1 and not temperature:
    raise errors.ConfigError(
      f'{prefix}top_p={top_p} requires sampling: {prefix}temperature above 0'
    )
