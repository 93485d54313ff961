"""Models with any position encoding. Submodules are imported on first use."""

import importlib
from typing import Any

_LAZY = {
  'DecoderLM': 'transformer',
  'Encoder': 'transformer',
  'EncoderDecoder': 'transformer',
  'ModelConfig': 'config',
  'cache': None,
  'config': None,
  'create': 'transformer',
  'layers': None,
  'presets': None,
  'stacking': None,
  'transformer': None,
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
  if name not in _LAZY:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'lengen_jax.models.{_LAZY[name] or name}')
  return getattr(module, name) if _LAZY[name] else module
