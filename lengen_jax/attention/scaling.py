"""Logit scales: a factor on the attention logits of each query.

The third knob beside encodings and position schemes.
"""

from flax import linen as nn

from lengen_jax import errors
from lengen_jax import specs


class LogitScale(nn.Module):
  """Base of all logit scales; by itself it scales nothing.

  Attributes:
    num_heads: attention heads, H.
  """

  num_heads: int

  formula = 'logits unchanged'
  source = ''
  # Needs the true length of each sequence, planned while decoding.
  length_dependent = False

  def __call__(self, index_in_segment, *, lengths=None):
    """The factor of each query.

    Args:
      index_in_segment: int32 `[B, Q]`, index of each query in its segment.
      lengths: int32 `[B, 1]` or `[B, Q]`, the length of each segment.

    Returns:
      float32 `[B, Q]` or `[B, Q, H]`; None for no scaling.
    """
    del index_in_segment, lengths
    return None


SCALES = {'none': LogitScale}


def register(name, scale):
  """Adds a LogitScale class under `name`, so that specs can name it."""
  if not (isinstance(scale, type) and issubclass(scale, LogitScale)):
    raise errors.SpecError(
      f'{scale!r} is no class derived from scaling.LogitScale'
    )
  specs.register('attention scale', SCALES, name, scale)


def create(spec, *, num_heads, **module):
  """Creates a logit scale from a spec.

  Args:
    spec: `name` or `name(key=value, ...)`.
    num_heads: attention heads.
    **module: `name` and `parent`, as any linen module takes them.

  Raises:
    errors.SpecError: unknown name or key, or a value out of range.
  """
  return specs.build(
    'attention scale', SCALES, spec, num_heads=num_heads, **module
  )
