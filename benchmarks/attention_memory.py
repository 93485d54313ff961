"""Memory of causal attention: on a TPU v4 chip (compiled), and on this CPU.

Command: .venv/bin/python -m benchmarks.attention_memory [--small | chip]
  (needs the extras `aot` and `bench`)

One layer, batch 1, 12 heads of 64, FIRE. For the chip, in bfloat16: temporary
memory of the forward and backward pass, block by block and with all pairs in
memory, according to ahead-of-time compilation. If a program does not fit, the
compiler's error contains the memory it needs. Further layers are those of
docs/kernels.md: positions per head, as of `forget`, and Pallas kernels. `chip`
measures the chip only, and keeps the recorded figures of the CPU. On the CPU,
in float32: the increase of a new process's peak resident memory when it
computes the passes once, compared with PyTorch's fused attention and the bias
of FIRE's paper.
"""

import json
import os
import re
import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from benchmarks import alternate, attention_cpu
from lengen_jax import attention, encodings
from lengen_jax.training import ahead_of_time, pods, sharding
from lengen_jax.training import config as training_config
from lengen_jax.training import runs as runs_lib

MIB = 2**20
CHIP_LENGTHS = (2048, 8192, 32768, 131072)
HOST_LENGTHS = (1024, 2048, 4096)
# {name: (encoding, positions per head, implementation, bias_form)}.
LAYERS = {
  'linear | forget': ('linear', True, 'blockwise', 'exact'),
  'fire | forget': ('fire', True, 'blockwise', 'exact'),
  'pallas': ('fire', False, 'pallas', 'exact'),
  'pallas, anchored': ('fire', False, 'pallas', 'anchored'),
}
LAYER_LENGTHS = (8192, 32768)
PATH = alternate.RESULTS / 'attention_memory.json'
# {name: (implementation, bias_form)}.
OURS = {
  'blockwise': ('blockwise', 'exact'),
  'anchored': ('blockwise', 'anchored'),
  'naive': ('reference', 'exact'),
}


def on_chip(spec, per_head, implementation, bias_form, length):
  """Returns the MiB of temporaries of both passes on one v4 chip."""
  layout = sharding.Layout.create(
    training_config.MeshConfig(), 1, ahead_of_time.devices(pods.get('v4-2'))
  )
  encoding = encodings.create(
    spec, num_heads=attention_cpu.HEADS, head_dim=attention_cpu.HEAD_DIM
  )
  variables = jax.eval_shape(
    lambda: encoding.init(jax.random.key(0), method='bias_fn')
  )

  def loss(q, k, v, positions, variables):
    y = attention.dot_product_attention(
      q,
      k,
      v,
      q_positions=positions,
      k_positions=positions,
      bias=encoding.apply(variables, method='bias_fn'),
      causal=True,
      bias_form=bias_form,
      implementation=implementation,
    )
    return y.astype(jnp.float32).sum()

  x = jax.ShapeDtypeStruct(
    (1, length, attention_cpu.HEADS, attention_cpu.HEAD_DIM), jnp.bfloat16
  )
  positions = None
  if per_head:
    shape = 1, length, attention_cpu.HEADS
    positions = jax.ShapeDtypeStruct(shape, jnp.float32)
  gradients = jax.jit(
    jax.grad(loss, (0, 1, 2, 3, 4)),
    in_shardings=layout.whole,
    out_shardings=layout.whole,
  )
  try:
    with layout.scope():
      compiled = gradients.lower(x, x, x, positions, variables).compile()
  except jax.errors.JaxRuntimeError as error:
    # '... required for HLO temporaries (260.28G) exceeds available HBM ...'
    needs = re.search(r'temporaries \(([\d.]+)([MGT])\)', str(error))
    if needs is None:
      raise
    return float(needs[1]) * {'M': 1, 'G': 2**10, 'T': 2**20}[needs[2]]
  return compiled.memory_analysis().temp_size_in_bytes / MIB


def in_process(name, direction, length):
  """Runs a direction once; returns the increase of peak memory in MiB."""
  rng = np.random.default_rng(0)
  shape = (1, length, attention_cpu.HEADS, attention_cpu.HEAD_DIM)
  arrays = [rng.normal(size=shape).astype(np.float32) for _ in range(4)]
  jax.block_until_ready(jnp.zeros(()))
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  if name == 'torch':
    found = attention_cpu.theirs(attention_cpu.TorchFire(2), length, arrays)
  else:
    implementation, bias_form = OURS[name]
    found = attention_cpu.ours('fire', implementation, arrays, bias_form)
  found[direction]()
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  # In KiB, on macOS in bytes.
  return (after - before) / (2**20 if sys.platform == 'darwin' else 2**10)


def in_fresh_process(*arguments):
  """Runs `in_process` in a new process and returns its result."""
  done = subprocess.run(
    [sys.executable, '-m', 'benchmarks.attention_memory', *arguments],
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=True,
  )
  return float(done.stdout.split()[-1])


def plot(chip, host, path):
  """Plots memory by length: on the chip, and on the CPU by direction."""
  panels = {
    'TPU v4 chip, bf16, forward + backward': chip,
    'CPU, float32, forward': host['forward'],
    'CPU, float32, forward + backward': host['forward + backward'],
  }
  figure, axes = plt.subplots(1, 3, figsize=(15, 4.5), layout='constrained')
  for axis, (title, by_name) in zip(axes, panels.items(), strict=True):
    for name, by_length in by_name.items():
      lengths = [int(n) for n in by_length]
      axis.plot(lengths, by_length.values(), marker='o', label=name)
      axis.set_xticks(lengths, map(str, lengths))
    axis.set_xscale('log', base=2)
    axis.set_yscale('log')
    axis.set_xticks(lengths, map(str, lengths))
    axis.set_title(title)
    axis.set_xlabel('tokens')
    axis.set_ylabel('MiB')
    axis.legend()
  axes[0].axhline(30.75 * 1024, color='black', linewidth=1)
  figure.savefig(path, dpi=120)


def main():
  arguments = alternate.arguments(
    __doc__, ('only', 'chip, or NAME DIRECTION LENGTH: only that')
  )
  if len(one := arguments.only) == 3:
    print(in_process(one[0], one[1], int(one[2])))
    return
  small = arguments.small
  host_lengths = (128,) if small else HOST_LENGTHS
  chip_lengths = (512,) if small else CHIP_LENGTHS
  directions = ('forward', 'forward + backward')
  host = {}
  if one == ['chip']:
    recorded = json.loads(PATH.read_text())
    directions, host = (), recorded['mib_of_cpu_process']
  for direction in directions[1:] if small else directions:
    host[direction] = {
      name: {
        str(length): in_fresh_process(name, direction, str(length))
        for length in host_lengths
      }
      for name in (*OURS, 'torch')
    }
    print(direction, json.dumps(host[direction]), flush=True)
  chip = {
    name: {
      str(length): on_chip('fire', False, *options, length)
      for length in chip_lengths
    }
    for name, options in OURS.items()
  }
  print('chip', json.dumps(chip), flush=True)
  layers = {
    name: {
      str(length): on_chip(*options, length)
      for length in (chip_lengths if small else LAYER_LENGTHS)
    }
    for name, options in LAYERS.items()
  }
  print('layers', json.dumps(layers), flush=True)
  longest = str(host_lengths[-1])
  results = {
    'benchmark': 'attention_memory',
    'setting': {'heads': attention_cpu.HEADS, 'head_dim': 64, 'batch': 1},
    'machine': alternate.machine(),
    'versions': runs_lib.versions(),
    'mib_on_v4_chip': chip,
    'mib_of_layers_on_v4_chip': layers,
    'mib_of_cpu_process': host,
    'ratios': {
      f'{longest} {direction}: blockwise / {peer}': by_name['blockwise'][
        longest
      ]
      / by_name[peer][longest]
      for direction, by_name in host.items()
      for peer in ('torch', 'naive')
    },
  }
  print(json.dumps(results['ratios'], indent=1))
  if not small:
    plot(chip, host, alternate.write(results).with_suffix('.png'))


if __name__ == '__main__':
  main()
