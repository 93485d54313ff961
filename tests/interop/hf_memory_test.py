"""Memory while `interop.hf` reads a checkpoint of several shards."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from lengen_jax.interop import hf
from lengen_jax.models import config as model_config
from lengen_jax.models import stacking

MIB = 2**20
_PEAK = """
import pathlib
import re
import sys

from lengen_jax.interop.hf import checkpoint

def peak():
  status = pathlib.Path('/proc/self/status').read_text()
  return 1024 * int(re.search('VmHWM: *(.*) kB', status)[1])

before = peak()
params, _ = checkpoint.load(sys.argv[1])
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_holds_the_model_and_one_shard(tmp_path):
  config = model_config.ModelConfig(
    vocab_size=4096,
    num_layers=8,
    num_heads=16,
    head_dim=64,
    width=1024,
    mlp_width=4096,
    encoding='rope',
    norm='rms',
    activation='swiglu',
    scaled_embedding=False,
    tied_embedding=False,
  )
  shapes, _ = stacking.abstract(config)
  params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)
  hf.save(tmp_path, params, config, shard_bytes=64 * MIB)
  index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
  size = index['metadata']['total_size']
  shards = [path.stat().st_size for path in tmp_path.glob('*.safetensors')]
  assert size > 500 * MIB and len(shards) > 8
  run = subprocess.run(
    [sys.executable, '-c', _PEAK, str(tmp_path)],
    capture_output=True,
    text=True,
    check=True,
  )
  # jax's own memory for tracing the model takes some of the rest.
  assert int(run.stdout) < size + max(shards) + 100 * MIB
