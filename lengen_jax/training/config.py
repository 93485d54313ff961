"""Sections of the configuration of training: frozen dataclasses."""

from collections.abc import Mapping
import dataclasses
import math
import numbers
from typing import Any

from lengen_jax import errors, specs

OPTIMIZERS = ('adam', 'adamw')
SCHEDULES = ('constant', 'cosine', 'linear')
# Scores of a generated task.
SCORES = ('accuracy', 'exact', 'loss')


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """The optimizer and the schedule of its learning rate.

  Attributes:
    name: 'adam' or 'adamw'.
    learning_rate: peak learning rate.
    schedule: 'constant', 'cosine' or 'linear', after the warm-up.
    warmup_steps: steps of linear warm-up.
    final_fraction: learning rate at the last step, as a fraction of the peak;
      not used by the constant schedule.
    weight_decay: of AdamW; see `optimizer.decayed` for its mask.
    b1: decay rate of the first moment.
    b2: decay rate of the second moment.
    clip_norm: maximum global norm of the gradient; 0 for no clipping.
  """

  name: str = 'adamw'
  learning_rate: float = 6e-4
  schedule: str = 'cosine'
  warmup_steps: int = 0
  final_fraction: float = 0.03
  weight_decay: float = 0.01
  b1: float = 0.9
  b2: float = 0.99
  clip_norm: float = 1.0

  def __post_init__(self) -> None:
    least = {
      'learning_rate': 0,
      'warmup_steps': 0,
      'final_fraction': 0,
      'weight_decay': 0,
      'b1': 0,
      'b2': 0,
      'clip_norm': 0,
    }
    _check('optimizer', self, least, below={'b1': 1, 'b2': 1})
    _check_choice('optimizer.name', self.name, OPTIMIZERS)
    _check_choice('optimizer.schedule', self.schedule, SCHEDULES)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """The training loop.

  Attributes:
    steps: optimizer steps; 0 evaluates the initial model.
    log_every: steps per line of progress.
    checkpoint_every: steps between checkpoints.
    keep_every: checkpoints of steps divisible by this are kept; 0 to keep only
      the last two.
    evaluate_every: steps after which the next checkpoint is validated, and the
      best one kept; 0 for no validation.
    max_skipped: consecutive steps with a loss or gradient that is not finite
      after which training stops.
    stall_seconds: time without a completed step, in seconds, after which
      training stops and prints its stack; 0 for no limit.
    tensorboard: also write metrics for TensorBoard.
    wandb: Weights & Biases project that receives the metrics; '' for none.
    profile: steps to profile, 'FIRST:LAST'; '' for none.
    init_from: weights to start from: the workdir of a run, a file written by
      lengen export, or the folder of a Llama checkpoint; '' for none. The
      encodings may differ.
  """

  steps: int = 10000
  log_every: int = 10
  checkpoint_every: int = 1000
  keep_every: int = 0
  evaluate_every: int = 0
  max_skipped: int = 10
  stall_seconds: float = 1800
  tensorboard: bool = False
  wandb: str = ''
  profile: str = ''
  init_from: str = ''

  def __post_init__(self) -> None:
    if self.init_from is None:
      raise errors.ConfigError(
        'the config lacks train.init_from; this config continues from trained '
        'weights: set --config.train.init_from to the workdir of a run or to '
        "other weights, or to '' to train from scratch"
      )
    least = {
      'steps': 0,
      'log_every': 1,
      'checkpoint_every': 1,
      'keep_every': 0,
      'evaluate_every': 0,
      'max_skipped': 1,
      'stall_seconds': 0,
    }
    _check('train', self, least)


@dataclasses.dataclass(frozen=True)
class TaskTrainConfig:
  """Training on a generated task.

  Attributes:
    min_length: least nominal length.
    max_length: greatest nominal length.
    steps: optimizer steps.
    batch_size: rows per step of one run.
    buckets: number of widths that rows are padded to. Each is compiled once.
    log_every: steps per line of progress.
    checkpoint_every: steps between checkpoints.
  """

  min_length: int
  max_length: int
  steps: int
  batch_size: int
  buckets: int
  log_every: int
  checkpoint_every: int

  def __post_init__(self) -> None:
    _check('train', self, {f.name: 1 for f in dataclasses.fields(self)})


@dataclasses.dataclass(frozen=True)
class TaskEvalConfig:
  """Evaluation on a generated task.

  Attributes:
    lengths: nominal lengths, each once.
    examples: sequences per length.
    batch_tokens: maximum tokens per batch of one run.
    buckets: number of widths that rows are padded to. Each is compiled once.
    dropout: whether dropout is on, as in the code of Ruoss et al. (2023).
    score: the score that runs are ranked by: 'accuracy', 'exact' or 'loss'.
  """

  lengths: tuple
  examples: int
  batch_tokens: int
  buckets: int
  dropout: bool = False
  score: str = 'accuracy'

  def __post_init__(self) -> None:
    _check_values('eval.lengths', self.lengths)
    _check(
      'eval', self, dict.fromkeys(('examples', 'batch_tokens', 'buckets'), 1)
    )
    _check_choice('eval.score', self.score, SCORES)


@dataclasses.dataclass(frozen=True)
class SweepConfig:
  """The runs of a sweep.

  Attributes:
    runs: 'encoding|positions|attention_scale; ...'; see `runs.parse`.
    learning_rates: factors of the optimizer's updates, each once.
    seeds: seeds from 0 to 2^32 - 1, each once.
    batching: 'vmap' trains all points of a run together, 'map' one per device.
      'auto' is 'map' on CPUs and 'vmap' elsewhere.
  """

  runs: str
  learning_rates: tuple
  seeds: tuple = (0, 1, 2)
  batching: str = 'auto'

  def __post_init__(self) -> None:
    _check_values('sweep.seeds', self.seeds)
    _check_values('sweep.learning_rates', self.learning_rates)
    _check('sweep', self, {})
    _check_choice('sweep.batching', self.batching, ('auto', 'map', 'vmap'))
    if (
      min(self.seeds) < 0
      or max(self.seeds) >= 2**32
      or not min(self.learning_rates) > 0
    ):
      raise errors.ConfigError(
        'sweep.seeds must be from 0 to 2^32 - 1 and sweep.learning_rates above '
        f'0; got {tuple(self.seeds)} and {tuple(self.learning_rates)}'
      )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Sizes of the axes of the device mesh.

  Attributes:
    data: splits the rows of a batch. -1 for all remaining devices; with a
      single process, for as many of them as divide the batch.
    fsdp: splits rows and parameters; parameters are gathered when used.
    tensor: splits heads, hidden units and vocabulary.
    sequence: splits the tokens of a row.
  """

  data: int = -1
  fsdp: int = 1
  tensor: int = 1
  sequence: int = 1

  def __post_init__(self) -> None:
    specs.check_types('mesh', self)
    for axis, size in dataclasses.asdict(self).items():
      if size < 1 and not (axis == 'data' and size == -1):
        rest = ', or -1 for all remaining devices' * (axis == 'data')
        raise errors.ConfigError(
          f'mesh.{axis} must be at least 1{rest}; got {size}'
        )

  def fits(self, devices: int) -> bool:
    """Returns whether `devices` devices can form this mesh."""
    fixed = self.fsdp * self.tensor * self.sequence
    if self.data == -1:
      return devices % fixed == 0
    return self.data * fixed <= devices

  def __str__(self) -> str:
    sizes = dataclasses.asdict(self).items()
    return ', '.join(f'mesh.{axis}={size}' for axis, size in sizes)


def _check(
  section: str,
  config: Any,
  least: Mapping[str, float],
  below: Mapping[str, float] | None = None,
) -> None:
  """Raises unless fields have their types and lie within their limits."""
  specs.check_types(section, config)
  for field, minimum in least.items():
    value, limit = getattr(config, field), (below or {}).get(field, math.inf)
    if not minimum <= value < limit:
      rest = '' if limit == math.inf else f' and below {limit}'
      raise errors.ConfigError(
        f'{section}.{field} must be at least {minimum}{rest}, got {value}'
      )


def _check_choice(name: str, value: str, valid: tuple[str, ...]) -> None:
  if value not in valid:
    raise errors.ConfigError(errors.one_of(name, value, valid))


def _check_values(name: str, values: Any) -> None:
  """Raises unless the values are distinct numbers, at least one."""
  if not isinstance(values, tuple | list) or not all(
    isinstance(value, numbers.Real) for value in values
  ):
    raise errors.ConfigError(
      f"{name} takes numbers, for example '(1, 2)'; got {values!r}"
    )
  if not values or len({*values}) < len(values):
    raise errors.ConfigError(
      f'{name} must be one or more distinct numbers; got {tuple(values)}'
    )
