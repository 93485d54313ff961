"""Times functions in turn in one process, and reports ratios of their times."""

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import time

from lengen_jax import allocator

allocator.reuse_memory()

RESULTS = pathlib.Path(__file__).parent / 'results'


# A ratio above its record by this factor is reported as a regression.
REGRESSION = 1.15


def arguments(doc, *names):
  """Parses the command line: --small, and positional arguments of any number.

  Args:
    doc: docstring of the program.
    *names: (name, help) of each list of positional arguments.
  """
  parser = argparse.ArgumentParser(
    description=doc, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument(
    '--small',
    action='store_true',
    help='run the same code on small arrays in seconds; record nothing',
  )
  for name, text in names:
    parser.add_argument(name, nargs='*', help=text)
  return parser.parse_args()


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


def write(results):
  """Writes results/{benchmark}.json and reports regressions of its ratios.

  Returns:
    the path of the file.
  """
  path = RESULTS / f'{results["benchmark"]}.json'
  if path.exists():
    before = json.loads(path.read_text()).get('ratios', {})
    for line in regressions(before, results['ratios']):
      print(line)
  path.write_text(json.dumps(results, indent=1) + '\n')
  print(f'wrote {path}')
  return path


def record(benchmark, setting, seconds, ratios, versions, *, small=False):
  """Prints the results and writes them to results/{benchmark}.json.

  With `small`, nothing is written.

  Returns:
    dict from name to the median, in milliseconds.
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
  for name, r in ratios.items():
    print(
      f'{name:36} {r["median"]:10.2f} x   ({r["min"]:.2f} .. {r["max"]:.2f})'
    )
  if not small:
    write(results)
  return results['median_ms']
