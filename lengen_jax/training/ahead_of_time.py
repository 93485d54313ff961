"""Ahead-of-time compilation for TPUs by libtpu, on a machine without TPUs."""

from collections.abc import Iterator
import copy
import dataclasses
import importlib.util
import os
import pathlib
import re
import time
from typing import Any

import jax
from jax.experimental import topologies

from lengen_jax import errors
from lengen_jax.data import config as data_config
from lengen_jax.data import menu
from lengen_jax.evaluation import length_curve
from lengen_jax.models import objective
from lengen_jax.training import hlo, pods, sharding
from lengen_jax.training import run as run_lib

GIB = 2**30
TRAINING = 'training step'
# Number of arrays in `Program.largest`.
_LARGEST = 6
# Primitives whose results are stored in memory, not fused into consumers.
_STORED = {'concatenate', 'dot_general', 'gather', 'scan', 'scatter-add'}
_GATHERS = 'Involuntary full rematerialization'


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program, or one that XLA rejected because it does not fit.

  Attributes:
    name: what the program computes.
    seconds: compile time.
    needs: GiB per device.
    refused: XLA's message if the program does not fit.
    arguments: GiB of arguments per device; most results reuse their memory.
    temporaries: GiB of all other memory per device.
    collectives: number of collectives by kind; see `hlo.collectives`.
    sent: GiB that each device sends in collectives by kind; see `hlo.sent`.
    gathered: number of arrays that XLA replicates to reshard them, which is
      slow; see `partitioning.constrain`.
    largest: (GiB, 'dtype[shape]', operation) of the largest arrays, per device;
      for a rejected program, before they are split over devices.
  """

  name: str
  seconds: float
  needs: float
  refused: str = ''
  arguments: float = 0.0
  temporaries: float = 0.0
  collectives: dict[str, int] = dataclasses.field(default_factory=dict)
  sent: dict[str, float] = dataclasses.field(default_factory=dict)
  gathered: int = 0
  largest: tuple[tuple[float, str, str], ...] = ()


def devices(pod: pods.Pod) -> list[Any]:
  """Returns descriptions of the devices of a pod, for compilation only.

  Raises:
    errors.ConfigError: libtpu is not installed.
  """
  if importlib.util.find_spec('libtpu') is None:
    raise errors.ConfigError(
      "compiling for TPUs needs the aot extra, pip install 'lengen_jax[aot]', "
      'in an environment of its own: where libtpu is installed, every program '
      'searches for TPUs'
    )
  # Keep jax and libtpu from initialising or locking TPUs of this machine.
  jax.config.update('jax_platforms', 'cpu')
  os.environ |= {
    'TPU_SKIP_MDS_QUERY': '1',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_ACCELERATOR_TYPE': 'v4-8',
    'TPU_WORKER_HOSTNAMES': 'localhost',
  }
  slices = {'num_slices': pod.slices} if pod.slices > 1 else {}
  return topologies.get_topology_desc(
    platform='tpu',
    topology_name=f'{pod.generation}:{pod.topology}',
    chip_config_name=pod.chip_config,
    **slices,
  ).devices


def training_step(run: run_lib.Run) -> Program:
  """Compiles the training step of a run on `devices`."""
  packed = _pads(run.data) and objective.sees_padding(run.model, run.scheme)
  with run.layout.scope():
    traced = run.jitted_step(packed=packed).trace(
      run.abstract_state, run.abstract_batch()
    )
  return compiled(TRAINING, traced, run.layout)


def evaluation(run: run_lib.Run) -> Program | None:
  """Compiles the loss of a run on `devices` at its longest eval length.

  Returns:
    A Program, or None if the run is evaluated by answers to prompts.

  Raises:
    errors.LengthError: the model does not accept rows of that length.
  """
  if run.data.source == 'seqio' and menu.prompt_tasks(run.data.task):
    return None
  length = max(run.eval.lengths)
  count, tokens = run.eval.windows, length
  if run.model.architecture == 'encoder_decoder':
    count, tokens = run.eval.examples or count, length + 1
  longest = copy.copy(run)
  longest.data = dataclasses.replace(
    run.data,
    batch_size=length_curve.rows_of_batch(
      count, tokens, run.eval.batch_tokens, run.layout
    ),
    train_length=length,
    source_length=None,
  )
  key = jax.eval_shape(lambda: jax.random.key(0))
  with run.layout.scope():
    traced = length_curve.weighted_losses.trace(
      run.abstract_state.params,
      longest.abstract_batch(),
      key.update(sharding=run.layout.whole),
      config=run.model,
      scheme=run.scheme,
      sharding=run.layout.whole,
    )
  return compiled(f'evaluation at {length}', traced, run.layout)


def compiled(name: str, traced: Any, layout: sharding.Layout) -> Program:
  """Compiles a traced program for the devices of its mesh.

  Args:
    name: what the program computes.
    traced: `jax.jit(...).trace(...)`, called within `layout.scope`.
    layout: a sharding.Layout.
  """
  began, gathered = time.monotonic(), _gathered()
  with layout.scope():
    lowered = traced.lower()
    try:
      executable = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      refused = str(error).splitlines()[0]
      return Program(
        name=name,
        seconds=time.monotonic() - began,
        needs=needed_gib(refused),
        refused=refused,
        largest=_largest_of(traced.jaxpr),
      )
  seconds = time.monotonic() - began
  text, memory = executable.as_text(), executable.memory_analysis()
  arguments = memory.argument_size_in_bytes
  results = memory.output_size_in_bytes - memory.alias_size_in_bytes
  temporaries = (
    memory.temp_size_in_bytes + results + memory.generated_code_size_in_bytes
  )
  return Program(
    name=name,
    seconds=seconds,
    needs=(arguments + temporaries) / GIB,
    arguments=arguments / GIB,
    temporaries=temporaries / GIB,
    collectives=hlo.collectives(text),
    sent={kind: size / GIB for kind, size in hlo.sent(text).items()},
    gathered=_gathered() - gathered,
    largest=tuple(
      (size / GIB, shape, what)
      for size, shape, what in hlo.largest(text, _LARGEST)
    ),
  )


def needed_gib(refused: str) -> float:
  """Returns the GiB that a program needs, from XLA's out-of-memory message."""
  size, unit = re.search(r'\b([\d.]+)([KMGT])\b', refused).groups()
  return float(size) * {'K': 2**-20, 'M': 2**-10, 'G': 1, 'T': 2**10}[unit]


def _pads(config: data_config.DataConfig) -> bool:
  """Returns whether training rows have padding."""
  if config.source == 'seqio' and menu.prompt_tasks(config.task):
    return True
  pictures = config.source == 'seqio' and menu.pictures(config.task)
  return config.mode == 'doc_pad' and not pictures


def _gathered() -> int:
  """Counts the warnings about replicated arrays that XLA has logged so far."""
  folder = pathlib.Path(os.environ.get('TPU_LOG_DIR', '/tmp/tpu_logs'))
  # libtpu logs warnings to a file per process.
  logs = folder.glob(f'*.WARNING.*.{os.getpid()}')
  return sum(path.read_text().count(_GATHERS) for path in logs)


def _largest_of(jaxpr: Any) -> tuple[tuple[float, str, str], ...]:
  """Returns the largest results of a program before it is partitioned."""
  found: dict[str, tuple[float, str, str]] = {}
  for equation in _equations(jaxpr):
    if equation.primitive.name not in _STORED:
      continue
    name = hlo.readable(
      f'{equation.source_info.name_stack}/{equation.primitive.name}'
    )
    for array in (variable.aval for variable in equation.outvars):
      shape = f'{array.dtype.name}{list(array.shape)}'.replace(' ', '')
      size = array.size * array.dtype.itemsize / GIB
      found.setdefault(shape, (size, shape, name))
  return tuple(sorted(found.values(), reverse=True)[:_LARGEST])


def _equations(jaxpr: Any) -> Iterator[Any]:
  """Yields all equations of a jaxpr and of the jaxprs inside it."""
  for equation in jaxpr.eqns:
    yield equation
    for part in jax.tree.leaves(
      list(equation.params.values()), is_leaf=lambda x: hasattr(x, 'eqns')
    ):
      if hasattr(part, 'eqns'):
        yield from _equations(part)
