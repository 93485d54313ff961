"""Settings of all tests: strict shapes and two virtual CPU devices."""

import collections
import functools
import gc
import os
import pathlib
import sys
import tempfile

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Commands would start a device per core.
os.environ['JAX_NUM_CPU_DEVICES'] = '2'

import jax
from jax._src.interpreters import mlir
import numpy as np
import pytest

from configs import stdlib as stdlib_config
from lengen_jax import allocator
from lengen_jax.attention import blockwise
from lengen_jax.data import corpus as corpus_lib

allocator.reuse_memory()

# seqio is not built for other systems; see setup.py.
if sys.platform != 'linux':
  collect_ignore = ['data/seqio_test.py', 'training/papers_test.py']
# Tests spend most of their time in compilation, so XLA optimises less. Workers
# and subprocesses inherit the settings and share one compilation cache, which
# JAX_COMPILATION_CACHE_DIR keeps for the next run.
_cache = tempfile.TemporaryDirectory()
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', _cache.name)
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = '1'
jax.config.update(
  'jax_compilation_cache_dir', os.environ['JAX_COMPILATION_CACHE_DIR']
)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
jax.config.update('jax_disable_most_optimizations', True)
_flags = '--xla_cpu_parallel_codegen_split_count=1'
# Compilation takes three times as long with the newer emitters, which jax 0.12
# requires.
_compiles_fast = jax.__version_info__ < (0, 11)
if _compiles_fast:
  _flags += ' --xla_cpu_use_fusion_emitters=false'
os.environ.setdefault('XLA_FLAGS', _flags)
# jax makes an MLIR context for each program and keeps it. One for all programs
# saves a tenth of the CPU time and two thirds of the memory.
mlir.make_ir_context = functools.cache(mlir.make_ir_context)
# Programs stay in jax's caches: collecting their many objects finds nothing.
gc.set_threshold(200_000, 20, 20)
# An array of lower rank is never silently broadcast.
jax.config.update('jax_numpy_rank_promotion', 'raise')


# A worker runs whole files: a long one that starts last leaves the others idle.
_FIRST = (
  *('aot/v4_test.py', 'aot/pods_test.py'),
  *('docs_test.py', 'training/kill_test.py', 'attention/fused_test.py'),
  *('testing_test.py', 'data/encode_test.py', 'models/transformer_test.py'),
  *('tasks/base_test.py', 'reproduce/run_test.py', 'training/papers_test.py'),
  *('attention/blockwise_test.py', 'evaluation/generation_test.py'),
  *('cli_test.py', 'training/task_trainer_test.py', 'interop/t5x_test.py'),
  *('training/warm_start_test.py', 'training/loop_test.py'),
  *('training/compare_test.py', 'training/sweep_test.py'),
  *('training/state_test.py', 'training/faults_test.py'),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """Moves long files to the front and marks cases slow.

  All but every nth case of tests marked some(n) are slow. Where compilation is
  slow, a quarter as many cases of every test are quick, and tests marked
  `one_jax` are slow.
  """
  folder = pathlib.Path(__file__).parent
  places = {folder / name: n for n, name in enumerate(_FIRST)}
  items.sort(key=lambda item: places.get(item.path, len(places)))
  seen = collections.Counter()
  for item in items:
    mark = item.get_closest_marker('some')
    # Targets of the Makefile run all tests with one of these marks.
    if any(map(item.get_closest_marker, ('slow', 'aot', 'peers'))):
      continue
    if item.get_closest_marker('one_jax') and not _compiles_fast:
      item.add_marker(pytest.mark.slow)
      continue
    test, _, _ = item.nodeid.partition('[')
    step = mark.args[0] if mark else 1
    if seen[test] % (step if _compiles_fast else 4 * step):
      item.add_marker(pytest.mark.slow)
    seen[test] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure():
  """Excludes jax's many objects from pytest's last garbage collections."""
  gc.freeze()


@pytest.fixture
def assert_close():
  """Compares trees within a tolerance relative to the largest entry."""

  def check(got, want, tolerance=1e-5):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    for g, w in zip(got, want, strict=True):
      g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
      assert g.shape == w.shape
      assert np.isfinite(g).all()
      scale = max(1e-30, np.abs(w).max(initial=0))
      assert np.abs(g - w).max(initial=0) <= tolerance * scale

  return check


@pytest.fixture
def tiny_config():
  """The smallest configuration of the standard library, with one layer."""
  config = stdlib_config.get_config('tiny')
  config.model.num_layers = 1
  return config


@pytest.fixture(scope='session')
def corpus():
  """The corpus of the standard library, read once."""
  return corpus_lib.read_stdlib()


@pytest.fixture
def traced_anew():
  """Attention is not traced by an earlier test, nor is its trace kept."""
  blockwise._compiled.clear_cache()
  yield
  blockwise._compiled.clear_cache()
