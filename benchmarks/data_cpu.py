"""Speed of data pipelines on the CPU: this package, and plain seqio.

Command: .venv/bin/python -m benchmarks.data_cpu [--small]
  (needs the extra `data`)

The text is the corpus of the standard library, written as files like C4's: JSON
lines, gzip. Rows of 2048 tokens in batches of 64, each token of a document once
(data.mode='doc_pad', as in configs/fire_c4.py), shuffled:

  prepared          windows that `lengen prepare` wrote, read with grain
  seqio through us  data.source='seqio', read from the raw files
  seqio             the peer: seqio.get_dataset with LMFeatureConverter on the
                    task of data.register('c4'), the same rows. seqio cannot
                    read such files, so it uses this package's reader
  prepare           all of `lengen prepare`: unzip, tokenize, cut, zip, write

Each is measured with a vocabulary of bytes, and with a SentencePiece model of
8000 pieces that is trained first. Tokens do not include padding. Files are in
the page cache, and batches are numpy arrays.

Each case runs in two processes: one may use all cores, the other one core. The
CPU affinity is set before a process starts, so that TensorFlow creates a
matching number of threads. Processes take turns; a signal stops all others, so
that they cannot read ahead between rounds. A round reads batches for a second
and finishes the last batch. tokens_per_cpu_second divides by the CPU time of
all threads of the process, which depends little on other load on the machine.
"""

import contextlib
import dataclasses
import functools
import gzip
import importlib.metadata
import json
import multiprocessing
from multiprocessing import connection
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time
import traceback

import numpy as np

from benchmarks import alternate
from lengen_jax import data
from lengen_jax.data import prepare, stdlib, vocabulary
from lengen_jax.training import runs as runs_lib

LENGTH, BATCH, MODE = 2048, 64, 'doc_pad'
# Each training file contains the whole split, in a different order.
TRAIN_FILES, PIECES, ROUNDS, SECONDS, WARMUPS = 2, 8000, 7, 1.0, 2
VOCABULARIES = {'bytes': 'bytes', 'pieces': 'pieces.model'}


@dataclasses.dataclass(frozen=True)
class Case:
  """A pipeline (`way`), a vocabulary and the cores of one process."""

  way: str
  vocabulary: str
  cores: str

  def __str__(self):
    return f'{self.cores}, {self.vocabulary}: {self.way}'


WAYS = ('prepared', 'seqio through us', 'seqio', 'prepare')
CORES = ('one core', 'all cores')
# Cores and vocabulary of --small.
SMALL = 'one core', 'bytes'
CASES = [
  Case(way, kind, cores)
  for cores in CORES
  for kind in VOCABULARIES
  for way in WAYS
]


def write_text(folder, documents, files=TRAIN_FILES):
  """Writes documents to files in the format of allenai/c4."""
  (folder / 'c4' / 'en').mkdir(parents=True)
  for split, count in (('train', files), ('validation', 1)):
    for number in range(count):
      name = f'c4-{split}.{number:05}-of-{count:05}.json.gz'
      order = np.random.default_rng(number).permutation(len(documents[split]))
      with gzip.open(folder / 'c4' / 'en' / name, 'wt') as file:
        for index in order:
          text = documents[split][index].tobytes()
          record = {
            'text': text.decode('utf-8', errors='replace'),
            'timestamp': '2019-04-25T12:57:54Z',
            'url': 'https://example.org',
          }
          file.write(json.dumps(record) + '\n')


def data_config(folder, source, kind):
  """Returns the data section of a config for prepared windows or raw files."""
  named = VOCABULARIES[kind]
  return data.DataConfig(
    source=source,
    train_length=LENGTH,
    batch_size=BATCH,
    path=str(folder / kind) if source == 'prepared' else '',
    raw=str(folder),
    task='c4',
    vocabulary=named if named == 'bytes' else str(folder / named),
    mode=MODE,
  )


def our_reader(folder, source, kind):
  """Returns a function that reads a batch and returns its token count."""
  config = data_config(folder, source, kind)
  batches = data.load(config).training(config, seed=0)
  return lambda: int(batches.next()['weights'].sum())


def peer_reader(folder, kind):
  """Returns the function of `our_reader` for plain seqio."""
  import seqio

  config = data_config(folder, 'seqio', kind)
  name = data.register('c4', path=config.raw, vocab=config.vocabulary)
  dataset = seqio.get_dataset(
    mixture_or_task_name=name,
    task_feature_lengths={'targets': LENGTH},
    feature_converter=seqio.LMFeatureConverter(pack=False),
    dataset_split='train',
    shuffle=True,
    num_epochs=None,
    seed=0,
  )
  batches = dataset.batch(BATCH, drop_remainder=True).prefetch(2)
  batches = batches.as_numpy_iterator()
  return lambda: int(next(batches)['decoder_loss_weights'].sum())


def read_round(read, seconds):
  """Reads batches for `seconds`; returns (tokens, None)."""
  began, tokens = time.perf_counter(), 0
  while time.perf_counter() < began + seconds:
    tokens += read()
  return tokens, None


def prepare_round(folder, kind):
  """Prepares the whole text; returns (tokens, bytes)."""
  config = data_config(folder, 'prepared', kind)
  with tempfile.TemporaryDirectory(dir=folder) as out:
    config = dataclasses.replace(config, path=out)
    manifest = prepare.prepare(config, raw=str(folder), longest=LENGTH)
  splits = manifest['splits'].values()
  return sum(s['tokens'] for s in splits), sum(s['bytes'] for s in splits)


def worker(case, folder, seconds, pipe):
  """In a process, reports that it is ready, then runs a round per message."""
  # Discards progress lines and TensorFlow's messages.
  for stream in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
  try:
    if case.way == 'prepare':
      do_round = functools.partial(prepare_round, folder, case.vocabulary)
    else:
      if case.way == 'seqio':
        read = peer_reader(folder, case.vocabulary)
      else:
        source = 'prepared' if case.way == 'prepared' else 'seqio'
        read = our_reader(folder, source, case.vocabulary)
      read()
      do_round = functools.partial(read_round, read, seconds)
    pipe.send({'cores': alternate.cores()})
    while True:
      pipe.recv()
      began, used = time.perf_counter(), time.process_time()
      tokens, size = do_round()
      pipe.send(
        {
          'seconds': time.perf_counter() - began,
          'cpu_seconds': time.process_time() - used,
          'tokens': tokens,
          'bytes': size,
        }
      )
  except EOFError:
    return
  except Exception:
    pipe.send(traceback.format_exc())


class Process:
  """A worker process, which is stopped between its rounds."""

  def __init__(self, case, folder, seconds):
    self.case, self.rounds = case, []
    context = multiprocessing.get_context('spawn')
    self.pipe, theirs = context.Pipe()
    self._process = context.Process(
      target=worker, args=(case, folder, seconds, theirs), daemon=True
    )
    everything = os.sched_getaffinity(0)
    if case.cores == 'one core':
      os.sched_setaffinity(0, {max(everything)})
    try:
      self._process.start()
    finally:
      os.sched_setaffinity(0, everything)
    theirs.close()

  def receive(self):
    """Returns the next message of the process, then stops the process."""
    try:
      answer = self.pipe.recv()
    except EOFError:
      answer = 'the process ended without an answer'
    if isinstance(answer, str):
      raise RuntimeError(f'{self.case}: {answer}')
    os.kill(self._process.pid, signal.SIGSTOP)
    return answer

  def round(self):
    os.kill(self._process.pid, signal.SIGCONT)
    self.pipe.send(None)
    self.rounds.append(self.receive())

  def end(self):
    self._process.kill()
    self._process.join()


def measure(folder, cases, rounds, seconds):
  """Runs the cases in turn; returns {case: list of rounds, each a dict}."""
  with contextlib.ExitStack() as stack:
    processes = []
    for case in cases:
      processes.append(Process(case, folder, seconds))
      stack.callback(processes[-1].end)
    waiting = {process.pipe: process for process in processes}
    while waiting:
      for pipe in connection.wait(list(waiting)):
        process = waiting.pop(pipe)
        cores = process.receive()['cores']
        one = process.case.cores == 'one core'
        assert cores == (1 if one else alternate.cores()), (process.case, cores)
    print(f'{len(processes)} processes are ready', flush=True)
    alternate.alternate(
      {process.case: process.round for process in processes},
      rounds=rounds,
      warmups=WARMUPS,
    )
    return {process.case: process.rounds[WARMUPS:] for process in processes}


def rate(rounds, what, clock):
  """Returns rates by a clock: median and range over rounds, and overall.

  The next round reads the batches that a round leaves in a pipeline's buffers.
  Rounds of few batches therefore differ more than pipelines do.
  """
  rates = [r[what] / r[clock] for r in rounds]
  return {
    'median': statistics.median(rates),
    'min': min(rates),
    'max': max(rates),
    'overall': sum(r[what] for r in rounds) / sum(r[clock] for r in rounds),
  }


def summary(rounds):
  """Returns the rates of a case."""
  found = {
    'tokens_per_second': rate(rounds, 'tokens', 'seconds'),
    'tokens_per_cpu_second': rate(rounds, 'tokens', 'cpu_seconds'),
  }
  if rounds[0]['bytes']:
    found['bytes_per_second'] = rate(rounds, 'bytes', 'seconds')
  return found


def time_ratios(measured):
  """Returns ratios of times per token: to seqio, and of one core to all."""
  found = {}
  for clock in ('seconds', 'cpu_seconds'):
    times = {
      case: [r[clock] / r['tokens'] for r in rounds]
      for case, rounds in measured.items()
    }
    for case in measured:
      if case.way in ('prepared', 'seqio through us'):
        peer = dataclasses.replace(case, way='seqio')
        found[f'{clock} per token: {case} / seqio'] = alternate.ratio(
          times, case, peer
        )
      other = dataclasses.replace(case, cores='all cores')
      if clock == 'seconds' and other in times and other != case:
        found[f'{clock} per token: {case} / all cores'] = alternate.ratio(
          times, case, other
        )
  return found


def run(small):
  """Runs the benchmark and returns all results."""
  cases, pieces, rounds, seconds = CASES, PIECES, ROUNDS, SECONDS
  load = [os.getloadavg()[0]]
  documents, info = stdlib.read()
  if small:
    cases = [c for c in CASES if (c.cores, c.vocabulary) == SMALL]
    pieces, rounds, seconds = 500, 2, 0.05
    documents = {split: several[:40] for split, several in documents.items()}
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    write_text(folder, documents)
    began = time.perf_counter()
    vocabulary.train(
      (document.tobytes() for document in documents['train']),
      pieces,
      folder / VOCABULARIES['pieces'],
    )
    training = time.perf_counter() - began
    print(f'trained {pieces} pieces in {training:.1f} s', flush=True)
    read = {}
    for kind in VOCABULARIES:
      config = data_config(folder, 'prepared', kind)
      manifest = prepare.prepare(config, raw=str(folder), longest=LENGTH)
      found = manifest['splits']['train']
      read[kind] = {
        key: found[key] for key in ('documents', 'bytes', 'tokens', 'windows')
      }
    measured = measure(folder, cases, rounds, seconds)
  load.append(os.getloadavg()[0])
  packages = ('tensorflow', 'seqio', 'grain', 'array_record', 'sentencepiece')
  return {
    'benchmark': 'data_cpu',
    'setting': {
      'text': info,
      'train': read,
      'length': LENGTH,
      'batch': BATCH,
      'mode': MODE,
      'pieces': pieces,
      'rounds': rounds,
      'seconds of a round': seconds,
    },
    'machine': alternate.machine() | {'load before and after': load},
    'versions': runs_lib.versions()
    | {package: importlib.metadata.version(package) for package in packages},
    'vocabulary': {
      'seconds to train': training,
      'bytes_per_second': info['bytes']['train'] / training,
    },
    'rates': {str(case): summary(found) for case, found in measured.items()},
    'ratios': time_ratios(measured),
  }


def main():
  small = alternate.is_small(__doc__)
  # On SIGTERM, exits normally, which ends the stopped processes.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
  results = run(small)
  for name, rates in results['rates'].items():
    tokens = {k: v / 1e6 for k, v in rates['tokens_per_second'].items()}
    used = rates['tokens_per_cpu_second']['overall'] / 1e6
    more = ''
    if 'bytes_per_second' in rates:
      more = f', {rates["bytes_per_second"]["median"] / 1e6:.1f} MB/s'
    print(
      f'{name:34} {tokens["median"]:6.2f} M tokens/s   '
      f'({tokens["min"]:.2f} .. {tokens["max"]:.2f}, '
      f'overall {tokens["overall"]:.2f})   {used:.2f} per CPU second{more}'
    )
  alternate.write(results, small=small)


if __name__ == '__main__':
  main()
