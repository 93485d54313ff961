"""Tests `lengen_jax/allocator.py`."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import resource
import numpy as np
from lengen_jax import allocator

print(allocator.reuse_memory())
for _ in range(2):
  np.ones(2**23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
  np.ones(2**23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
  'CS_GNU_LIBC_VERSION' not in getattr(os, 'confstr_names', ()),
  reason='the C library is not glibc',
)
@pytest.mark.parametrize(
  'variable, applies',
  [
    ('', True),
    ('LENGEN_ALLOCATOR=system', False),
    ('MALLOC_ARENA_MAX=4', False),
  ],
)
def test_freed_memory_is_reused(variable, applies):
  name, _, value = variable.partition('=')
  environ = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith(('MALLOC_', 'GLIBC_TUNABLES', 'LENGEN_ALLOCATOR'))
  }
  # Pages of 4 KiB only.
  run = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    env=environ | {'NUMPY_MADVISE_HUGEPAGE': '0', name or '_': value},
    capture_output=True,
    text=True,
    check=True,
  )
  printed, faults = run.stdout.split()
  assert printed == str(applies)
  # Each of ten arrays has 16,384 pages.
  assert int(faults) < 1000 if applies else int(faults) > 100_000
