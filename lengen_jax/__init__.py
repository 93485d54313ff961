"""lengen_jax: train short, test long.

Position encodings, position schemes and logit scales for Transformers in JAX
and Flax, with tools to train them on short sequences, run them on long ones and
compare them on the same tokens.

Subpackages load on first use: `import lengen_jax` itself loads neither jax nor
TensorFlow nor matplotlib.
"""

from lengen_jax import submodules

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


__getattr__ = submodules.lazy(__name__)


def __dir__() -> list[str]:
  return sorted([*globals(), *_SUBMODULES])
