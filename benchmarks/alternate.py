"""Times functions side by side: in turn, in one process, as ratios."""

import json
import os
import pathlib
import platform
import statistics
import time

from lengen_jax import allocator

allocator.reuse_memory()

RESULTS = pathlib.Path(__file__).parent / 'results'


def cores():
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0))


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


def record(benchmark, setting, seconds, ratios, versions):
  """Prints the results and writes them to results/{benchmark}.json.

  Returns:
    dict from name to the median, in milliseconds.
  """
  results = {
    'benchmark': benchmark,
    'setting': setting,
    'machine': {
      'processor': platform.machine(),
      'cores': cores(),
    },
    'versions': versions,
    'median_ms': {
      name: statistics.median(times) * 1e3 for name, times in seconds.items()
    },
    'ratios': ratios,
  }
  RESULTS.mkdir(exist_ok=True)
  path = RESULTS / f'{benchmark}.json'
  path.write_text(json.dumps(results, indent=1) + '\n')
  for name, milliseconds in results['median_ms'].items():
    print(f'{name:36} {milliseconds:10.2f} ms')
  for name, r in ratios.items():
    print(
      f'{name:36} {r["median"]:10.2f} x   ({r["min"]:.2f} .. {r["max"]:.2f})'
    )
  print(f'wrote {path}')
  return results['median_ms']
