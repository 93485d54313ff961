"""Sizes of models, by name, as keyword arguments of `ModelConfig`."""

from typing import Any

from lengen_jax import errors

PRESETS: dict[str, dict[str, Any]] = {
  # Seconds on a CPU, for tests.
  'tiny': dict(
    vocab_size=256,
    num_layers=2,
    num_heads=2,
    head_dim=16,
    width=32,
    mlp_width=64,
  ),
  # Minutes on a CPU.
  'cpu': dict(
    vocab_size=256,
    num_layers=3,
    num_heads=4,
    head_dim=32,
    width=128,
    mlp_width=512,
  ),
  # 125M: FIRE (arXiv:2310.04418), table 8, base.
  'base': dict(
    vocab_size=50304,
    num_layers=12,
    num_heads=12,
    head_dim=64,
    width=768,
    mlp_width=3072,
  ),
  # 117M, as GPT-2 base is called: the language model of index warping.
  'gpt2': dict(
    vocab_size=50257,
    num_layers=12,
    num_heads=12,
    head_dim=64,
    width=768,
    mlp_width=3072,
  ),
  # 107M: the T5-style decoder of index warping and of Kazemnejad et al. (2023),
  # arXiv:2305.19466. The vocabulary is not given; this one makes it 107M.
  't5_decoder': dict(
    vocab_size=28672,
    num_layers=12,
    num_heads=12,
    head_dim=64,
    width=768,
    mlp_width=3072,
    norm='rms',
    activation='relu',
    scaled_logits=False,
  ),
  # Randomized encodings on real tasks: enwik8, and with
  # architecture='encoder_decoder' ImageNet.
  'enwik8': dict(
    vocab_size=256,
    num_layers=8,
    num_heads=8,
    head_dim=32,
    width=256,
    mlp_width=1024,
  ),
  # The Chomsky hierarchy: Ruoss et al. (2023), arXiv:2305.16843. The vocabulary
  # is that of the task.
  'chomsky': dict(
    vocab_size=256,
    num_layers=5,
    num_heads=8,
    head_dim=8,
    width=64,
    mlp_width=256,
    architecture='encoder',
    norm_placement='post',
    activation='relu',
    mlp_bias=True,
    dropout_rate=0.1,
  ),
  # 350M: FIRE, table 8, large. The table prints a width of 768, but 16 heads
  # of 64 and 350M parameters agree with 1024 only.
  'large': dict(
    vocab_size=50304,
    num_layers=24,
    num_heads=16,
    head_dim=64,
    width=1024,
    mlp_width=4096,
  ),
}


def get(name: str) -> dict[str, Any]:
  """A fresh dict of the fields of a preset.

  Raises:
    errors.ConfigError: no such preset.
  """
  if name not in PRESETS:
    raise errors.ConfigError(errors.one_of('model preset', name, PRESETS))
  return dict(PRESETS[name])
