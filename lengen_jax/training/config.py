"""Sections of the configuration of training: frozen dataclasses."""

from collections.abc import Collection, Mapping
import dataclasses
import math
import numbers
from typing import Any, TypeVar

import ml_collections

from lengen_jax import errors, specs
from lengen_jax.data.config import DataConfig
from lengen_jax.evaluation.config import check_steps, EvalConfig
from lengen_jax.models.config import ModelConfig

OPTIMIZERS = ('adam', 'adamw')
SCHEDULES = ('constant', 'cosine', 'linear')
PARAM_DTYPES = ('float32', 'bfloat16')
# Scores of a generated task.
SCORES = ('accuracy', 'exact', 'loss')
# What a model reads before a target of a generated task.
READS = ('teacher_forcing', 'generation')


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """The optimizer, one of OPTIMIZERS, and its learning rate.

  Attributes:
    learning_rate: peak learning rate.
    schedule: one of SCHEDULES, after `warmup_steps` of linear warm-up.
    final_fraction: learning rate that the schedule has one step after the
      last, as a fraction of the peak; not used by the constant schedule.
    weight_decay: of AdamW; see `optimizer.decayed` for its mask.
    b1, b2: decay rates of the first and second moment.
    clip_norm: maximum global norm of the gradient; 0 for no clipping.
    encoding_rate: learning rate of the parameters of encodings, as a multiple
      of `learning_rate`.
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
  encoding_rate: float = 1.0

  def __post_init__(self) -> None:
    choices = {'name': OPTIMIZERS, 'schedule': SCHEDULES}
    _check('optimizer', self, fractions=('b1', 'b2'), **choices)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """The training loop.

  Attributes:
    steps: optimizer steps; 0 evaluates the initial model.
    log_every: steps per line of progress.
    checkpoint_every: steps between checkpoints; the last step is saved, too.
    keep_every: checkpoints of steps divisible by this are kept, besides the
      last two, the best one and those of `eval.steps`; 0 for none.
    evaluate_every: steps after which the next checkpoint is validated, and the
      best one kept; 0 for no validation.
    max_skipped: consecutive steps with a loss or gradient that is not finite
      after which training stops.
    stall_seconds: time without a completed step or batch of a validation, in
      seconds, after which the process ends and prints the stacks of its
      threads; 0 for no limit.
    tensorboard: also write metrics for TensorBoard.
    wandb: Weights & Biases project that receives the metrics; '' for none.
    profile: steps to profile, 'FIRST:LAST'; '' for none.
    init_from: weights to start from: the workdir of a run, a file written by
      lengen export, or the folder of a checkpoint of transformers; '' for
      none. The encodings may differ.
    param_dtype: one of PARAM_DTYPES. With 'bfloat16', the model's kernels, its
      token tables and their gradients are bfloat16, and the optimizer updates
      float32 values of those that are trained; see `groups`.
  """

  steps: int = 10000
  log_every: int = 10
  checkpoint_every: int = 1000
  keep_every: int = 0
  evaluate_every: int = 0
  max_skipped: int = 10
  stall_seconds: float = 1800.0
  tensorboard: bool = False
  wandb: str = ''
  profile: str = ''
  init_from: str = ''
  param_dtype: str = 'float32'

  def __post_init__(self) -> None:
    if self.init_from is None:
      raise errors.ConfigError(
        'the config lacks train.init_from; this config continues from trained '
        'weights: set --config.train.init_from to the workdir of a run or to '
        "other weights, or to '' to train from scratch"
      )
    positive = ('log_every', 'checkpoint_every', 'max_skipped')
    _check('train', self, positive, param_dtype=PARAM_DTYPES)

  def validates(self, step: int) -> bool:
    """Returns whether the model is validated at a step that is saved.

    It is validated at the first multiple of `checkpoint_every` at or after each
    multiple of `evaluate_every`, and at the last step if one of the last
    `checkpoint_every` steps is such a multiple. Other steps that are saved,
    such as those of `eval.steps`, are not validated.
    """
    every = self.evaluate_every
    is_saved = step == self.steps or step % self.checkpoint_every == 0
    if not every or not step or not is_saved:
      return False
    return step // every > (step - self.checkpoint_every) // every


@dataclasses.dataclass(frozen=True)
class TaskTrainConfig:
  """Training on a generated task; lengths are nominal.

  Attributes:
    min_length, max_length: range of the lengths of training, both included.
    steps: number of training steps.
    batch_size: rows per step of each model, for one learning rate and seed.
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
    _check('train', self, vars(self))


@dataclasses.dataclass(frozen=True)
class TaskEvalConfig:
  """Evaluation on a generated task.

  Attributes:
    lengths: nominal lengths, each once.
    examples: sequences per length.
    batch_tokens: maximum tokens per batch of each model, for one learning rate
      and seed. A batch has at least one sequence.
    buckets: number of widths that rows are padded to. Each is compiled once.
    dropout: whether dropout is on, as in the code of Ruoss et al. (2023).
    score: one of SCORES, by which runs are ranked.
    by: 'teacher_forcing', where a model reads the earlier targets, or
      'generation', where a decoder reads its own greedy answer and has no loss.
    operand_examples: number of sequences for the accuracy by the digits of both
      operands, of arithmetic tasks with two operands; 0 for none. Each
      operand has from one to the longest of `lengths` digits.
    steps: steps of training after which models are tested, beside the last.
  """

  lengths: tuple
  examples: int
  batch_tokens: int
  buckets: int
  dropout: bool = False
  score: str = 'accuracy'
  by: str = 'teacher_forcing'
  operand_examples: int = 0
  steps: tuple = ()

  def __post_init__(self) -> None:
    positive = ('examples', 'batch_tokens', 'buckets')
    _check('eval', self, positive, score=SCORES, by=READS)
    check_steps(self.steps)


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
    _check('sweep', self, batching=('auto', 'map', 'vmap'))
    whole = all(isinstance(seed, numbers.Integral) for seed in self.seeds)
    in_range = 0 <= min(self.seeds) <= max(self.seeds) < 2**32
    if not (whole and in_range and min(self.learning_rates) > 0):
      raise errors.ConfigError(
        'sweep.seeds must be integers from 0 to 2^32 - 1 and '
        'sweep.learning_rates above '
        f'0; got {tuple(self.seeds)} and {tuple(self.learning_rates)}'
      )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Sizes of the axes of the device mesh.

  Attributes:
    data: splits the rows of a batch; -1 for all remaining devices, or in a
      single process for as many of them as divide the batch.
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
    for axis, size in vars(self).items():
      if size < 1 and not (axis == 'data' and size == -1):
        rest = ', or -1 for all remaining devices' * (axis == 'data')
        raise errors.ConfigError(
          f'mesh.{axis} must be at least 1{rest}; got {size}'
        )

  def __str__(self) -> str:
    return ', '.join(f'mesh.{axis}={size}' for axis, size in vars(self).items())


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """The sections of the config of a run."""

  model: ModelConfig
  data: DataConfig
  eval: EvalConfig
  optimizer: OptimizerConfig
  mesh: MeshConfig
  train: TrainConfig


@dataclasses.dataclass(frozen=True)
class TaskConfig:
  """The sections of the config of a sweep over a generated task.

  `model` has the fields of ModelConfig without vocabulary and output size, and
  its encoding may be the name of a recurrent model.
  """

  model: dict[str, Any]
  optimizer: OptimizerConfig
  train: TaskTrainConfig
  eval: TaskEvalConfig
  sweep: SweepConfig


_Sections = TypeVar('_Sections', RunConfig, TaskConfig)
# Sections of the other kind of config, and advice.
_OTHER_KIND = {
  'sweep': 'of a sweep over a generated task; run it with lengen sweep',
  'data': 'of a model trained on data; run it with lengen train or lengen '
  'compare',
}


def check_run(config: ml_collections.ConfigDict) -> RunConfig:
  """Returns the sections of the config of a run; loads neither jax nor data.

  For `config` see `defaults.get`.

  Raises:
    errors.ConfigError: a field is missing, unknown or invalid.
  """
  sections = _read(RunConfig, config, {'positions': 1, 'seed': 1, 'paper': 0})
  seed = config.seed
  if not isinstance(seed, int) or not 0 <= seed < 2**32:
    raise errors.ConfigError(
      f'seed must be a whole number, at least 0 and below {2**32}, got {seed!r}'
    )
  return _check_last_step(RunConfig(**sections))


def check_task(config: ml_collections.ConfigDict) -> TaskConfig:
  """Returns the sections of a config such as that of configs/chomsky.py.

  Raises:
    errors.ConfigError: see `check_run`.
  """
  root = {'task': 1, 'positions': 1, 'paper': 1}
  return _check_last_step(TaskConfig(**_read(TaskConfig, config, root)))


def _check_last_step(found: _Sections) -> _Sections:
  """Returns sections whose `eval.steps` are steps of training."""
  if max(found.eval.steps, default=0) > found.train.steps:
    raise errors.ConfigError(
      f'eval.steps={found.eval.steps} has steps beyond the last one, '
      f'train.steps={found.train.steps}'
    )
  return found


def _read(
  cls: Any, config: ml_collections.ConfigDict, root: Mapping[str, int]
) -> dict[str, Any]:
  """Returns the sections of a config, the fields of the dataclass `cls`.

  `root` has the names of the fields outside sections, and whether each is
  required.
  """
  sections: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(cls)}
  # Names of fields by section, and whether each is required. The root comes
  # first: a missing section is reported before its fields.
  known: dict[str, Any] = {'': {**dict.fromkeys(sections, 1), **root}}
  for name, section in sections.items():
    # Code reads all fields of optimizer and train from the ConfigDict.
    whole = name in ('optimizer', 'train')
    fields = dataclasses.fields(ModelConfig if name == 'model' else section)
    known[name] = {
      field.name: field.default is dataclasses.MISSING or whole
      for field in fields
    }
    if name == 'model' and 'task' in root:
      # The task determines the vocabulary.
      del known[name]['vocab_size'], known[name]['output_size']
  for name, required in known.items():
    values = config[name] if name else config
    prefix = f'{name}.' if name else ''
    if not isinstance(values, ml_collections.ConfigDict):
      raise errors.ConfigError(f'{name} must be a section, got {values!r}')
    for key in values:
      if prefix + key in _OTHER_KIND and key not in required:
        raise errors.ConfigError(f'this is the config {_OTHER_KIND[key]}')
      if key not in required:
        valid = [prefix + field for field in required]
        raise errors.ConfigError(
          errors.one_of('field of the config', prefix + key, valid)
        )
    for key in sorted(key for key in required if required[key]):
      # Placeholders of required fields have the value None.
      empty = name not in ('', 'optimizer', 'train') and values.get(key) is None
      if key not in values or empty:
        raise errors.ConfigError(f'the config lacks {prefix}{key}')
  return {k: cls(**config[k].to_dict()) for k, cls in sections.items()}


def _check(
  section: str,
  config: Any,
  positive: Collection[str] = (),
  fractions: Collection[str] = (),
  **choices: tuple[str, ...],
) -> None:
  """Raises unless the fields of a section have their types and limits.

  Tuples must be distinct numbers. Fields in `positive` are at least 1, other
  numbers at least 0; `fractions` are less than 1. `choices` are valid values.
  """
  specs.check_types(section, config)
  for field, value in vars(config).items():
    label = f'{section}.{field}'
    if isinstance(value, tuple | list):
      are_numbers = all(isinstance(each, numbers.Real) for each in value)
      # A tuple may be empty if its default is.
      some = value or getattr(type(config), field, None) == ()
      if not (some and are_numbers and len({*value}) == len(value)):
        raise errors.ConfigError(
          f'{label} must be one or more distinct numbers, for example '
          f"'(1, 2)'; got {value!r}"
        )
    elif isinstance(value, numbers.Real):
      minimum, fraction = int(field in positive), field in fractions
      if not minimum <= float(value) < (1 if fraction else math.inf):
        raise errors.ConfigError(
          f'{label} must be at least {minimum}{" and below 1" * fraction}, got '
          f'{value}'
        )
    elif value not in choices.get(field, (value,)):
      raise errors.ConfigError(errors.one_of(label, value, choices[field]))
