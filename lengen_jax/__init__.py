"""lengen_jax: train short, test long.

Position encodings, position schemes and logit scales for Transformers in JAX
and Flax, with tools to train them on short sequences, run them on long ones and
compare them on the same tokens.

Subpackages load on first use: `import lengen_jax` itself loads neither jax nor
TensorFlow nor matplotlib.
"""

import importlib
from typing import Any

__version__ = '0.1.0'

_SUBMODULES = (
  'analysis',
  'attention',
  'data',
  'encodings',
  'errors',
  'evaluation',
  'interop',
  'models',
  'positions',
  'reproduce',
  'tasks',
  'specs',
  'testing',
  'training',
)

__all__ = ['__version__', *_SUBMODULES]


def __getattr__(name: str) -> Any:
  if name in _SUBMODULES:
    return importlib.import_module(f'lengen_jax.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted([*globals(), *_SUBMODULES])
