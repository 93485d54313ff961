"""Utilisation of devices by a training step: FLOPs and memory."""

from collections.abc import Sequence

import jax
import numpy as np

from lengen_jax.models.config import ModelConfig
from lengen_jax.models.mlp import GATED

# Peak FLOP/s per chip for bfloat16 matrix products, by prefix of jax's
# device_kind. Sources: 'peak compute per chip' of each generation at
# cloud.google.com/tpu/docs; half the sparse figure of NVIDIA's 'Tensor Core
# GPU' data sheets.
PEAK_FLOPS = {
  'TPU v2': 46e12,
  'TPU v3': 123e12,
  'TPU v4': 275e12,
  'TPU v4 lite': 138e12,
  'TPU v5 lite': 197e12,
  'TPU v5e': 197e12,
  'TPU v5': 459e12,
  'TPU v5p': 459e12,
  'TPU v6 lite': 918e12,
  'TPU v6e': 918e12,
  'TPU7x': 2307e12,
  'NVIDIA A100': 312e12,
  'NVIDIA H100': 989e12,
  'NVIDIA H100 PCIe': 756e12,
  'NVIDIA H200': 989e12,
  'NVIDIA GH200': 989e12,
}
# Chips of two cores. jax counts one device per chip if the cores work together,
# else one per core.
_TWO_CORES = ('TPU v2', 'TPU v3', 'TPU v4', 'TPU v5', 'TPU v5p', 'TPU7x')


def model_flops(
  config: ModelConfig,
  batch_size: int,
  length: int,
  encoder_length: int | None = None,
) -> int:
  """Returns the FLOPs of one training step of a model.

  Counted as for PaLM (Chowdhery et al., 2022, arXiv:2204.02311, appendix B),
  which follows Kaplan et al. (2020), arXiv:2001.08361, section 2.1:

  - A multiplication with its addition is 2 FLOPs.
  - The backward pass costs twice the forward pass.
  - Only matrix products count: those with parameters, including the output
    head, and those of queries, keys and values.
  - Recomputation (`remat`) and encodings do not count, so that models which
    differ in these can be compared.
  - With LoRA, gradients of frozen kernels count, although training does not
    compute them.

  Unlike for PaLM, only visible pairs of query and key count: about half of all
  pairs in a causal model, and those within the window of a layer. Each row
  counts as one segment without padding.

  A batch has `batch_size` rows over all hosts, of `length` tokens each. In an
  encoder-decoder, `length` is that of the decoder.
  """
  c = config
  products = _stack(c, length, causal=c.architecture != 'encoder')
  if c.architecture == 'encoder_decoder':
    across = length * encoder_length
    products += _stack(c, encoder_length, causal=False)
    products += c.num_layers * _attention(c, length, encoder_length, across)
  products += length * c.width * (c.output_size or c.vocab_size)
  return 6 * batch_size * products


def utilization(
  flops: float, seconds: float, devices: Sequence[jax.Device]
) -> float | None:
  """Returns the ratio of achieved to peak FLOPs per second of devices.

  With `model_flops` this is the model FLOP utilization, MFU. The peak is that
  of bfloat16, for any dtype of the model. Returns None if the peak of a device
  is unknown, as for CPUs.
  """
  peaks = [_peak(device) for device in devices]
  if None in peaks:
    return None
  return flops / seconds / sum(peaks)


def peak_memory(devices: Sequence[jax.Device]) -> int | None:
  """Returns the most bytes used so far on one of this process's devices.

  None if the backend does not report it, as for CPUs.
  """
  here = jax.process_index()
  stats = [d.memory_stats() or {} for d in devices if d.process_index == here]
  peaks = [one.get('peak_bytes_in_use') for one in stats]
  return None if None in peaks else max(peaks, default=None)


def _stack(config: ModelConfig, length: int, causal: bool) -> int:
  """Multiplications per row in the forward pass of all layers."""
  pairs = (
    sum(
      visible_pairs(part, causal, layer.window, layer.sinks)
      for part in _chunks(length, layer.attention_chunk)
    )
    for layer in config.layers
  )
  c = config
  matrices = 3 if c.activation in GATED else 2
  outputs = matrices * c.mlp_width * c.experts_per_token
  outputs += c.num_experts or 0  # The router.
  outputs += (
    c.num_heads * {None: 0, 'head': 1, 'element': c.head_dim}[c.output_gate]
  )
  rest = length * c.width * outputs
  return sum(_attention(c, length, length, n) + rest for n in pairs)


def _chunks(length: int, size: int | None) -> list[int]:
  """Returns the lengths of the chunks in which tokens attend."""
  size = min(size or length, length)
  return [size] * (length // size) + [length % size] * (length % size > 0)


def _attention(config: ModelConfig, queries: int, keys: int, pairs: int) -> int:
  """Multiplications per row in the forward pass of one attention layer."""
  c = config
  q_size = c.num_heads * c.head_dim
  k_size = (c.key_heads or c.num_heads) * c.head_dim
  projections = 2 * c.width * (queries * q_size + keys * k_size)
  return projections + 2 * pairs * q_size


def visible_pairs(
  length: int, causal: bool, window: int | None, sinks: int
) -> int:
  """Returns the number of pairs of query and key that are not masked."""
  index = np.arange(length)
  reach = length if window is None else window
  first = np.maximum(index - reach + 1, 0)
  end = index + 1 if causal else np.minimum(index + reach, length)
  # Sinks before the window and, in a model that is not causal, behind it.
  extra = np.minimum(sinks, first)
  if not causal:
    extra += np.maximum(min(sinks, length) - end, 0)
  return int(np.sum(end - first + extra))


def _peak(device: jax.Device) -> float | None:
  """Returns peak FLOP/s of a device; None if unknown."""
  kind = device.device_kind
  # The longest match: 'TPU v5 lite' is not a 'TPU v5'.
  name = max(
    (n for n in PEAK_FLOPS if kind.startswith(n) and _ends_word(kind, n)),
    key=len,
    default=None,
  )
  if name in _TWO_CORES:
    return PEAK_FLOPS[name] * device.num_cores / 2
  return PEAK_FLOPS.get(name)


def _ends_word(kind: str, name: str) -> bool:
  return not kind[len(name) :][:1].isalnum()
