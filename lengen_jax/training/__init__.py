"""Training: the loop, its state, checkpoints, and comparisons of runs."""

from typing import TYPE_CHECKING

from lengen_jax import submodules

if not TYPE_CHECKING:
  __getattr__ = submodules.lazy(__name__)
