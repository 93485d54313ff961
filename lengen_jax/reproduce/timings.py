"""Time of a forward pass of untrained models, on random tokens.

A forward pass computes the logits of all tokens of a batch in one compiled
program, with positions and encodings as in evaluation. Each seed draws other
parameters and tokens, and is one round in which the rows take turns, so that
other load on the machine affects all rows alike. Scores are medians of a round,
in milliseconds; the paper reports means, which a single interruption can
dominate. timings.json keeps every time.
"""

from collections.abc import Callable, Sequence
import copy
import dataclasses
import functools
import json
import statistics
import time
from typing import Any, ClassVar

import jax
import numpy as np

from lengen_jax.data import windows
from lengen_jax.hints import Params
from lengen_jax.models import objective, stacking
from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import Results
from lengen_jax.training import files, revision
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib

RESULTS = 'timings.json'
# FIRE's figure 5 does not report its batch size: one row per each of its chips.
_BATCH_SIZE = 4
# Sections of a config that a forward pass does not depend on.
_UNUSED = ('optimizer', 'train', 'eval')

Batch = dict[str, Any]
Forward = Callable[[], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardTiming(parts.ConfiguredPart):
  """Time of a forward pass of each row.

  Attributes:
    passes: number of passes timed for each row, length and seed.
  """

  ratios: tuple[float, ...] = (1,)
  passes: int = 10
  unit: ClassVar[str] = 'milliseconds'
  kind: ClassVar[str] = 'timing'

  def make_config(self, request: parts.Request) -> parts.Config:
    config = self.load(request, f'--config.data.batch_size={_BATCH_SIZE}')
    with config.unlocked():
      config.eval.lengths = tuple(
        int(config.data.train_length * ratio) for ratio in self.ratios
      )
    return config

  def check(self, request: parts.Request) -> None:
    """Traces every row at every length; needs no data."""
    for model in self.models(self.make_config(request), request.scale):
      model.check()

  def run(self, request: parts.Request, previous: Sequence[Results]) -> Results:
    """Times every row; see `parts.Part.run`.

    Rounds of an earlier call are reused if rows, config, devices, versions and
    commit are the same.
    """
    config = self.make_config(request)
    models = self.models(config, request.scale)
    seconds = self._time(request, config, models)
    table = []
    for number, row in enumerate(self.rows_at(request.scale)):
      by_seed = [
        [1e3 * statistics.median(each) for each in seconds[str(seed)][number]]
        for seed in request.seeds
      ]
      table.append(
        parts.table_row(row.name, models[number].name, by_seed, row.paper)
      )
    length = config.data.train_length
    differences = self.differences(
      _used(config), _used(self.full_config(request)), request.scale
    )
    return self.results(
      table,
      unit=self.unit,
      columns=list(self.ratios),
      train_length=length,
      tokens=config.data.batch_size * length,
      device=models[0].device,
      differences=[
        *differences,
        f'the median of {self.passes} passes, of which the paper has the mean',
        f'rows in a batch: {config.data.batch_size}; the paper does not say '
        'how many it has',
      ],
    )

  def models(self, config: parts.Config, scale: str) -> list['TimedModel']:
    """Returns a model for each row."""
    names = self.runs(config, scale)
    return [
      TimedModel(names[row], runs_lib.configure(config, run))
      for row, run in self.parse(config, scale).items()
    ]

  def _time(
    self,
    request: parts.Request,
    config: parts.Config,
    models: list['TimedModel'],
  ) -> dict[str, list[list[list[float]]]]:
    """Returns {seed: seconds `[rows][lengths][passes]`}."""
    setting = {
      'config': json.loads(_used(config).to_json()),
      'ratios': list(self.ratios),
      'rows': [model.name for model in models],
      'runs': self.passes,
      'device': models[0].device,
      'versions': runs_lib.versions(),
      'commit': revision.running(),
    }
    path = request.folder / self.name / RESULTS
    found: dict[str, Any] = {'setting': setting, 'seconds': {}}
    if path.exists():
      before = files.read_json(path)
      changed = [k for k in setting if setting[k] != before['setting'].get(k)]
      if changed:
        print(
          f'{self.name}: timed again, as {", ".join(changed)} changed',
          flush=True,
        )
      else:
        found = before
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in request.seeds:
      if str(seed) in found['seconds']:
        continue
      found['seconds'][str(seed)] = self._time_round(models, seed)
      files.write_json(path, found)
    return found['seconds']

  def _time_round(
    self, models: list['TimedModel'], seed: int
  ) -> list[list[list[float]]]:
    """Returns seconds `[rows][lengths][passes]` of one seed."""
    forwards = []
    for number, model in enumerate(models):
      began = time.perf_counter()
      of_model = model.prepare(seed)
      for forward in of_model:
        # The first pass compiles.
        forward()
      forwards += of_model
      print(
        f'{self.name}: [{number + 1}/{len(models)}] {model.name}: first passes '
        f'in {time.perf_counter() - began:.1f} s',
        flush=True,
      )
    seconds: list[list[float]] = [[] for _ in forwards]
    for _ in range(self.passes):
      for forward, times in zip(forwards, seconds, strict=True):
        began = time.perf_counter()
        forward()
        times.append(time.perf_counter() - began)
    print(
      f'{self.name}: seed {seed}: {self.passes} passes of each in '
      f'{sum(map(sum, seconds)):.1f} s',
      flush=True,
    )
    count = len(self.ratios)
    return [
      seconds[first : first + count] for first in range(0, len(seconds), count)
    ]


class TimedModel:
  """A model with a compiled forward pass.

  Attributes:
    name: the run.
    device: {'platform', 'kind', 'count'} of the devices.
  """

  def __init__(self, name: str, config: parts.Config) -> None:
    """Builds the model.

    Args:
      name: the run.
      config: the run's config.

    Raises:
      errors.LengenError: the config is invalid.
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

  @property
  def lengths(self) -> tuple[int, ...]:
    """The lengths that are timed, in tokens."""
    return self._run.eval.lengths

  def check(self) -> None:
    """Traces the forward pass at every length.

    Raises:
      errors.LengenError: naming settings that cannot be combined.
    """
    params = self._run.abstract_state.params
    for length in self.lengths:
      with self._run.layout.scope():
        jax.eval_shape(self._apply, params, self.draw_tokens(0, length))

  def prepare(self, seed: int) -> list[Forward]:
    """Draws parameters and tokens.

    Args:
      seed: seed of both.

    Returns:
      For each length, a function that runs a forward pass, waits for it and
      returns the logits.
    """
    params = self._init(seed)
    batches = [
      self._run.layout.place(self.draw_tokens(seed, n)) for n in self.lengths
    ]

    def forward(batch: Batch) -> jax.Array:
      return jax.block_until_ready(self._logits(params, batch))

    return [functools.partial(forward, batch) for batch in batches]

  def draw_tokens(self, seed: int, length: int) -> Batch:
    """Returns a batch of random tokens, `[B, length]`."""
    shape = self._run.data.batch_size, length + 1
    rng = np.random.default_rng(seed)
    return windows.lm_batch(
      rng.integers(self._run.model.vocab_size, size=shape)
    )

  def _apply(self, params: Params, batch: Batch) -> jax.Array:
    """Returns logits, `[B, L, V]`."""
    return objective.token_losses(
      self._run.model,
      self._run.scheme,
      params,
      # Without targets, a model returns logits.
      {**batch, 'targets': None},
      rng=jax.random.key(self._run.config.seed),
      train=False,
      packed=False,
    )


def _used(config: parts.Config) -> parts.Config:
  """Returns the config without the sections of training and testing."""
  config = copy.deepcopy(config)
  with config.unlocked():
    for section in _UNUSED:
      del config[section]
  return config
