"""Time of attention with a bias on a GPU: these kernels, and a bias in memory.

Command: .venv/bin/python -m benchmarks.attention_gpu
  (needs the extra `cuda` and a GPU; about ten minutes. `attention` or
  `training` runs one half. --small takes a minute on any machine, to test this
  program, and records nothing)

One layer's causal attention, 12 heads of 64, bfloat16: the forward pass, and
the gradients of queries, keys, values and the encoding's parameters. Peers are
JAX's dot_product_attention by cuDNN and by XLA with the bias of all pairs in
memory, as in published code, and by cuDNN without a bias. A time is that of
several calls.

Then training steps of the 125M model of `configs/fire_c4.py:base` at two
lengths: tokens per second, and utilization, the ratio of model FLOPs per second
to the chip's peak (`training/throughput.py`). The kernels are compared with the
same model without a bias, and with blockwise attention, which XLA compiles.

All functions of a setting take turns in one process; ratios are of times within
a round. If a function fails, its error is recorded, the others are measured,
and the program ends with an error unless the function is cuDNN's. Results are
written after each setting, to the folder OUT if this variable is set.
"""

import functools
import json
import os
import pathlib
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import alternate, seeds_cpu
from configs import fire_c4
from lengen_jax import attention, encodings
from lengen_jax.data import windows
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import throughput

FOLDER = pathlib.Path(os.environ.get('OUT', alternate.RESULTS))
HEADS, HEAD_DIM = 12, 64
SPECS = ('nope', 'alibi', 'kerple_log', 't5', 'fire')
ROUNDS = 15
# Calls of a function in a round, which hide the time of the host.
CALLS = 10
OURS = 'pallas'
# Functions that those of this package are compared with.
PEERS = 'cudnn, nope', 'cudnn, fire', 'xla, fire'
# Implementation and encoding of the models that are trained.
TRAINED = (OURS, 'fire'), (OURS, 'nope'), ('blockwise', 'fire')
# The config's size, lengths, tokens of a batch, and steps.
TRAINING = 'base', (8192, 32768), 65536, 10
SMALL_TRAINING = 'tiny', (128,), 256, 2


def layer(kind, spec, batch, length):
  """Returns an attention function, its parameters, and its q, k and v."""
  encoding = encodings.create(spec, num_heads=HEADS, head_dim=HEAD_DIM)
  variables = encoding.init(jax.random.key(0), method='bias_fn')
  draw = np.random.default_rng(0).normal
  arrays = [
    jnp.asarray(draw(size=(batch, length, HEADS, HEAD_DIM)), jnp.bfloat16)
    for _ in range(3)
  ]

  def ours(q, k, v, variables):
    return attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(variables, method='bias_fn'),
      causal=True,
      bias_form='auto',
      implementation=OURS,
    )

  def peer(q, k, v, variables):
    p = jnp.arange(length)
    bias = None
    if spec != 'nope':
      bias = encoding.apply(variables, p, p, method='bias')
      bias = bias.reshape(1, HEADS, length, length).astype(q.dtype)
    return jax.nn.dot_product_attention(
      q, k, v, bias, is_causal=True, implementation=kind
    )

  return (ours if kind == OURS else peer), variables, arrays


def calls(batch, length, backward, times):
  """Returns {name: function of some runs} and {name: error}."""
  found, refused = {}, {}
  for name in (*(f'{OURS}, {spec}' for spec in SPECS), *PEERS):
    kind, spec = name.split(', ')
    attend, variables, arrays = layer(kind, spec, batch, length)

    def function(q, k, v, variables, attend=attend):
      return attend(q, k, v, variables).astype(jnp.float32).sum()

    if backward:
      function = jax.grad(function, (0, 1, 2, 3))
    try:
      compiled = jax.jit(function).lower(*arrays, variables).compile()
      jax.block_until_ready(compiled(*arrays, variables))
    except Exception as error:  # Any exception of a compiler.
      refused[name] = message(error)
      continue

    def run(compiled=compiled, arguments=(*arrays, variables)):
      for _ in range(times):
        found = compiled(*arguments)
      jax.block_until_ready(found)

    found[name] = run
  return found, refused


def message(error):
  return (str(error) or repr(error)).splitlines()[0][:200]


def attention_cell(batch, length, backward, rounds, times):
  """Returns times, ratios and refused functions."""
  functions, refused = calls(batch, length, backward, times)
  seconds = alternate.alternate(functions, rounds=rounds, warmups=3)
  return {
    'median_ms': {
      name: round(1e3 * statistics.median(found) / times, 3)
      for name, found in seconds.items()
    },
    'ratios': ratios(seconds),
    'refused': refused,
  }


def ratios(seconds):
  """Returns ratios of our times: to no bias, and to peers with the same one."""
  pairs = []
  for name in seconds:
    kind, spec = name.split(', ')
    if kind != OURS:
      pairs.append((f'{OURS}, {spec}', name))
    elif spec != 'nope':
      pairs.append((name, f'{OURS}, nope'))
  return {
    f'{one} / {other}': alternate.ratio(seconds, one, other)
    for one, other in pairs
    if {one, other} <= {*seconds}
  }


def training_cell(size, rows, length, rounds):
  """Returns times, rates, utilization and ratios of training steps."""
  draw = np.random.default_rng(0).integers
  steps, refused, flops = {}, {}, {}
  for implementation, spec in TRAINED:
    name = f'{implementation}, {spec}'
    config = fire_c4.get_config(size)
    config.model.update(
      encoding=spec, implementation=implementation, bias_form='auto'
    )
    config.data.update(batch_size=rows, train_length=length)
    run = run_lib.Run(config)
    batch = windows.lm_batch(draw(0, run.model.vocab_size, (rows, length + 1)))
    go = seeds_cpu.stepper(run, lambda step, batch=batch: batch)
    try:
      go(1)
    except Exception as error:  # Any exception of a compiler.
      refused[name] = message(error)
      continue
    steps[name] = functools.partial(go, 1)
    flops[name] = throughput.model_flops(run.model, rows, length)
  seconds = alternate.alternate(steps, rounds=rounds)
  medians = {name: statistics.median(found) for name, found in seconds.items()}
  return {
    'median_ms': {name: round(1e3 * s, 1) for name, s in medians.items()},
    'tokens_per_second': {
      name: round(rows * length / s) for name, s in medians.items()
    },
    'utilization': {
      name: throughput.utilization(flops[name], s, jax.devices())
      for name, s in medians.items()
    },
    'ratios': ratios(seconds),
    'refused': refused,
  }


def cells(halves, small):
  """Yields the name of each setting and a function that measures it."""
  if 'attention' in halves:
    settings = [(1, 256)] if small else [(8, 2048), (2, 8192)]
    often = (1, 1) if small else (ROUNDS, CALLS)
    for batch, length in settings:
      for backward in (False, True):
        what = 'with gradients' if backward else 'forward'
        yield (
          f'{what}, {batch} x {length}',
          functools.partial(attention_cell, batch, length, backward, *often),
        )
  if 'training' in halves:
    size, lengths, tokens, rounds = SMALL_TRAINING if small else TRAINING
    for length in lengths:
      rows = max(1, tokens // length)
      yield (
        f'training, {rows} x {length}',
        functools.partial(training_cell, size, rows, length, rounds),
      )


def main():
  parser = alternate.parser(__doc__)
  parser.add_argument('halves', nargs='*', help='attention or training')
  found = parser.parse_args()
  halves = alternate.chosen('half', found.halves, ('attention', 'training'))
  if not found.small and jax.default_backend() != 'gpu':
    raise SystemExit('attention_gpu needs a GPU; --small runs anywhere')
  failed = []
  for name, measure in cells(halves, found.small):
    print(name, flush=True)
    cell = measure() | {
      'device': jax.devices()[0].device_kind,
      'versions': runs_lib.versions(),
    }
    print(json.dumps(cell, indent=1), flush=True)
    failed += [
      f'{name}: {one}' for one in cell['refused'] if not one.startswith('cudnn')
    ]
    if not found.small:
      alternate.write_cell('attention_gpu', name, cell, FOLDER)
  if failed:
    raise SystemExit(f'functions that failed: {"; ".join(failed)}')


if __name__ == '__main__':
  main()
