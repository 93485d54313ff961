"""Times functions in turn in one process, and reports ratios of their times."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time

from lengen_jax import allocator, errors
from lengen_jax.training import revision

allocator.reuse_memory()

RESULTS = pathlib.Path(__file__).parent / 'results'
# A ratio above its record by this factor is reported as a regression.
REGRESSION = 1.15


def parser(doc):
  """Returns a parser of the command line, with the option --small."""
  found = argparse.ArgumentParser(
    description=doc, formatter_class=argparse.RawTextHelpFormatter
  )
  found.add_argument(
    '--small',
    action='store_true',
    help='run the same code on small arrays in seconds; record nothing',
  )
  return found


def is_small(doc):
  """Parses the command line of a program that has no other option."""
  return parser(doc).parse_args().small


def chosen(kind, names, every):
  """Returns the names, or all if there are none; exits if one is unknown."""
  for name in names:
    if name not in every:
      raise SystemExit(errors.one_of(kind, name, every))
  return names or [*every]


def machine():
  """Returns the processor's model and the number of cores."""
  model = platform.machine()
  if os.path.exists('/proc/cpuinfo'):
    with open('/proc/cpuinfo') as file:
      for line in file:
        if line.startswith('model name'):
          model = line.split(':', 1)[1].strip()
          break
  return {'processor': model, 'cores': cores()}


def compiles():
  """Returns whether torch.compile finds its C++ compiler; if not, says so."""
  compiler = os.environ.get('CXX', 'g++')
  found = shutil.which(compiler) is not None
  if not found:
    print(f'no C++ compiler {compiler}: torch.compile is left out', flush=True)
  return found


def cores():
  """Returns the number of cores that this process may use."""
  try:
    return len(os.sched_getaffinity(0))
  except AttributeError:  # macOS.
    return os.cpu_count()


def alternate(functions, *, rounds, warmups=1):
  """Runs each function in turn, `rounds` times, after `warmups` of each.

  Args:
    functions: dict from name to a function that returns when its work is done.
    rounds: number of timed rounds.
    warmups: number of rounds before these, which are not timed.

  Returns:
    dict from name to a list of seconds, one per round.
  """
  seconds = {name: [] for name in functions}
  for number in range(warmups + rounds):
    for name, function in functions.items():
      began = time.perf_counter()
      function()
      if number >= warmups:
        seconds[name].append(time.perf_counter() - began)
  return seconds


def ratio(seconds, name, peer):
  """Returns median and range of the ratio of times, `name` to `peer`."""
  ratios = [a / b for a, b in zip(seconds[name], seconds[peer], strict=True)]
  return {
    'median': statistics.median(ratios),
    'min': min(ratios),
    'max': max(ratios),
  }


def regressions(before, ratios):
  """Returns a line for each ratio that is 15 % above the one before it.

  Args:
    before: {name: a ratio, or what `ratio` returns}, of the record.
    ratios: the same, measured now.
  """

  def median(found):
    return found['median'] if isinstance(found, dict) else found

  return [
    f'REGRESSION: {name} is {median(found):.2f}; on record it is '
    f'{median(before[name]):.2f}'
    for name, found in ratios.items()
    if name in before and median(found) > REGRESSION * median(before[name])
  ]


def in_process(module, *arguments, **variables):
  """Runs a benchmark in a new process; returns the last line of its output.

  Args:
    module: name of the benchmark.
    *arguments: arguments of the command.
    **variables: environment variables.
  """
  done = subprocess.run(
    [sys.executable, '-m', f'benchmarks.{module}', *map(str, arguments)],
    env=os.environ | {'JAX_PLATFORMS': 'cpu'} | variables,
    cwd=pathlib.Path(__file__).parents[1],
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise SystemExit(f'{module} {arguments}: {done.stderr[-2000:]}')
  return (done.stdout.splitlines() or [''])[-1]


def origin():
  """Returns the commit of the measured code and the date."""
  today = datetime.datetime.now(datetime.UTC).date()
  return {'commit': revision.running(), 'date': str(today)}


def show(ratios):
  """Prints ratios: numbers, or what `ratio` returns."""
  for name, r in ratios.items():
    if isinstance(r, dict):
      print(
        f'{name:36} {r["median"]:10.2f} x   ({r["min"]:.2f} .. {r["max"]:.2f})'
      )
    else:
      print(f'{name:36} {r:10.2f} x')


def write(results, *, small=False):
  """Prints ratios, and writes results/{benchmark}.json.

  Also prints the regressions of ratios. With `small`, nothing is written.
  """
  show(results['ratios'])
  if small:
    return
  path = RESULTS / f'{results["benchmark"]}.json'
  if path.exists():
    before = json.loads(path.read_text()).get('ratios', {})
    for line in regressions(before, results['ratios']):
      print(line)
  path.write_text(json.dumps(results | origin(), indent=1) + '\n')
  print(f'wrote {path}')


def write_cell(benchmark, name, cell, folder=RESULTS):
  """Writes a cell to {benchmark}.json in a folder; keeps the other cells."""
  path = folder / f'{benchmark}.json'
  kept = {'benchmark': benchmark, 'cells': {}}
  if path.exists():
    kept = json.loads(path.read_text())
  kept['cells'][name] = cell | origin()
  path.write_text(json.dumps(kept, indent=1) + '\n')


def record(benchmark, setting, seconds, ratios, versions, *, small=False):
  """Prints the results and writes them to results/{benchmark}.json.

  With `small`, nothing is written.
  """
  results = {
    'benchmark': benchmark,
    'setting': setting,
    'machine': machine(),
    'versions': versions,
    'median_ms': {
      name: statistics.median(times) * 1e3 for name, times in seconds.items()
    },
    'ratios': ratios,
  }
  for name, milliseconds in results['median_ms'].items():
    print(f'{name:36} {milliseconds:10.2f} ms')
  write(results, small=small)
