"""Random parameters of models for tests, without compilation."""

import jax
import jax.numpy as jnp
import numpy as np


def fill(init, seed=0):
  """Returns a tree of distinct random values, shaped as the result of `init()`.

  Vectors and tables of encodings are positive, as KERPLE requires; the linear
  layers of encodings have both signs.
  """
  rng = np.random.default_rng(seed)

  def values(path, leaf):
    drawn = 0.3 * rng.standard_normal(leaf.shape, np.float32)
    names = [entry.key for entry in path]
    encodes = any(name.startswith('encoding') for name in names)
    linear = names[-1] in ('kernel', 'bias')
    return abs(drawn) if encodes and not linear else drawn

  return jax.tree_util.tree_map_with_path(values, jax.eval_shape(init))


def fill_model(init):
  """As `fill`, with factors whose initial value is 1 close to 1."""

  def shifted(path, leaf):
    near_1 = path[-1].key in ('scale', 'c', 'threshold_multiplier')
    return jnp.asarray(leaf + near_1)

  return jax.tree_util.tree_map_with_path(shifted, fill(init))
