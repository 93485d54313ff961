"""Programs compiled for TPUs that are not there: libtpu has their compiler."""

import copy
import dataclasses
import importlib.util
import math
import os
import pathlib
import re
import time

import jax
from jax.experimental import topologies

from lengen_jax import errors
from lengen_jax.data import menu
from lengen_jax.evaluation import length_curve
from lengen_jax.models import objective
from lengen_jax.training import hlo

GIB = 2**30
TRAINING = 'training step'
# Arrays that are told of a program.
_LARGEST = 6
# Results of these are in memory; others may be part of what follows.
_STORED = {'concatenate', 'dot_general', 'gather', 'scan', 'scatter-add'}
_GATHERS = 'Involuntary full rematerialization'
_UNITS = {'K': 2**-20, 'M': 2**-10, 'G': 1, 'T': 2**10}


@dataclasses.dataclass(frozen=True)
class Program:
  """A program that was compiled, or refused because it does not fit.

  Attributes:
    name: what it does.
    seconds: that the compiler took.
    needs: GiB on each device.
    refused: what the compiler says where it does not fit.
    arguments: GiB of them on each device; results take the place of most.
    temporaries: GiB of all else that a call needs.
    collectives: kind to number; see `hlo.collectives`.
    gathered: how many arrays the compiler found no way to move between
      devices but whole, which is slow; see `partitioning.constrain`.
    largest: (GiB, 'dtype[shape]', what it is), the largest first: arrays on
      a device, or of a program that was refused, those of all devices together.
  """

  name: str
  seconds: float
  needs: float
  refused: str = ''
  arguments: float = 0.0
  temporaries: float = 0.0
  collectives: dict = dataclasses.field(default_factory=dict)
  gathered: int = 0
  largest: tuple = ()


def devices(pod):
  """Devices of TPUs, for shardings of programs to compile.

  Args:
    pod: a pods.Pod.

  Returns:
    A list of devices that cannot run anything.

  Raises:
    errors.ConfigError: libtpu is not installed.
  """
  if importlib.util.find_spec('libtpu') is None:
    raise errors.ConfigError(
      'compiling for TPUs that are not there needs the aot extra: pip install '
      "'lengen_jax[aot]'"
    )
  # Or jax would start this machine's own TPUs, and libtpu look for them, for
  # one process at a time.
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


def training_step(run):
  """Compiles the training step of a run, as its data would have it.

  Args:
    run: a run.Run on `devices`.

  Returns:
    A Program.
  """
  packed = _pads(run.data) and objective.sees_padding(run.model, run.scheme)
  with run.layout.scope():
    traced = run.jitted_step(packed=packed).trace(
      run.abstract_state, run.abstract_batch()
    )
  return compiled(TRAINING, traced, run.layout)


def evaluation(run):
  """Compiles the loss of a run's model at the longest of its eval.lengths.

  Args:
    run: a run.Run on `devices`.

  Returns:
    A Program, or None where answers to prompts are scored instead.

  Raises:
    errors.LengthError: the model takes no rows of that length.
  """
  if run.data.source == 'seqio' and menu.prompt_tasks(run.data.task):
    return None
  length = max(run.eval.lengths)
  longest = copy.copy(run)
  longest.data = dataclasses.replace(
    run.data, batch_size=_rows(run, length), train_length=length
  )
  key = jax.eval_shape(lambda: jax.random.key(0))
  with run.layout.scope():
    traced = length_curve.position_losses.trace(
      run.abstract_state.params,
      longest.abstract_batch(),
      key.update(sharding=run.layout.whole),
      config=run.model,
      scheme=run.scheme,
      sharding=run.layout.whole,
    )
  return compiled(f'evaluation at {length}', traced, run.layout)


def compiled(name, traced, layout):
  """Compiles a traced program for the devices of its mesh.

  Args:
    name: what to call it.
    traced: what `jax.jit(...).trace` gives within `layout.scope`.
    layout: a sharding.Layout.

  Returns:
    A Program.
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
    gathered=_gathered() - gathered,
    largest=tuple(
      (size / GIB, shape, what)
      for size, shape, what in hlo.largest(text, _LARGEST)
    ),
  )


def needed_gib(refused):
  """GiB that a program needs, by the compiler's refusal; it comes first."""
  size, unit = re.search(r'\b([\d.]+)([KMGT])\b', refused).groups()
  return float(size) * _UNITS[unit]


def state_gib(run):
  """GiB of the training state on each device."""
  return (
    sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(run.abstract_state)
    )
    / GIB
  )


def _pads(config):
  """Whether rows of training are padded; of a DataConfig."""
  if config.source == 'seqio' and menu.prompt_tasks(config.task):
    return True
  pictures = config.source == 'seqio' and menu.pictures(config.task)
  return config.mode == 'doc_pad' and not pictures


def _rows(run, length):
  """Rows of a batch of the evaluation, as `length_curve.LengthCurve` has it."""
  parts = run.layout.row_parts
  share = max(1, run.eval.batch_tokens // length // run.layout.size)
  return min(share, -(-run.eval.windows // parts)) * parts


def _gathered():
  """How often the compiler has warned that it gathers an array, so far."""
  folder = pathlib.Path(os.environ.get('TPU_LOG_DIR', '/tmp/tpu_logs'))
  # The warnings of this process, which libtpu keeps out of its output.
  logs = folder.glob(f'*.WARNING.*.{os.getpid()}')
  return sum(path.read_text().count(_GATHERS) for path in logs)


def _largest_of(jaxpr):
  """The largest results of a program that was not split among devices yet."""
  found = {}
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


def _equations(jaxpr):
  """All equations of a jaxpr, those of jaxprs within it among them."""
  for equation in jaxpr.eqns:
    yield equation
    for part in jax.tree.leaves(
      list(equation.params.values()), is_leaf=lambda x: hasattr(x, 'eqns')
    ):
      if hasattr(part, 'eqns'):
        yield from _equations(part)
