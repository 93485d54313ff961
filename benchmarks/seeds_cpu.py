"""Time of training two seeds on two cores: in turn, vmapped, in two processes.

Command: .venv/bin/python -m benchmarks.seeds_cpu [--small]

The model is the demo's with RoPE: 3 pre-norm blocks, 4 heads, width 128; 16
sequences of 128 bytes for each seed. In turn, the rows of a batch are split
between the cores. Vmapped, one program trains both seeds, one on each core. Two
processes use all cores, as with `make -j2 study`, or one core each. A round is
ten steps of both seeds; the times are those of a step of both.
"""

import contextlib
import multiprocessing
import os

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np

from benchmarks import alternate
from configs import stdlib
from lengen_jax import data
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import sharding

SEEDS = (0, 1)
STEPS, ROUNDS = 10, 15


def create(encoding, seed, small):
  """Returns a run of the demo and a function that returns its batches."""
  config = stdlib.get_config('cpu')
  config.model.encoding = encoding
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


def stepper(run, batch_at):
  """Returns a function that trains some steps of a run."""
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
  created = [create('rope', seed, small) for seed in SEEDS]
  runs, batches = zip(*created, strict=True)
  # One device for each seed.
  mesh = jax.make_mesh((len(SEEDS),), ('seed',), axis_types=(AxisType.Auto,))
  by_seed = NamedSharding(mesh, PartitionSpec('seed'))

  def stacked(trees):
    trees = jax.device_get(trees)
    return jax.device_put(
      jax.tree.map(lambda *leaves: np.stack(leaves), *trees), by_seed
    )

  step_fn = jax.jit(
    jax.vmap(runs[0].step_fn(packed=False)),
    donate_argnums=0,
    out_shardings=by_seed,
  )
  state = [stacked([run.init_state() for run in runs])]

  def go(steps):
    for step in range(steps):
      batch = stacked([batch_at(step) for batch_at in batches])
      state[0], metrics = step_fn(state[0], batch)
    metrics['loss'].block_until_ready()

  return go


class Processes:
  """A process for each seed, with all cores or with one each."""

  def __init__(self, small, pinned):
    context = multiprocessing.get_context('spawn')
    self._pipes = []
    for seed in SEEDS:
      ours, theirs = context.Pipe()
      arguments = (seed, small, pinned, theirs)
      context.Process(target=work, args=arguments, daemon=True).start()
      # With this copy closed, `recv` raises EOFError if the process ends.
      theirs.close()
      self._pipes.append(ours)

  def train(self, steps):
    for pipe in self._pipes:
      pipe.send(steps)
    for pipe in self._pipes:
      pipe.recv()


def work(seed, small, pinned, pipe):
  """Trains a seed: as many steps as each message says."""
  if pinned:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[seed % len(cores)]})
  sharding.start()
  go = stepper(*create('rope', seed, small))
  # The pipe is closed when the benchmark ends.
  with contextlib.suppress(EOFError):
    while True:
      go(steps := pipe.recv())
      pipe.send(steps)


def main():
  small = alternate.is_small(__doc__)
  steps, rounds = (1, 2) if small else (STEPS, ROUNDS)
  sharding.start()
  in_turn = [stepper(*create('rope', seed, small)) for seed in SEEDS]
  vmapped = vmapped_stepper(small)
  free, pinned = (Processes(small, pinned) for pinned in (False, True))
  functions = {
    'in turn': lambda: [go(steps) for go in in_turn],
    'vmapped': lambda: vmapped(steps),
    'two processes': lambda: free.train(steps),
    'two processes, a core each': lambda: pinned.train(steps),
  }
  seconds = alternate.alternate(functions, rounds=rounds, warmups=2)
  seconds = {k: [s / steps for s in v] for k, v in seconds.items()}
  alternate.record(
    'seeds_cpu',
    {'config': 'stdlib.py:cpu', 'encoding': 'rope', 'seeds': len(SEEDS)},
    seconds,
    {
      f'{name} / in turn': alternate.ratio(seconds, name, 'in turn')
      for name in functions
      if name != 'in turn'
    },
    runs_lib.versions(),
    small=small,
  )


if __name__ == '__main__':
  main()
