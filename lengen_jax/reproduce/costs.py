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
from lengen_jax.training import loop, throughput
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib

# Assumed where a paper does not report its hardware.
_DEFAULT = (1, 'TPUv4')
_CHIPS = re.compile(r'(\d+) (TPUv\d)')
# Share of the peak that such training typically reaches.
_UTILISATION = 0.4
# By scale: operations per second of the machine it is for. Two cores of a cloud
# machine were measured in float32. For one H100, 0.3 of its peak is assumed.
_SPEED = {
  'small': 0.3 * throughput.PEAK_FLOPS['NVIDIA H100'],
  **dict.fromkeys(('hours', 'cpu'), 40e9),
}
SCALES = tuple(_SPEED)
# Seconds per run for compilation and testing, measured on those cores.
_OVERHEAD = 30
# Number of training steps that `remaining` times.
_TIMED_STEPS = 20


def hours(experiment: Experiment) -> dict[tuple[int, str], float]:
  """Returns {(number of chips, chip): hours} at scale `paper`.

  Finetuning may use other chips than pretraining.
  """
  found: dict[tuple[int, str], float] = collections.defaultdict(float)
  for part, runs, flops in _trained(experiment, 'paper'):
    match = _CHIPS.search(part.hardware or experiment.hardware)
    number, chip = (int(match[1]), match[2]) if match else _DEFAULT
    speed = (
      number
      * throughput.PEAK_FLOPS[chip.replace('TPUv', 'TPU v')]
      * _UTILISATION
    )
    found[number, chip] += runs * flops / speed / 3600
  return dict(found)


def minutes(experiment: Experiment, scale: str) -> float:
  """Returns the minutes of training at a smaller scale.

  They are minutes on one H100 for `small`, on two cores for `hours` and `cpu`,
  with half a minute per run for compilation and testing.
  """
  return (
    sum(
      runs * (_OVERHEAD + flops / _SPEED[scale])
      for _, runs, flops in _trained(experiment, scale)
    )
    / 60
  )


def remaining(
  all_parts: Sequence[parts.Part], request: parts.Request
) -> Iterator[str]:
  """Yields a line per part: the remaining training time, from timed steps.

  The first unfinished run of a part is timed. Parts without such runs have no
  line, nor have sweeps of generated tasks, which show their own time left.

  Raises:
    errors.FitError: a step needs more memory than a device has.
  """
  known: list[Results] = []
  for part in all_parts:
    if isinstance(part, parts.ConfiguredPart):
      if left := part.unfinished(request, known):
        run, steps = run_lib.Run(left[0]), left[0].train.steps
        seconds = _step_seconds(run)
        device = run.layout.mesh.devices.flat[0].device_kind
        yield (
          f'{part.name}: {len(left)} x {steps:,} steps to train, about '
          f'{len(left) * steps * seconds / 60:.0f} min at {seconds:.3g} s per '
          f'step of {runs_lib.name(runs_lib.of(left[0]))} on '
          f'{run.layout.size} x {device}; compiling and testing not included'
        )
      _, _, trained = part.prepared(request, known)
      known.append({'name': part.name, 'trained': trained})


def _step_seconds(run: run_lib.Run) -> float:
  """Returns the seconds of a training step."""
  shapes = run.abstract_batch()
  with loop.must_fit(run.layout), run.layout.scope():
    state = run.init_state()
    batch = jax.jit(
      lambda: {name: jnp.ones(x.shape, x.dtype) for name, x in shapes.items()},
      out_shardings=run.layout.batch,
    )()
    step = run.jitted_step(packed=False).lower(state, batch).compile()
    # The first step is slower.
    state, _ = jax.block_until_ready(step(state, batch))
    began = time.monotonic()
    # The same number in every process, since steps have collectives.
    for _ in range(_TIMED_STEPS):
      state, _ = step(state, batch)
    jax.block_until_ready(state)
  return (time.monotonic() - began) / _TIMED_STEPS


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
      seeds = experiment.seeds_at(scale)
      yield part, len(rows) * rates * len(seeds), operations(config)


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
