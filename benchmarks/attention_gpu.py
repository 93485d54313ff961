"""Time of attention with a bias on a GPU: these kernels, and a bias in memory.

Command: .venv/bin/python -m benchmarks.attention_gpu
  (needs the extra `cuda` and a GPU; about ten minutes. `attention` or
  `training` runs one half. --small takes a minute on any machine, to test this
  program, and records nothing)

One layer's causal attention, 12 heads of 64, bfloat16: the forward pass, and
the gradients of queries, keys, values and the encoding's parameters. Peers are
JAX's dot_product_attention by cuDNN and by XLA with the bias of all pairs in
memory, as in published code, and by cuDNN without a bias. All functions take
turns in one process; results are ratios of times within a round. A time is that
of several calls. If a function fails, the error is recorded, and the others are
measured. Results are written after each setting, to the folder OUT if this
variable is set.

Then training steps of the 125M model of `configs/fire_c4.py:base` at two
lengths: tokens per second, and utilisation, the ratio of model FLOPs per second
to the chip's peak (`training/throughput.py`).
"""

import json
import os
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from benchmarks import alternate
from configs import fire_c4
from lengen_jax import attention, encodings
from lengen_jax.data import windows
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import throughput

PATH = (
  pathlib.Path(os.environ.get('OUT', alternate.RESULTS)) / 'attention_gpu.json'
)
HEADS, HEAD_DIM = 12, 64
SPECS = ('nope', 'alibi', 'kerple_log', 't5', 'fire')
ROUNDS = 15
# Calls of a function in a round, which hide the time of the host.
CALLS = 10
OURS = 'pallas'
# The config's size, lengths, tokens of a batch, and steps.
_TRAINING = 'base', [8192, 32768], 65536, 10


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
  cases = [(OURS, spec) for spec in SPECS]
  cases += [('cudnn', 'nope'), ('cudnn', 'fire'), ('xla', 'fire')]
  for kind, spec in cases:
    name = f'{kind}, {spec}'
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


def attention_cells(settings, rounds, times, write):
  """Returns times and ratios by direction, number of rows and length."""
  cells = {}
  for batch, length in settings:
    for backward in (False, True):
      what = 'with gradients' if backward else 'forward'
      print(f'{what}, {batch} x {length}', flush=True)
      functions, refused = calls(batch, length, backward, times)
      seconds = alternate.alternate(functions, rounds=rounds, warmups=3)
      without = f'{OURS}, nope'
      cells[f'{what}, {batch} x {length}'] = cell = {
        'median_ms': {
          name: round(1e3 * statistics.median(found) / times, 3)
          for name, found in seconds.items()
        },
        'to_no_bias': {
          name: alternate.ratio(seconds, name, without)
          for name in seconds
          if without in seconds
        },
        'refused': refused,
      }
      print(json.dumps(cell, indent=1), flush=True)
      write(cells)
  return cells


def training_cells(size, lengths, tokens, steps, write):
  """Writes tokens per second and utilisation of training steps."""
  cells = {}
  for length in lengths:
    rows = max(1, tokens // length)
    name = f'{rows} x {length}'
    try:
      cells[name] = training_cell(size, rows, length, steps)
    except Exception as error:  # Any exception of the compiler.
      cells[name] = {'refused': message(error)}
    print(json.dumps(cells, indent=1), flush=True)
    write(cells)


def training_cell(size, rows, length, steps):
  config = fire_c4.get_config(size)
  config.model.update(implementation=OURS, bias_form='auto')
  config.data.update(batch_size=rows, train_length=length)
  run = run_lib.Run(config)
  draw = np.random.default_rng(0).integers
  vocabulary = run.model.vocab_size
  batch = run.layout.place(
    windows.lm_batch(draw(0, vocabulary, (rows, length + 1)))
  )
  state, seconds = run.init_state(), []
  step = run.jitted_step(packed=False)
  with run.layout.scope():
    for _ in range(steps + 2):
      began = time.perf_counter()
      state, metrics = step(state, batch)
      jax.block_until_ready(metrics)
      seconds.append(time.perf_counter() - began)
  median = statistics.median(seconds[2:])
  flops = throughput.model_flops(run.model, rows, length)
  return {
    'ms_per_step': round(1e3 * median, 1),
    'tokens_per_second': round(rows * length / median),
    'utilisation': throughput.utilisation(flops, median, jax.devices()),
    'loss': float(metrics['loss']),
  }


def plot(cells, path):
  figure, axes = plt.subplots(
    1, len(cells), figsize=(3.2 * len(cells), 3.2), squeeze=False
  )
  for ax, (title, cell) in zip(axes[0], cells.items(), strict=True):
    ratios = {name: r['median'] for name, r in cell['to_no_bias'].items()}
    ax.barh(list(ratios), list(ratios.values()))
    ax.axvline(1, color='grey', linewidth=0.8)
    ax.invert_yaxis()
    ax.set(title=title, xlabel='time, to ours without a bias')
  figure.tight_layout()
  figure.savefig(path, dpi=120)


def main():
  found = alternate.arguments(__doc__, ('halves', 'attention or training'))
  halves = found.halves or ['attention', 'training']
  if unknown := {*halves} - {'attention', 'training'}:
    raise SystemExit(f'unknown half {unknown}; choose attention or training')
  if not found.small and jax.default_backend() != 'gpu':
    raise SystemExit('attention_gpu needs a GPU; --small runs anywhere')
  result = {
    'benchmark': 'attention_gpu',
    'device': jax.devices()[0].device_kind,
    'versions': runs_lib.versions(),
    'heads': [HEADS, HEAD_DIM],
  }
  if PATH.exists():
    before = json.loads(PATH.read_text())
    # The other half, if it was measured on the same device.
    if result.items() <= before.items():
      result = before

  def write(half, cells):
    result[half] = cells
    if not found.small:
      PATH.write_text(json.dumps(result, indent=1) + '\n')

  if 'attention' in halves:
    setting = [(8, 2048), (2, 8192)], ROUNDS, CALLS
    if found.small:
      setting = [(1, 256)], 1, 1
    cells = attention_cells(*setting, lambda cells: write('attention', cells))
    if not found.small:
      plot(cells, PATH.with_suffix('.png'))
  if 'training' in halves:
    setting = ('tiny', [128], 256, 2) if found.small else _TRAINING
    training_cells(*setting, lambda cells: write('training', cells))


if __name__ == '__main__':
  main()
