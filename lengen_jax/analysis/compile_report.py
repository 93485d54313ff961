"""Compiles the programs of a run and reports whether they fit in memory."""

from collections.abc import Iterator
import math
from typing import Any

from lengen_jax import errors
from lengen_jax.training import ahead_of_time, pods
from lengen_jax.training import run as run_lib

# Advise sharding when the training state exceeds this fraction of the memory.
_MUCH_STATE = 0.25


def report(config: Any, pod: pods.Pod) -> None:
  """Compiles the training step and the evaluation, and prints the results.

  The data of `config`, a ConfigDict, need not exist.

  Raises:
    errors.FitError: a program does not fit; the message lists possible changes.
    errors.LengenError: the config is invalid.
  """
  print(pod, flush=True)
  run = run_lib.Run(config, devices=ahead_of_time.devices(pod))
  mesh = ', '.join(f'{axis} {n}' for axis, n in run.layout.mesh.shape.items())
  print(
    f'mesh: {mesh}\n{run.parameters:,} parameters; training state of '
    f'{run.state_bytes / ahead_of_time.GIB:.2f} GiB per device; '
    f'{run.data.batch_size:,} rows of {run.data.train_length:,} tokens'
  )
  for compile_it in (ahead_of_time.training_step, ahead_of_time.evaluation):
    what = compile_it.__name__.replace('_', ' ')
    print(f'compiling the {what}; this can take minutes ...', flush=True)
    try:
      program = compile_it(run)
    except (errors.LengthError, errors.CombinationError) as error:
      print(f'{what}: refused by the model: {error}')
      continue
    if program is None:
      print(f'{what}: the program that generates answers is not compiled')
      continue
    print(*describe(program, pod), sep='\n', flush=True)
    if program.refused:
      changes = '\n'.join(f'  {line}' for line in advice(run, pod, program))
      raise errors.FitError(
        f'{program.name}: needs {program.needs:.2f} GiB on each device of '
        f'{pod.name}, which has {pod.device_gib}; what would help:\n{changes}'
      )


def describe(program: ahead_of_time.Program, pod: pods.Pod) -> Iterator[str]:
  """Yields lines with the memory, collectives and arrays of a program."""
  needs = f'{program.needs:.2f} of {pod.device_gib} GiB per device'
  if program.refused:
    yield f'{program.name}: does not fit, needs {needs}'
    yield f'  {program.refused}'
    yield '  largest arrays, of all devices together, in GiB:'
  else:
    yield (
      f'{program.name}: fits, {needs}: arguments {program.arguments:.2f}, '
      f'temporaries {program.temporaries:.2f}; compiled in '
      f'{program.seconds:.0f} s'
    )
    counts = [f'{n} {kind}' for kind, n in program.collectives.items() if n]
    counted = ', '.join(counts) or 'none'
    yield f'  collectives, those of a loop counted once: {counted}'
    if counts:
      sizes = [
        f'{program.sent[kind]:.3f} {kind}'
        for kind, n in program.collectives.items()
        if n
      ]
      yield f'  each device sends, in GiB: {", ".join(sizes)}'
    if program.gathered:
      yield (
        f'  slow: {program.gathered} arrays are gathered whole before they are '
        'split differently; try another mesh'
      )
    yield '  largest arrays that it makes, in GiB:'
  for size, shape, what in program.largest:
    yield f'  {size:10.3f}  {shape:28} {what}'


def advice(
  run: run_lib.Run, pod: pods.Pod, program: ahead_of_time.Program
) -> list[str]:
  """Returns changes that reduce the memory of a program that does not fit.

  Each change is a line; changes of the config come first.
  """
  trains = program.name == ahead_of_time.TRAINING
  model, mesh = run.model, run.layout.mesh.shape
  state = run.state_bytes / ahead_of_time.GIB
  lines = []
  if trains and model.remat != 'full':
    lines.append(
      f"model.remat='full' (now {model.remat!r}): blocks are computed again "
      'in the backward pass, not kept'
    )
  if model.implementation == 'reference':
    lines.append(
      "model.implementation='blockwise' (now 'reference'): no array over all "
      'pairs of tokens'
    )
  if model.dtype == 'float32':
    lines.append("model.dtype='bfloat16' (now 'float32'): smaller activations")
  if state > _MUCH_STATE * pod.device_gib and mesh['data'] > 1:
    parts = _power(state / (_MUCH_STATE * pod.device_gib))
    parts = mesh['fsdp'] * math.gcd(parts, mesh['data'])
    lines.append(
      f'mesh.fsdp={parts} (now {mesh["fsdp"]}): splits the training state, '
      f'{state:.1f} GiB on each device'
    )
  # Memory that is proportional to the tokens of a batch.
  room = pod.device_gib - state
  times = (program.needs - state) / room if room > 0 else math.inf
  rows = run.data.batch_size // run.layout.row_parts
  fewer = int(rows / times)
  if trains and fewer:
    lines.append(
      f'data.batch_size={fewer * run.layout.row_parts} (now '
      f'{run.data.batch_size})'
    )
  if trains and rows > 1:
    name = pods.larger(pod, min(times, rows))
    if name and pod.slices == 1:
      lines.append(f'--pod={name}: fewer rows on each device')
  if not fewer or not trains:
    parts = math.gcd(_power(min(times, run.layout.size)), run.layout.size)
    more = '' if run.layout.size > 1 else f'--pod={pods.larger(pod, 2)} with '
    lines.append(
      f'{more}mesh.sequence={max(2, mesh["sequence"] * parts)} (now '
      f'{mesh["sequence"]}): splits the tokens of a row'
    )
  return lines


def _power(times: float) -> int:
  """Returns the least power of 2 that is at least `times`."""
  return 2 ** math.ceil(math.log2(times))
