"""Estimates of what an experiment costs.

Training takes 6 N + 6 L n d operations per token, for N parameters of matrix
products, L layers of width d and rows of n tokens, of which a query attends to
half on average. The estimate omits testing, and treats encoder-decoders and
recurrent networks like decoders. The cost of models that several experiments
share is included in each experiment.
"""

import collections
from collections.abc import Iterator
import re

from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import Experiment

# Peak bfloat16 operations per second of a chip.
_PEAK = {'TPUv4': 275e12, 'TPUv2': 46e12}
# Assumed where a paper does not report its hardware.
_DEFAULT = (1, 'TPUv4')
_CHIPS = re.compile(r'(\d+) (TPUv\d)')
# Share of the peak that such training typically reaches.
_UTILISATION = 0.4
# Measured on two cores of a cloud machine: float32 operations per second, and
# seconds per run for compilation and testing.
_CPU, _OVERHEAD = 40e9, 30


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


def minutes(experiment: Experiment) -> float:
  """Returns the minutes at scale `cpu` on two cores."""
  trained = _trained(experiment, 'cpu')
  return sum(n * (_OVERHEAD + flops / _CPU) for _, n, flops in trained) / 60


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
