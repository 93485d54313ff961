"""What hints of several modules say, by name."""

import os
from typing import Any

import jax
import numpy as np

# What functions take; what they give is a jax.Array unless they say otherwise.
Array = jax.Array | np.ndarray
# A tree of arrays: the parameters of a module, or of a part of it.
Params = Any
PathLike = str | os.PathLike[str]
