"""Speed of `lengen prepare` with one process and with several, on the CPU.

Command: .venv/bin/python -m benchmarks.prepare_cpu [--small]
  (needs the extra `data`)

The text is the corpus of the standard library, 48 times, written as files like
C4's: JSON lines, gzip. The vocabulary is a SentencePiece model of 8000 pieces.
Runs with 1, 2 and 4 workers take turns. Each is a process of its own that
writes the whole text to a new folder, and all must write the same bytes.
Seconds include the start of the workers.

CPU seconds are given for the workers, which read and tokenize, and for the
first process, which cuts and writes; with one worker, it does everything. They
depend little on other load on the machine, while the ratios of seconds require
an idle core per worker.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import io
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from benchmarks import alternate, data_cpu
from lengen_jax.data import manifest as manifest_lib
from lengen_jax.data import prepare, stdlib, vocabulary
from lengen_jax.training import runs as runs_lib

WORKERS, FILES, PIECES, ROUNDS = (1, 2, 4), 48, 8000, 3
# This process, and those that it started and that ended.
WHO = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN


def cpu_seconds(who):
  """Returns the CPU time of processes, see `WHO`."""
  used = resource.getrusage(who)
  return used.ru_utime + used.ru_stime


def write(folder, workers):
  """Prepares the text, and prints time and sizes as JSON."""
  used = [cpu_seconds(who) for who in WHO]
  began = time.perf_counter()
  config = data_cpu.data_config(pathlib.Path(folder), 'prepared', 'pieces')
  with (
    tempfile.TemporaryDirectory(dir=folder) as out,
    contextlib.redirect_stdout(io.StringIO()),
  ):
    manifest = prepare.prepare(
      dataclasses.replace(config, path=out),
      raw=folder,
      longest=data_cpu.LENGTH,
      workers=workers,
    )
  seconds = time.perf_counter() - began
  splits = manifest['splits'].values()
  found = {
    'seconds': seconds,
    'first_process': cpu_seconds(WHO[0]) - used[0],
    'workers': cpu_seconds(WHO[1]) - used[1],
    'bytes': sum(split['bytes'] for split in splits),
    'tokens': sum(split['tokens'] for split in splits),
    'sha256': manifest_lib.content(manifest),
  }
  print(json.dumps(found))


def run_process(folder, workers, runs):
  """Calls `write` in a process, and appends its results to `runs`."""
  # Workers import the file of the main module. With -c there is no file.
  program = 'import sys; from benchmarks import prepare_cpu as p; '
  program += 'p.write(sys.argv[1], int(sys.argv[2]))'
  done = subprocess.run(
    [sys.executable, '-c', program, str(folder), str(workers)],
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  runs[workers].append(json.loads(done.stdout))


def run(small):
  """Runs the benchmark and returns all results."""
  workers, files, pieces, rounds = WORKERS, FILES, PIECES, ROUNDS
  load = [os.getloadavg()[0]]
  documents, info = stdlib.read()
  if small:
    workers, files, pieces, rounds = (1, 2), 2, 500, 1
    documents = {split: several[:40] for split, several in documents.items()}
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    data_cpu.write_text(folder, documents, files)
    vocabulary.train(
      (document.tobytes() for document in documents['train']),
      pieces,
      folder / data_cpu.VOCABULARIES['pieces'],
    )
    runs = {count: [] for count in workers}
    alternate.alternate(
      {n: functools.partial(run_process, folder, n, runs) for n in workers},
      rounds=rounds,
      warmups=0,
    )
  load.append(os.getloadavg()[0])
  contents = {n: {one['sha256'] for one in runs[n]} for n in workers}
  assert len(set.union(*contents.values())) == 1, contents
  seconds = {n: [one['seconds'] for one in runs[n]] for n in workers}
  rates = {}
  for count, several in runs.items():
    size = sum(one['bytes'] for one in several)
    found = {'bytes_per_second': size / sum(seconds[count])}
    for who in ('first_process', 'workers'):
      used = sum(one[who] for one in several)
      # With one worker, there is no other process.
      if who == 'first_process' or count > 1:
        found[f'bytes_per_cpu_second of {who}'] = size / used
    rates[f'{count} workers'] = found
  packages = ('array_record', 'sentencepiece')
  return {
    'benchmark': 'prepare_cpu',
    'setting': {
      'text': info,
      'files': files,
      'bytes': runs[1][0]['bytes'],
      'tokens': runs[1][0]['tokens'],
      'pieces': pieces,
      'rounds': rounds,
    },
    'machine': alternate.machine() | {'load before and after': load},
    'versions': runs_lib.versions()
    | {package: importlib.metadata.version(package) for package in packages},
    'rates': rates,
    'ratios': {
      f'seconds: {count} workers / 1': alternate.ratio(seconds, count, 1)
      for count in workers
      if count > 1
    },
  }


def main():
  small = alternate.is_small(__doc__)
  results = run(small)
  for name, rates in results['rates'].items():
    for what, rate in rates.items():
      print(f'{name}: {rate / 1e6:7.2f} M {what}')
  alternate.write(results, small=small)


if __name__ == '__main__':
  main()
