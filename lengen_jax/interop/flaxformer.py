"""Encodings inside Flaxformer's networks.

Flaxformer calls a bias the way T5X does, so that the class is T5X's:

    flaxformer.register()
    Decoder(shared_relative_position_bias_factory=functools.partial(
        t5x.RelativePositionBiases, encoding='fire', num_heads=12), ...)
"""

import importlib

from lengen_jax import errors
from lengen_jax.interop import t5x

_MODULE = 'flaxformer.components.relative_position_biases'


def register() -> None:
  """Lets Flaxformer accept `t5x.RelativePositionBiases`.

  Its networks refuse a bias that is no instance of their own classes; these are
  abstract ones, with which others can be registered. Calling it again does
  nothing.

  Raises:
    errors.ConfigError: Flaxformer is not installed.
  """
  try:
    theirs = importlib.import_module(_MODULE)
  except ModuleNotFoundError as error:
    if not (error.name or '').startswith('flaxformer'):
      raise
    raise errors.ConfigError(
      f'there is no {_MODULE}: install Flaxformer from its repository, '
      'github.com/google/flaxformer'
    ) from None
  for name in ('RelativeAttentionAPI', 'RelativePositionBiases'):
    getattr(theirs, name).register(t5x.RelativePositionBiases)
