"""Type aliases of several modules."""

import os
from typing import Any

import jax
import numpy as np

# Argument type. Functions return jax.Array unless annotated otherwise.
Array = jax.Array | np.ndarray
# Tree of arrays: the parameters of a module or of a part of it.
Params = Any
PathLike = str | os.PathLike[str]
