"""Time of a forward pass of untrained models, on random tokens.

A forward pass computes the logits of a batch in one compiled program. Each seed
draws other parameters and tokens. Rows take turns, so that other load on the
machine affects all rows alike. Scores are medians, in milliseconds; the paper
reports means, which one interruption can dominate. timings.json has every time.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import json
import statistics
import time
from typing import Any, ClassVar

import jax
import numpy as np

from lengen_jax.data import windows
from lengen_jax.models import objective, stacking
from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import Results
from lengen_jax.training import files, revision
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib
from lengen_jax.types import Params

RESULTS = 'timings.json'
# FIRE's figure 5 does not report its batch size. 4 is one row per chip.
_BATCH_SIZE = 4
# Sections of a config that a forward pass does not depend on.
_UNUSED = ('optimizer', 'train', 'eval')

Batch = dict[str, Any]
# Seconds of each pass, `[rows][lengths][passes]`.
Seconds = list[list[list[float]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardTiming(parts.ConfiguredPart):
  """Time of `passes` forward passes for each row, length and seed."""

  ratios: tuple[float, ...] = (1,)
  passes: int = 10
  unit: ClassVar[str] = 'milliseconds'
  kind: ClassVar[str] = 'timing'
  omitted: ClassVar[tuple[str, ...]] = parts.ConfiguredPart.omitted + _UNUSED

  def load(self, request: parts.Request, *changes: str) -> parts.Config:
    batch_size = f'--config.data.batch_size={_BATCH_SIZE}'
    return super().load(request, batch_size, *changes)

  def check(self, request: parts.Request) -> None:
    """Traces every row at every length; needs no data."""
    for model in self.models(self.make_config(request), request.scale):
      model.check()

  def run(self, request: parts.Request, previous: Sequence[Results]) -> Results:
    """Times every row.

    Rounds of an earlier call are reused if rows, config, devices, versions and
    commit are the same.
    """
    config = self.make_config(request)
    models = self.models(config, request.scale)
    seconds = self._time(request, config, models)
    table = []
    for number, row in enumerate(self.rows_at(request.scale)):
      model = models[number]
      times = [seconds[str(seed)][number] for seed in request.seeds]
      by_seed = [[1e3 * statistics.median(x) for x in each] for each in times]
      table.append(parts.table_row(row.name, model.name, by_seed, row.paper))
    length, batch_size = config.data.train_length, config.data.batch_size
    return self.results(
      table,
      unit=self.unit,
      columns=list(self.ratios),
      train_length=length,
      tokens=batch_size * length,
      device=models[0].device,
      differences=[
        *self.differences(config, request),
        f'the median of {self.passes} passes, of which the paper has the mean',
        f'rows in a batch: {batch_size}; the paper does not say how many it '
        'has',
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
  ) -> dict[str, Seconds]:
    """Returns {seed: seconds}."""
    used = json.loads(config.to_json())
    setting = {
      'config': {key: used[key] for key in used if key not in _UNUSED},
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
      before = files.read_json(path, ('setting', 'seconds'))
      changed = [k for k in setting if setting[k] != before['setting'].get(k)]
      if changed:
        self._print(f'timed again, as {", ".join(changed)} changed')
      else:
        found = before
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in map(str, request.seeds):
      if seed not in found['seconds']:
        found['seconds'][seed] = self._time_round(models, int(seed))
        files.write_json(path, found)
    return found['seconds']

  def _time_round(self, models: list['TimedModel'], seed: int) -> Seconds:
    """Returns the seconds of one seed."""
    forwards = []
    for number, model in enumerate(models):
      of_model = model.prepare(seed)
      # The first pass compiles.
      took = sum(map(_time_of, of_model))
      forwards += of_model
      place = f'[{number + 1}/{len(models)}] {model.name}'
      self._print(f'{place}: first passes in {took:.1f} s')
    rounds = [[*map(_time_of, forwards)] for _ in range(self.passes)]
    total = sum(map(sum, rounds))
    self._print(f'seed {seed}: {self.passes} passes of each in {total:.1f} s')
    times = [list(each) for each in zip(*rounds, strict=True)]
    count = len(self.ratios)
    return [times[n : n + count] for n in range(0, len(times), count)]

  def _print(self, text: str) -> None:
    print(f'{self.name}: {text}', flush=True)


def _time_of(forward: Callable[[], Any]) -> float:
  """Returns the seconds of a call."""
  began = time.perf_counter()
  forward()
  return time.perf_counter() - began


class TimedModel:
  """The model of a run, with a compiled forward pass.

  Attributes:
    lengths: the lengths that are timed, in tokens.
    device: {'platform', 'kind', 'count'} of the devices.
  """

  def __init__(self, name: str, config: parts.Config) -> None:
    self.name = name
    self._run = run = run_lib.Run(config)
    self.lengths = run.eval.lengths
    first = run.layout.mesh.devices.flat[0]
    self.device = {'platform': first.platform, 'kind': first.device_kind}
    self.device |= {'count': run.layout.size}
    self._logits = run.layout.jit(self._apply)
    self._init = run.layout.jit(
      lambda seed: stacking.init(run.model, jax.random.key(seed)),
      out_shardings=run.shardings.params,
    )

  def check(self) -> None:
    """Traces the forward pass at every length."""
    params = self._run.abstract_state.params
    for length in self.lengths:
      with self._run.layout.scope():
        jax.eval_shape(self._apply, params, self.draw_tokens(0, length))

  def prepare(self, seed: int) -> list[Callable[[], Any]]:
    """Returns a function per length, which blocks until logits are computed."""
    params, place = self._init(seed), self._run.layout.place

    def forward(batch: Batch) -> jax.Array:
      return jax.block_until_ready(self._logits(params, batch))

    return [
      functools.partial(forward, place(self.draw_tokens(seed, length)))
      for length in self.lengths
    ]

  def draw_tokens(self, seed: int, length: int) -> Batch:
    """Returns a batch of random tokens, `[B, length]`."""
    shape = self._run.data.batch_size, length + 1
    rng = np.random.default_rng(seed)
    tokens = rng.integers(self._run.model.vocab_size, size=shape)
    return windows.lm_batch(tokens)

  def _apply(self, params: Params, batch: Batch) -> jax.Array:
    """Returns logits, `[B, L, V]`."""
    run = self._run
    rngs = {'positions': jax.random.key(run.config.seed)}
    return objective.apply(
      run.model,
      run.scheme,
      params,
      batch,
      rngs=rngs,
      train=False,
      scored=False,
    )
