"""Runs `experiment.Timing`: how long a forward pass of each row takes.

A forward pass is what a batch costs a model that answers: the logits of all its
tokens, in one compiled program, with positions and encodings as evaluation has
them. Nothing is trained, since no time depends on what was learned; each seed
draws other parameters and other tokens.

A seed is a round, in which the rows take turns, so that whatever else the
machine does falls on all alike. A figure is the median of a round. The paper
has the mean, in which one interruption can weigh as much as all the rest; every
single time is kept, in timings.json.
"""

import copy
import dataclasses
import json
import statistics
import time

import jax
import numpy as np

from lengen_jax.data import windows
from lengen_jax.models import objective
from lengen_jax.models import stacking
from lengen_jax.reproduce import rows as rows_lib
from lengen_jax.reproduce import settings
from lengen_jax.training import files
from lengen_jax.training import revision
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib

RESULTS = 'timings.json'
# Rows of a batch, at every scale: one for each of the four chips of FIRE's
# figure 5, which does not say how many it has.
_BATCH_SIZE = 4
# Sections of a config that a forward pass does not depend on.
_UNUSED = ('optimizer', 'train', 'eval')


def make_config(part, request):
  """The config that all rows share."""
  # What a user sets comes last.
  changes = [f'--config.data.batch_size={_BATCH_SIZE}', *request.overrides]
  config = settings.load(part.config, request.scale, changes)
  with config.unlocked():
    config.eval.lengths = tuple(
      int(config.data.train_length * ratio) for ratio in part.ratios
    )
    if 'paper' in config:
      del config.paper
  return config


def check(part, request):
  """Raises unless its config and runs can be read, and run at every length.

  It needs no data.
  """
  for forward in _forwards(part, make_config(part, request), request.scale):
    forward.check()


def run(part, request, before):
  """Times every row in a round for each seed; a part of the results.

  What was timed before is not timed again, if nothing is different: rows,
  config, devices, versions and commit.
  """
  del before
  config = make_config(part, request)
  forwards = _forwards(part, config, request.scale)
  rounds = _rounds(part, request, config, forwards)
  rows = []
  for number, row in enumerate(settings.rows(part, request.scale)):
    by_seed = [
      [
        1e3 * statistics.median(seconds)
        for seconds in rounds[str(seed)][number]
      ]
      for seed in request.seeds
    ]
    rows.append(rows_lib.make(row, forwards[number].name, by_seed, 'mean'))
  length = config.data.train_length
  full = dataclasses.replace(request, scale='paper', overrides=())
  differences = settings.differences(
    _used(make_config(part, full)), _used(config), part, request.scale
  )
  return {
    'kind': 'timing',
    'name': part.name,
    'unit': 'milliseconds',
    'columns': list(part.ratios),
    'train_length': length,
    'tokens': config.data.batch_size * length,
    'device': forwards[0].device,
    'of_seeds': 'mean',
    'rows': rows,
    'standin': None,
    'differences': [
      *differences,
      f'the median of {part.runs} passes, of which the paper has the mean',
      f'rows in a batch: {config.data.batch_size}; the paper does not say how '
      'many it has',
    ],
    'train_seconds': 0.0,
  }


class _Forward:
  """The forward pass of a run.

  Attributes:
    name: of the run.
    device: what it runs on: platform, kind, and how many.
  """

  def __init__(self, name, config):
    """Reads a config.

    Args:
      name: of the run.
      config: its ConfigDict.

    Raises:
      errors.LengenError: the config cannot work.
    """
    self.name = name
    self._run = run_lib.Run(config)
    layout = self._run.layout
    first = layout.mesh.devices.flat[0]
    self.device = {
      'platform': first.platform,
      'kind': first.device_kind,
      'count': layout.size,
    }
    self._logits = layout.jit(self._apply)
    self._init = layout.jit(
      lambda seed: stacking.init(self._run.model, jax.random.key(seed)),
      out_shardings=self._run.shardings.params,
    )

  def check(self):
    """Traces it, so that what cannot run says so at once.

    Raises:
      errors.LengenError: naming what does not go together.
    """
    for length in self._run.eval.lengths:
      with self._run.layout.scope():
        jax.eval_shape(
          self._apply, self._run.abstract_state.params, self._batch(0, length)
        )

  def prepare(self, seed):
    """Draws parameters and tokens.

    Args:
      seed: of both.

    Returns:
      For each length, a function that runs a forward pass and waits for it.
    """
    params = self._init(seed)
    batches = [
      self._run.layout.place(self._batch(seed, length))
      for length in self._run.eval.lengths
    ]
    return [
      lambda batch=batch: jax.block_until_ready(self._logits(params, batch))
      for batch in batches
    ]

  def _batch(self, seed, length):
    shape = self._run.data.batch_size, length + 1
    return windows.lm_batch(
      np.random.default_rng(seed).integers(
        self._run.model.vocab_size, size=shape
      )
    )

  def _apply(self, params, batch):
    """Logits, `[B, L, V]`."""
    return objective.token_losses(
      self._run.model,
      self._run.scheme,
      params,
      # A model that is given no targets returns logits.
      {**batch, 'targets': None},
      rng=jax.random.key(self._run.config.seed),
      train=False,
      packed=False,
    )


def _forwards(part, config, scale):
  """The forward pass of each row."""
  names = settings.runs(part, config, scale)
  return [
    _Forward(names[row], runs_lib.configure(config, run))
    for row, run in settings.parse(part, config, scale).items()
  ]


def _rounds(part, request, config, forwards):
  """Seconds: {seed: [[of each pass] of each length] of each row]}."""
  setting = {
    'config': json.loads(_used(config).to_json()),
    'ratios': list(part.ratios),
    'rows': [forward.name for forward in forwards],
    'runs': part.runs,
    'device': forwards[0].device,
    'versions': runs_lib.versions(),
    'commit': revision.running(),
  }
  path = request.folder / part.name / RESULTS
  found = {'setting': setting, 'seconds': {}}
  if path.exists():
    before = files.read_json(path)
    others = [
      key for key in setting if setting[key] != before['setting'].get(key)
    ]
    if others:
      print(
        f'{part.name}: timed again, as {", ".join(others)} changed', flush=True
      )
    else:
      found = before
  path.parent.mkdir(parents=True, exist_ok=True)
  missing = [
    seed for seed in request.seeds if str(seed) not in found['seconds']
  ]
  for seed in missing:
    passes = []
    for number, forward in enumerate(forwards):
      began = time.perf_counter()
      of_forward = forward.prepare(seed)
      for run_pass in of_forward:
        # The first compiles it.
        run_pass()
      passes += of_forward
      if seed == missing[0]:
        print(
          f'{part.name}: [{number + 1}/{len(forwards)}] {forward.name}: '
          f'compiled and run in {time.perf_counter() - began:.1f} s',
          flush=True,
        )
    seconds = _in_turn(passes, part.runs)
    lengths = len(part.ratios)
    found['seconds'][str(seed)] = [
      seconds[first : first + lengths]
      for first in range(0, len(seconds), lengths)
    ]
    files.write_json(path, found)
    print(
      f'{part.name}: seed {seed}: {part.runs} passes of each in '
      f'{sum(map(sum, seconds)):.1f} s',
      flush=True,
    )
  return found['seconds']


def _in_turn(passes, runs):
  """Seconds of each pass, a list of `runs` each, taken in turn."""
  seconds = [[] for _ in passes]
  for _ in range(runs):
    for run_pass, of_pass in zip(passes, seconds, strict=True):
      began = time.perf_counter()
      run_pass()
      of_pass.append(time.perf_counter() - began)
  return seconds


def _used(config):
  """The part of a config that a forward pass depends on."""
  config = copy.deepcopy(config)
  with config.unlocked():
    for section in _UNUSED:
      del config[section]
  return config
