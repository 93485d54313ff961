"""Time of training two seeds on two cores: in turn, vmapped, in two processes.

Command: .venv/bin/python -m benchmarks.seeds_cpu [--small]

The model is the demo's with RoPE: 3 pre-norm blocks, 4 heads, width 128; 16
sequences of 128 bytes for each seed. In turn, each seed trains on both cores;
`vmapped` trains both by one program; each of the processes has one core. A
round is ten steps of each seed.
"""

import multiprocessing
import os

import jax
import jax.numpy as jnp

from benchmarks import alternate
from configs import stdlib
from lengen_jax import data
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import sharding

SEEDS = (0, 1)
STEPS, ROUNDS = 10, 15


def create(seed, small):
  """Returns the run of a seed and a function that returns its batches."""
  config = stdlib.get_config('cpu')
  config.model.encoding = 'rope'
  config.seed = seed
  if small:
    config.data.batch_size = 2
  corpus = data.load(data.DataConfig(**config.data.to_dict()))
  windows = data.TrainingWindows(
    corpus.documents['train'],
    length=config.data.train_length,
    batch_size=config.data.batch_size,
    seed=seed,
  )
  return run_lib.Run(config), windows.batch


def stepper(seed, small):
  """Returns a function that trains some steps of a seed."""
  run, batch_at = create(seed, small)
  step_fn = run.jitted_step(packed=False)
  state = [run.init_state()]

  def go(steps):
    for step in range(steps):
      batch = run.layout.place(batch_at(step))
      with run.layout.scope():
        state[0], metrics = step_fn(state[0], batch)
    metrics['loss'].block_until_ready()

  return go


def vmapped_stepper(small):
  """Returns a function that trains some steps of all seeds by one program."""
  runs, batches = zip(*(create(seed, small) for seed in SEEDS), strict=True)
  step_fn = jax.jit(jax.vmap(runs[0].step_fn(packed=False)), donate_argnums=0)

  def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

  state = [stacked([run.init_state() for run in runs])]

  def go(steps):
    for step in range(steps):
      batch = stacked([batch_at(step) for batch_at in batches])
      state[0], metrics = step_fn(state[0], batch)
    metrics['loss'].block_until_ready()

  return go


def work(seed, small, connection):
  """Trains a seed on a core of its own: as many steps as each message says."""
  cores = sorted(os.sched_getaffinity(0))
  os.sched_setaffinity(0, {cores[seed % len(cores)]})
  sharding.start()
  go = stepper(seed, small)
  while steps := connection.recv():
    go(steps)
    connection.send(steps)


def main():
  small = alternate.arguments(__doc__).small
  steps, rounds = (1, 2) if small else (STEPS, ROUNDS)
  # Processes are started before jax has threads.
  context = multiprocessing.get_context('spawn')
  connections = []
  for seed in SEEDS:
    ours, theirs = context.Pipe()
    context.Process(
      target=work, args=(seed, small, theirs), daemon=True
    ).start()
    connections.append(ours)
  sharding.start()
  in_turn = [stepper(seed, small) for seed in SEEDS]
  vmapped = vmapped_stepper(small)

  def processes():
    for connection in connections:
      connection.send(steps)
    for connection in connections:
      connection.recv()

  functions = {
    'in turn': lambda: [go(steps) for go in in_turn],
    'vmapped': lambda: vmapped(steps),
    'two processes': processes,
  }
  seconds = alternate.alternate(functions, rounds=rounds, warmups=2)
  for connection in connections:
    connection.send(0)
  seconds = {k: [s / steps for s in v] for k, v in seconds.items()}
  alternate.record(
    'seeds_cpu',
    {'config': 'stdlib.py:cpu', 'encoding': 'rope', 'seeds': len(SEEDS)},
    seconds,
    {
      f'{name} / in turn': alternate.ratio(seconds, name, 'in turn')
      for name in ('vmapped', 'two processes')
    },
    runs_lib.versions(),
    small=small,
  )


if __name__ == '__main__':
  main()
