"""Functions and constants that several test files share."""

from collections.abc import Callable
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, models
from lengen_jax.models import presets, stacking

ROOT = pathlib.Path(__file__).parents[1]
GOLDEN = ROOT / 'tests' / 'golden'
# Logical axis names of parameters; `partitioning` maps them to mesh axes.
AXES = {'vocab', 'embed', 'mlp', 'heads', 'kv', 'joined_kv', 'relpos_buckets'}


class Killed(BaseException):
  """Stands for the end of the process."""


def kill_at(patch, owner, name, call):
  """Makes the nth call of `owner.name` raise Killed; n counts from 1."""
  original, calls = getattr(owner, name), []

  def function(*args, **kwargs):
    calls.append(args)
    if len(calls) == call:
      raise Killed
    return original(*args, **kwargs)

  patch.setattr(owner, name, function)


def message_of(error, function: Callable, *args, **kwargs):
  """Returns the message of the error that the call must raise."""
  with pytest.raises(error) as caught:
    function(*args, **kwargs)
  return str(caught.value)


def golden(*path):
  """Loads an archive of tests/golden."""
  return np.load(GOLDEN.joinpath(*path))


def encoding(spec, num_heads=2, head_dim=8, **kwargs):
  return encodings.create(
    spec, num_heads=num_heads, head_dim=head_dim, **kwargs
  )


def tiny_model(**fields):
  """Returns the configuration of the preset `tiny` with some fields changed."""
  return models.ModelConfig(**(presets.get('tiny') | fields))


def random_params(init, seed=0):
  """Returns random values in the shapes of `init()`, without compiling it.

  All values differ. Those of encodings are positive, as some require.
  """
  rng = np.random.default_rng(seed)

  def values(path, leaf):
    drawn = 0.3 * rng.standard_normal(leaf.shape, np.float32)
    names = [entry.key for entry in path]
    encodes = any(name.startswith('encoding') for name in names)
    return abs(drawn) if encodes else drawn

  return jax.tree_util.tree_map_with_path(values, jax.eval_shape(init))


def params_of(config, seed=0):
  """Returns random parameters of a model."""
  return random_params(lambda: stacking.init(config, jax.random.key(0)), seed)


def shapes(tree):
  """Returns {path: shape} of a tree of arrays."""
  return {
    '/'.join(entry.key for entry in path): leaf.shape
    for path, leaf in jax.tree.leaves_with_path(tree)
  }


def rows(count, length):
  """Returns `count` rows of positions 0, 1, ... `length - 1`."""
  return jnp.tile(jnp.arange(length), (count, 1))
