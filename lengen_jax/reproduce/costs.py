"""Estimates of what an experiment costs, in advance and by timed steps.

Training takes 6 N + 6 L n d operations per token, for N parameters of matrix
products, L layers of width d and rows of n tokens, of which a query attends to
half on average. The estimate omits testing, and treats encoder-decoders and
recurrent networks like decoders. The cost of models that several experiments
share is included in each experiment.
"""

import collections
from collections.abc import Iterator, Sequence
import re
import time

import jax
import jax.numpy as jnp

from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import Experiment, Results
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import throughput

# Peak bfloat16 operations per second of a chip.
_PEAK = {'TPUv4': 275e12, 'TPUv2': 46e12}
# Assumed where a paper does not report its hardware.
_DEFAULT = (1, 'TPUv4')
_CHIPS = re.compile(r'(\d+) (TPUv\d)')
# Share of the peak that such training typically reaches.
_UTILISATION = 0.4
# By scale: operations per second of the machine it is for. Two cores of a cloud
# machine were measured in float32. For one H100, 0.3 of its peak is assumed.
_SPEED = {'small': 0.3 * throughput.PEAK_FLOPS['NVIDIA H100'], 'cpu': 40e9}
# Seconds per run for compilation and testing, measured on those cores.
_OVERHEAD = 30
# Seconds of training steps that `remaining` times.
_TIMED = 30


def hours(experiment: Experiment) -> dict[tuple[int, str], float]:
  """Returns {(number of chips, chip): hours} at scale `paper`.

  Finetuning may use other chips than pretraining.
  """
  found: dict[tuple[int, str], float] = collections.defaultdict(float)
  for part, runs, flops in _trained(experiment, 'paper'):
    match = _CHIPS.search(part.hardware or experiment.hardware)
    number, chip = (int(match[1]), match[2]) if match else _DEFAULT
    speed = number * _PEAK[chip] * _UTILISATION
    found[number, chip] += runs * flops / speed / 3600
  return dict(found)


def minutes(experiment: Experiment, scale: str) -> float:
  """Returns the minutes at scale `cpu` on two cores, or `small` on one H100."""
  return (
    sum(
      runs * (_OVERHEAD + flops / _SPEED[scale])
      for _, runs, flops in _trained(experiment, scale)
    )
    / 60
  )


def remaining(
  all_parts: Sequence[parts.Part], request: parts.Request
) -> str | None:
  """Returns a line with the time that training takes, by timed steps.

  Half a minute of steps of the first unfinished run has the speed, operations
  per second, that is assumed for all. Compilation, testing, and sweeps of
  generated tasks, which show their own time left, are not included. Returns
  None if all runs are finished.
  """
  known: list[Results] = []
  left: list[parts.Config] = []
  for part in all_parts:
    if isinstance(part, parts.ConfiguredPart):
      folder, configs = part.unfinished(request, known)
      known.append({'name': part.name, 'trained': folder})
      left += configs
  if not left:
    return None
  flops, steps, seconds = sum(map(operations, left)), *_time_steps(left[0])
  speed = operations(left[0]) / left[0].train.steps * steps / seconds
  name = runs_lib.name(runs_lib.of(left[0]))
  device = jax.devices()[0].device_kind
  return (
    f'{len(left)} runs to train, about {flops / speed / 60:.0f} min by '
    f'{steps} timed steps of {name}, {seconds / steps:.3g} s each '
    f'({jax.device_count()} x {device}); testing comes on top'
  )


def _time_steps(config: parts.Config) -> tuple[int, float]:
  """Returns a number of training steps and the seconds they took."""
  run = run_lib.Run(config)
  state, shapes = run.init_state(), run.abstract_batch()
  batch = jax.jit(
    lambda: {name: jnp.ones(x.shape, x.dtype) for name, x in shapes.items()},
    out_shardings=run.layout.batch,
  )()
  with run.layout.scope():
    step = run.jitted_step(packed=False).lower(state, batch).compile()
  # The first step is slower.
  state, _ = jax.block_until_ready(step(state, batch))
  began, steps = time.monotonic(), 0
  while not steps or time.monotonic() - began < _TIMED:
    state, _ = jax.block_until_ready(step(state, batch))
    steps += 1
  return steps, time.monotonic() - began


def _trained(
  experiment: Experiment, scale: str
) -> Iterator[tuple[parts.ConfiguredPart, int, float]]:
  """Yields (part, number of runs, operations of each) of trained parts."""
  request = parts.Request(scale, (0,), (), 'runs', '')
  for part in experiment.parts:
    trains = isinstance(part, parts.ConfiguredPart) and part.kind != 'timing'
    if trains and scale in part.scales:
      config = part.make_config(request)
      rows = [row for row in part.rows_at(scale) if not row.trained_as]
      rates = len(config.sweep.learning_rates) if 'sweep' in config else 1
      yield part, len(rows) * rates * len(experiment.seeds), operations(config)


def operations(config: parts.Config) -> float:
  """Returns the floating-point operations of training one run."""
  model, train = config.model, config.train
  inner = model.width
  if 'head_dim' in model:
    inner = model.num_heads * model.head_dim
  layer = 4 * model.width * inner + 2 * model.width * model.mlp_width
  parameters = model.num_layers * layer
  parameters += model.width * model.get('vocab_size', 0)
  # Rows of a generated task hold inputs and answers.
  length, rows = train.get('max_length'), train.get('batch_size')
  if 'data' in config:
    length, rows = config.data.train_length, config.data.batch_size
  per_token = 6 * parameters + 6 * model.num_layers * length * inner
  return train.steps * rows * length * per_token
