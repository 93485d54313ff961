"""Encodings inside Flaxformer's networks.

Flaxformer calls a bias as T5X does, so the class for T5X works in Flaxformer:

    flaxformer.register()
    Decoder(shared_relative_position_bias_factory=functools.partial(
        t5x.RelativePositionBiases, encoding='fire', num_heads=12), ...)
"""

import importlib

from lengen_jax import errors
from lengen_jax.interop import t5x

_MODULE = 'flaxformer.components.relative_position_biases'


def register() -> None:
  """Registers `t5x.RelativePositionBiases` with Flaxformer's abstract classes.

  Flaxformer's networks accept only instances of these classes. Repeated calls
  have no effect.

  Raises:
    errors.ConfigError: Flaxformer is not installed.
  """
  try:
    module = importlib.import_module(_MODULE)
  except ModuleNotFoundError as error:
    if not (error.name or '').startswith('flaxformer'):
      raise
    raise errors.ConfigError(
      f'{_MODULE} is not installed; install Flaxformer from its repository, '
      'github.com/google/flaxformer'
    ) from None
  for name in ('RelativeAttentionAPI', 'RelativePositionBiases'):
    getattr(module, name).register(t5x.RelativePositionBiases)
