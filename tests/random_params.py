"""Parameters of models for tests, without compiling anything."""

import jax
import jax.numpy as jnp
import numpy as np


def fill(init, seed=0):
  """Random values for what `init()` would give, no two alike.

  Those of encodings are positive, as some want them.
  """
  rng = np.random.default_rng(seed)

  def values(path, leaf):
    drawn = 0.3 * rng.standard_normal(leaf.shape, np.float32)
    names = [entry.key for entry in path]
    encodes = any(name.startswith('encoding') for name in names)
    return abs(drawn) if encodes else drawn

  return jax.tree_util.tree_map_with_path(values, jax.eval_shape(init))


def fill_model(init):
  """As `fill`; factors that start at 1 are near 1."""

  def shifted(path, leaf):
    near_1 = path[-1].key in ('scale', 'c', 'threshold_multiplier')
    return jnp.asarray(leaf + near_1)

  return jax.tree_util.tree_map_with_path(shifted, fill(init))
