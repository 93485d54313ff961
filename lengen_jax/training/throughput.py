"""How much of its devices a training step uses: FLOPs, and memory."""

import jax
import numpy as np

# Products of bfloat16 matrices, FLOP per second and chip, by the first words of
# jax's device_kind. From the vendors' data sheets: 'peak compute per chip' of
# each generation at cloud.google.com/tpu/docs; of NVIDIA's 'Tensor Core GPU'
# sheets half the number, which is stated with sparsity.
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
# Chips of two cores. Where these work as one, jax counts a device per chip,
# else a device per core.
_TWO_CORES = ('TPU v2', 'TPU v3', 'TPU v4', 'TPU v5', 'TPU v5p', 'TPU7x')


def model_flops(config, batch_size, length, encoder_length=None):
  """FLOPs that one training step of a model needs.

  As PaLM counts them: Chowdhery et al. (2022), arXiv:2204.02311, appendix B,
  after Kaplan et al. (2020), arXiv:2001.08361, section 2.1. A multiplication
  and its addition are 2, the backward pass is twice the forward pass, and only
  products of matrices count: with parameters, the output head among them, and
  of queries, keys and values. What the backward pass computes again (`remat`)
  does not count, nor what an encoding adds, so that models that differ in these
  are measured alike.

  Unlike there, of the pairs of query and key only those count that the model
  may see: about half of a causal model's, and those in its window. Rows are
  taken as one segment each, without padding.

  Args:
    config: a ModelConfig.
    batch_size: rows, over all hosts.
    length: tokens per row, of an encoder-decoder those of the decoder.
    encoder_length: tokens per row of the encoder of an encoder-decoder.

  Returns:
    An int.
  """
  c = config
  products = _stack(c, length, causal=c.architecture != 'encoder')
  if c.architecture == 'encoder_decoder':
    across = length * encoder_length
    products += _stack(c, encoder_length, causal=False)
    products += c.num_layers * _attention(c, length, encoder_length, across)
  products += length * c.width * (c.output_size or c.vocab_size)
  return 6 * batch_size * products


def utilisation(flops, seconds, devices):
  """The part that `flops` are of what devices could do in a time.

  With the FLOPs of a model this is model FLOP utilisation, MFU. The peak is
  that of bfloat16, whatever the dtype of the model.

  Args:
    flops: done by all devices together.
    seconds: that they took.
    devices: jax devices.

  Returns:
    A float, or None where the peak of a device is not known, as of a CPU.
  """
  peaks = [_peak(device) for device in devices]
  if None in peaks:
    return None
  return flops / seconds / sum(peaks)


def memory(devices):
  """Memory of the fullest of this process's devices.

  Args:
    devices: jax devices; those of other processes are passed over.

  Returns:
    {'bytes_in_use': now, 'peak_bytes': most so far}, or None where the backend
    does not tell, as a CPU's.
  """
  here = jax.process_index()
  stats = [d.memory_stats() for d in devices if d.process_index == here]
  if not stats or not all(s and 'peak_bytes_in_use' in s for s in stats):
    return None
  return {
    'bytes_in_use': max(s['bytes_in_use'] for s in stats),
    'peak_bytes': max(s['peak_bytes_in_use'] for s in stats),
  }


def _stack(config, length, causal):
  """Multiplications of all layers for a row, forward."""
  pairs = _visible_pairs(length, causal, config.window, config.sinks)
  maps = 3 if config.activation == 'swiglu' else 2
  mlp = maps * length * config.width * config.mlp_width
  return config.num_layers * (_attention(config, length, length, pairs) + mlp)


def _attention(config, queries, keys, pairs):
  """Multiplications of one attention for a row, forward."""
  c = config
  q_size = c.num_heads * c.head_dim
  k_size = (c.key_heads or c.num_heads) * c.head_dim
  projections = 2 * c.width * (queries * q_size + keys * k_size)
  return projections + 2 * pairs * q_size


def _visible_pairs(length, causal, window, sinks):
  """How many pairs of query and key are not masked."""
  index = np.arange(length)
  reach = length if window is None else window
  first = np.maximum(index - reach + 1, 0)
  end = index + 1 if causal else np.minimum(index + reach, length)
  # Sinks before the window; of a model that is not causal, behind it too.
  extra = np.minimum(sinks, first)
  if not causal:
    extra += np.maximum(min(sinks, length) - end, 0)
  return int(np.sum(end - first + extra))


def _peak(device):
  """FLOP per second of a device; None if not known."""
  kind = device.device_kind
  # The longest name: 'TPU v5 lite' is no 'TPU v5'.
  name = max(
    (n for n in PEAK_FLOPS if kind.startswith(n) and _ends_word(kind, n)),
    key=len,
    default=None,
  )
  if name in _TWO_CORES:
    return PEAK_FLOPS[name] * device.num_cores / 2
  return PEAK_FLOPS.get(name)


def _ends_word(kind, name):
  return not kind[len(name) :][:1].isalnum()
