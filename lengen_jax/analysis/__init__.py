"""Analysis: tables, plots and pages from results."""

from typing import TYPE_CHECKING

from lengen_jax import submodules

if not TYPE_CHECKING:
  __getattr__ = submodules.lazy(__name__)
