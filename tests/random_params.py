"""Parameters of models for tests, without compiling anything."""

import jax
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
