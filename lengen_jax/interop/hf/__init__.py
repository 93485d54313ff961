"""Checkpoints in the format of Hugging Face's transformers, in and out.

A folder holds config.json and model.safetensors, or several shards and their
model.safetensors.index.json. `load` reads a folder as parameters and a
ModelConfig, and `save` writes one. `families` lists the supported
architectures. No code from a checkpoint is run.

These functions import jax on first use; config files read config.json
without it.
"""

import importlib
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
  from lengen_jax.interop.hf.checkpoint import check_folder, load, save

__all__ = ['check_folder', 'load', 'save']


def __getattr__(name: str) -> Any:
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module('lengen_jax.interop.hf.checkpoint')
  return getattr(module, name)
