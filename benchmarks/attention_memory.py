"""Memory of causal attention: on a TPU v4 chip (compiled), and on this CPU.

Command: .venv/bin/python -m benchmarks.attention_memory [chip] [cpu] [--small]
  (needs the extras `aot` and `bench`)

One layer, batch 1, 12 heads of 64, FIRE. For the chip, in bfloat16: temporary
memory of the forward and backward pass, block by block and with all pairs in
memory, according to ahead-of-time compilation. If a program does not fit, the
compiler's error contains the memory it needs. It also compiles layers that
docs/kernels.md names: `forget`, whose positions differ by head, and the Pallas
kernels. On the CPU, in float32: the increase of a new process's peak resident
memory when it computes the passes once, with the default settings of the
allocator, compared with PyTorch's fused attention and the bias of FIRE's paper
with two hidden layers.
"""

import argparse
import importlib.metadata
import json
import re
import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import alternate, attention_cpu, compile_matrix
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
DIRECTIONS = ('forward', 'forward + backward')
# Arguments of `of_chip` and `of_processes` with --small.
SMALL_CHIP = (512,), (512,)
SMALL_HOST = (128,), DIRECTIONS[1:]
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


def of_processes(lengths, directions):
  """Returns MiB of CPU processes by direction, function and length."""
  found = {}
  for direction in directions:
    found[direction] = {
      name: {
        str(length): float(
          alternate.in_process(
            'attention_memory',
            *('--one', name, direction, length),
            LENGEN_ALLOCATOR='system',
          )
        )
        for length in lengths
      }
      for name in (*OURS, 'torch')
    }
    print(direction, json.dumps(found[direction]), flush=True)
  longest = str(lengths[-1])
  return {
    'mib': found,
    'ratios': {
      f'{longest} {direction}: blockwise / {peer}': by_name['blockwise'][
        longest
      ]
      / by_name[peer][longest]
      for direction, by_name in found.items()
      for peer in ('torch', 'naive')
    },
    'machine': alternate.machine(),
    'versions': runs_lib.versions()
    | {'torch': importlib.metadata.version('torch')},
  }


def of_chip(lengths, layer_lengths):
  """Returns MiB on a v4 chip by function or layer, and length."""
  return {
    'mib': {
      name: {
        str(length): on_chip('fire', False, *options, length)
        for length in lengths
      }
      for name, options in OURS.items()
    },
    'mib_of_layers': {
      name: {str(length): on_chip(*options, length) for length in layer_lengths}
      for name, options in LAYERS.items()
    },
    'versions': compile_matrix.versions(),
  }


def main():
  parser = alternate.parser(__doc__)
  parser.add_argument(
    'halves', nargs='*', help='chip or cpu; both if none is named'
  )
  parser.add_argument('--one', nargs=3, help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.one:
    name, direction, length = arguments.one
    print(in_process(name, direction, int(length)))
    return
  small = arguments.small
  for half in alternate.chosen('half', arguments.halves, ('cpu', 'chip')):
    if half == 'chip':
      found = of_chip(*SMALL_CHIP if small else (CHIP_LENGTHS, LAYER_LENGTHS))
    else:
      found = of_processes(*SMALL_HOST if small else (HOST_LENGTHS, DIRECTIONS))
    print(half, json.dumps(found, indent=1), flush=True)
    if not small:
      alternate.write_cell('attention_memory', half, found)


if __name__ == '__main__':
  main()
