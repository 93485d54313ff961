"""Evaluation: loss and scores of trained models at any length."""

from typing import TYPE_CHECKING

from lengen_jax import submodules

if not TYPE_CHECKING:
  __getattr__ = submodules.lazy(__name__)
