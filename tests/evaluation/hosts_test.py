"""Tests evaluation by several processes, each with a device of its own."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests import helpers

_PROCESS = """
import json
import sys

import jax

number, count, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if count > 1:
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(address, count, number)

import numpy as np

from lengen_jax import data, positions
from lengen_jax.data import vocabulary
from lengen_jax.evaluation import config as eval_config
from lengen_jax.evaluation import generation, length_curve
from lengen_jax.models import ModelConfig, presets, stacking
from lengen_jax.training import sharding
from lengen_jax.training.config import MeshConfig

draw = np.random.default_rng(0).integers
corpus = data.Corpus(
  {'validation': [draw(0, 256, 200)]}, vocabulary.Bytes(offset=0), {}
)
# 24 windows of 8 in batches of 10: the last one is filled up.
windows = corpus.evaluation(eval_config.EvalConfig((8, 64), 80, windows=3))
config = ModelConfig(**presets.get('tiny'), encoding='fire')
params = stacking.init(config, jax.random.key(0))
layout = sharding.Layout.create(MeshConfig(), 2)
scheme = positions.create('standard')
params = jax.device_put(params, layout.whole)
curve = length_curve.run(
  config, scheme, params, windows, batch_tokens=80, seed=0, layout=layout
)
losses = [[one.loss, *one.window_loss] for one in curve]
writer = generation.Generator(
  config, scheme, max_new=6, end_id=-1, batch_tokens=64, seed=0, layout=layout
)
prompts = [draw(0, 256, size) for size in (3, 9, 5)]
written = [ids.tolist() for ids in writer.run(params, prompts)]
rows = layout.host
print(json.dumps({'losses': losses, 'written': written, 'host': rows}))
"""


def run(count):
  """What each of some processes gives."""
  address = helpers.free_address()
  root = pathlib.Path(__file__).parents[2]
  processes = [
    subprocess.Popen(
      [sys.executable, '-c', _PROCESS, str(number), str(count), address],
      env={
        **os.environ,
        'JAX_PLATFORMS': 'cpu',
        'JAX_NUM_CPU_DEVICES': str(2 // count),
        'PYTHONPATH': str(root),
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for number in range(count)
  ]
  found = []
  for process in processes:
    output, problems = process.communicate(timeout=240)
    assert process.returncode == 0, problems
    found.append(json.loads(output.splitlines()[-1]))
  return found


@pytest.mark.slow
def test_two_hosts_find_what_one_does():
  """Losses are summed over hosts before dividing, rows counted once."""
  (alone,) = run(1)
  pair = run(2)
  assert [found['host'] for found in pair] == [[0, 2], [1, 2]]
  for found in pair:
    np.testing.assert_allclose(found['losses'], alone['losses'], rtol=1e-6)
    assert found['written'] == alone['written']
