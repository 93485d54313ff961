"""What an experiment costs: an estimate, from what its configs compute.

Training counts 6 N + 6 L n d operations per token, for N parameters that
multiply, L layers of width d and rows of n tokens of which half are seen;
testing is left out, which is little where models are trained for long, and so
is what an encoder-decoder or a recurrent network has otherwise. What other
experiments share is counted anew.
"""

import collections
import functools
import re

from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce import run
from lengen_jax.reproduce import settings

# Operations a second in bfloat16, of a chip. What a paper names no hardware for
# is put in TPUv4.
_PEAK = {'TPUv4': 275e12, 'TPUv2': 46e12}
_CHIPS = re.compile(r'(\d+) (TPUv\d)')
# The part of it that training of this kind reaches.
_UTILISATION = 0.4
# As measured on two cores of a cloud machine: operations a second in float32,
# and what compiling and testing takes, per run.
_CPU, _OVERHEAD = 40e9, 30


def hours(experiment):
  """Hours at scale `paper` by what they are spent on, {(number, kind): hours}.

  Finetuning may have other chips than what it starts from.
  """
  found = collections.Counter()
  for part, runs, flops in _trained(experiment, 'paper'):
    hardware = getattr(part, 'hardware', '') or experiment.hardware
    match = _CHIPS.search(hardware)
    number, kind = (int(match[1]), match[2]) if match else (1, 'TPUv4')
    speed = number * _PEAK[kind] * _UTILISATION
    found[number, kind] += runs * flops / speed / 3600
  return dict(found)


def minutes(experiment):
  """Minutes at scale `cpu` on two cores."""
  return (
    sum(
      runs * (_OVERHEAD + flops / _CPU)
      for _, runs, flops in _trained(experiment, 'cpu')
    )
    / 60
  )


def _trained(experiment, scale):
  """(part, runs, operations of each) of the parts that train."""
  found = []
  for part in experiment.parts:
    kinds = (
      experiment_lib.Curves,
      experiment_lib.Sweep,
      experiment_lib.Answers,
    )
    if isinstance(part, kinds) and scale in part.scales:
      config = _config(part, scale)
      rows = [r for r in settings.rows(part, scale) if not r.trained_as]
      rates = len(config.sweep.learning_rates) if 'sweep' in config else 1
      runs = len(rows) * rates * len(experiment.seeds)
      found.append((part, runs, operations(config)))
  return found


def operations(config):
  """Floating-point operations of the training of one run."""
  model, train = config.model, config.train
  inner = (
    model.num_heads * model.head_dim if 'head_dim' in model else (model.width)
  )
  multiplied = model.num_layers * (
    4 * model.width * inner + 2 * model.width * model.mlp_width
  ) + model.width * model.get('vocab_size', 0)
  if 'data' in config:
    length, rows = config.data.train_length, config.data.batch_size
  else:
    # Rows of a generated task are as long as inputs and answers together.
    length, rows = train.max_length, train.batch_size
  per_token = 6 * multiplied + 6 * model.num_layers * length * inner
  return train.steps * rows * length * per_token


@functools.cache
def _config(part, scale):
  """The config of a part at a scale, whatever its data."""
  return run.RUNNERS[type(part)].make_config(
    part, settings.Request(scale, (0,), (), 'runs', '')
  )
