"""Models with any position encoding. Submodules are imported on first use."""

from lengen_jax import submodules

# The submodules of further attributes.
_FROM = {
  'DecoderLM': 'transformer',
  'Encoder': 'transformer',
  'EncoderDecoder': 'transformer',
  'ModelConfig': 'config',
  'create': 'transformer',
}

__all__ = [
  *_FROM,
  *('cache', 'config', 'layers', 'presets', 'stacking', 'transformer'),
]
__getattr__ = submodules.lazy(__name__, _FROM)
