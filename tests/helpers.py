"""Functions and constants that several test files share."""

import functools
import os
import pathlib
import socket

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import models
from lengen_jax.data import windows
from lengen_jax.models import presets, stacking

ROOT = pathlib.Path(__file__).parents[1]
GOLDEN = ROOT / 'tests' / 'golden'
# Logical axis names of parameters; `partitioning` maps them to mesh axes.
AXES = {'vocab', 'embed', 'mlp', 'heads', 'kv', 'joined_kv', 'relpos_buckets'}


class Killed(BaseException):
  """Stands for the end of the process."""


def kill_at_step(patch, step):
  """Makes the training batch of a step raise Killed."""
  original = windows.TrainingWindows.batch

  def batch(self, at):
    if at == step:
      raise Killed
    return original(self, at)

  patch.setattr(windows.TrainingWindows, 'batch', batch)


def free_address():
  """Returns the address of a free port of this machine."""
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    return f'localhost:{probe.getsockname()[1]}'


def without_git_settings():
  """Returns the environment without settings of git, such as hooks."""
  kept = {k: v for k, v in os.environ.items() if not k.startswith('GIT_')}
  return {**kept, 'GIT_CONFIG_GLOBAL': os.devnull, 'GIT_CONFIG_NOSYSTEM': '1'}


def pair_environments(environment):
  """Returns the environment of each of two processes of one run."""
  address = free_address()
  return [
    {
      **environment,
      'JAX_COORDINATOR_ADDRESS': address,
      'JAX_NUM_PROCESSES': '2',
      'JAX_PROCESS_ID': str(number),
    }
    for number in range(2)
  ]


def tiny_model(**fields):
  """Returns the configuration of the preset `tiny` with some fields changed."""
  return models.ModelConfig(**(presets.get('tiny') | fields))


def random_params(init, seed=0):
  """Returns distinct random values, shaped as the result of `init()`.

  Nothing is compiled. Vectors and tables of encodings are positive, as KERPLE
  requires; linear layers of encodings have both signs.
  """
  rng = np.random.default_rng(seed)

  def values(path, leaf):
    drawn = 0.3 * rng.standard_normal(leaf.shape, np.float32)
    names = [entry.key for entry in path]
    encodes = any(name.startswith('encoding') for name in names)
    linear = names[-1] in ('kernel', 'bias')
    return abs(drawn) if encodes and not linear else drawn

  return jax.tree_util.tree_map_with_path(values, jax.eval_shape(init))


@functools.cache
def _initial(config, seed):
  params = random_params(lambda: stacking.init(config, jax.random.key(0)), seed)
  for leaf in jax.tree.leaves(params):
    leaf.flags.writeable = False
  return params


@functools.cache
def _params_of(config):
  def shifted(path, leaf):
    near_1 = path[-1].key in ('scale', 'c', 'threshold_multiplier')
    return jnp.asarray(leaf + near_1)

  return jax.tree_util.tree_map_with_path(shifted, _initial(config, 0))


def initial(config, seed=0):
  """Returns random parameters of a model, as read-only numpy arrays."""
  return _with_own_dicts(_initial(config, seed))


def params_of(config):
  """Returns random parameters of a model, with scales close to 1."""
  return _with_own_dicts(_params_of(config))


def _with_own_dicts(params):
  """Returns dicts that a test may change; the arrays are shared."""
  return jax.tree.map(lambda leaf: leaf, params)


def assert_same(got, want):
  """Asserts that two trees have equal arrays."""
  jax.tree.map(np.testing.assert_array_equal, got, want)


def shapes(tree):
  """Returns {path: shape} of a tree of arrays."""
  return {
    '/'.join(entry.key for entry in path): leaf.shape
    for path, leaf in jax.tree.leaves_with_path(tree)
  }


def rows(count, length):
  """Returns `count` rows of positions 0, 1, ... `length - 1`."""
  return jnp.tile(jnp.arange(length), (count, 1))
