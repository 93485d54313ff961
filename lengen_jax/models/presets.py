"""Sizes of models, by name, as keyword arguments of `ModelConfig`."""

from typing import Any

from lengen_jax import errors
from lengen_jax.models.config import SIZES


def _sizes(*sizes: int, **fields: Any) -> dict[str, Any]:
  return dict(zip(SIZES, sizes, strict=True)) | fields


# Rows: vocab_size, num_layers, num_heads, head_dim, width, mlp_width.
PRESETS: dict[str, dict[str, Any]] = {
  # Seconds on a CPU, for tests.
  'tiny': _sizes(256, 2, 2, 16, 32, 64),
  # Minutes on a CPU.
  'cpu': _sizes(256, 3, 4, 32, 128, 512),
  # 125M: FIRE (arXiv:2310.04418), table 8, base.
  'base': _sizes(50304, 12, 12, 64, 768, 3072),
  # GPT-2 base, 117M: the language model of index warping.
  'gpt2': _sizes(50257, 12, 12, 64, 768, 3072),
  # 107M: the T5-style decoder of index warping and of Kazemnejad et al. (2023),
  # arXiv:2305.19466. The papers omit the vocabulary size; this one gives 107M.
  't5_decoder': _sizes(
    *(28672, 12, 12, 64, 768, 3072),
    norm='rms',
    activation='relu',
    scaled_logits=False,
  ),
  # Randomized encodings on real tasks: enwik8, and with
  # architecture='encoder_decoder' ImageNet.
  'enwik8': _sizes(256, 8, 8, 32, 256, 1024),
  # The Chomsky hierarchy: Ruoss et al. (2023), arXiv:2305.16843. The vocabulary
  # is that of the task.
  'chomsky': _sizes(
    *(256, 5, 8, 8, 64, 256),
    architecture='encoder',
    norm_placement='post',
    activation='relu',
    mlp_bias=True,
    dropout_rate=0.1,
  ),
  # 25M: addition with index hints, Zhou et al. (2024), arXiv:2402.09371. The
  # vocabulary is that of the task.
  'zhou': _sizes(
    *(256, 6, 8, 64, 512, 2048),
    norm='rms',
    norm_placement='both',
    activation='geglu',
  ),
  # 350M: FIRE, table 8, large. The table prints a width of 768, but only a
  # width of 1024 agrees with 16 heads of 64 and 350M parameters.
  'large': _sizes(50304, 24, 16, 64, 1024, 4096),
}


def get(name: str) -> dict[str, Any]:
  """Returns a new dict of the fields of a preset.

  Raises:
    errors.ConfigError: the name is unknown.
  """
  if name not in PRESETS:
    raise errors.ConfigError(errors.one_of('model preset', name, PRESETS))
  return dict(PRESETS[name])
