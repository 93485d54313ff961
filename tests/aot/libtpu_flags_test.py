"""Tests that libtpu takes the flags of tpu_scripts/env.sh.

It ends the process for a flag that it does not know: each has its own.
"""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.aot
ENV_SH = pathlib.Path(__file__).parents[2] / 'tpu_scripts/env.sh'
LOAD = """
from jax.experimental import topologies
found = topologies.get_topology_desc(platform='tpu', topology_name='v4:2x2x1')
print(len(found.devices), 'devices')
"""
# Or it looks for the machine's own TPU, and for one process at a time.
ALONE = {
  'TPU_SKIP_MDS_QUERY': '1',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_ACCELERATOR_TYPE': 'v4-8',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'JAX_PLATFORMS': 'cpu',
}


def shipped(slices):
  """The flags for that many slices."""
  said = subprocess.run(
    ['bash', '-c', f'. {ENV_SH}; echo "$LIBTPU_INIT_ARGS"'],
    env={'PATH': os.environ['PATH'], 'SLICES': str(slices)},
    capture_output=True,
    text=True,
    check=True,
  )
  return said.stdout.split()


def load(flags):
  """Loads libtpu with flags, in a process of its own."""
  return subprocess.run(
    [sys.executable, '-c', LOAD],
    env=os.environ | ALONE | {'LIBTPU_INIT_ARGS': ' '.join(flags)},
    capture_output=True,
    text=True,
    timeout=300,
  )


def test_flags_that_are_shipped():
  assert not shipped(1)
  flags = shipped(2)
  assert flags
  assert not any('xla_enable_async_all_gather' in flag for flag in flags)
  done = load(flags)
  assert done.returncode == 0, done.stderr[-1000:]
  assert done.stdout == '8 devices\n'


def test_flags_that_are_unknown():
  done = load([*shipped(2), '--xla_tpu_no_such_flag=true'])
  assert done.returncode != 0
  assert 'xla_tpu_no_such_flag' in done.stdout + done.stderr
