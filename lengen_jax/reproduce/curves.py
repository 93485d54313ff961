"""Loss by length, on the same tokens at every length."""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math
from typing import ClassVar

import numpy as np

from lengen_jax import errors
from lengen_jax.evaluation import length_curve
from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import Results
from lengen_jax.training import compare, files, pretrained
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthCurves(parts.ConfiguredPart):
  """Loss by length of each row: one comparison per seed.

  Attributes:
    shrink: the training length is that of the config divided by `shrink`.
    window: attention window in training lengths; None for that of the config.
  """

  unit: str = 'nats per token'
  substitute: experiment_lib.SubstituteData | None = experiment_lib.STDLIB
  shrink: int = 1
  window: float | None = None
  kind: ClassVar[str] = 'curves'
  result: ClassVar[str | None] = 'curve.json'
  tested_earlier: ClassVar[bool] = True

  def load(self, request: parts.Request, *changes: str) -> parts.Config:
    config = super().load(request, *changes)
    with config.unlocked():
      whole = config.data.train_length
      length = config.data.train_length = whole // self.shrink
      # Prepared windows have their length in the name: c4_512 and c4_2048.
      config.data.path = config.data.path.replace(f'_{whole}', f'_{length}')
      if self.window:
        config.model.window = int(length * self.window)
    return config

  def train(
    self,
    request: parts.Request,
    config: parts.Config,
    folder: files.Path,
    init: Results | None,
  ) -> parts.Outcome:
    by_seed = []
    for seed in request.seeds:
      config.seed = seed
      by_seed.append(
        self._curves(request, config, folder / f'seed{seed}', init)
      )
    score = 'perplexity' if self.unit == 'perplexity' else 'loss'
    scores = []
    for row in self.rows_at(request.scale):
      curves = [found[row.name] for found in by_seed]
      more = {'folder': curves[0]['folder']}
      more['refused'] = parts.first_reasons(curves)
      more |= _trajectory(curves, score)
      more['windows'] = window_scores(curves, score)
      scores.append(([curve[score] for curve in curves], more))
    tested = [
      one for found in by_seed for one in found.values() if 'tokens' in one
    ]
    if not tested:
      raise errors.DivergedError(f'{self.name}: all models diverged')
    fields = {
      'unit': self.unit,
      'columns': list(self.columns(config)),
      'train_length': config.data.train_length,
      'tokens': tested[0]['tokens'],
      'windows_digest': tested[0].get('windows_digest', ''),
    }
    return scores, tested, fields

  def _curves(
    self,
    request: parts.Request,
    config: parts.Config,
    folder: files.Path,
    init: Results | None,
  ) -> dict[str, Results]:
    """Returns {row: curve} of one seed, each with the folder of its model."""
    runs = self.parse(config, request.scale)
    curves: dict[str, Results] = {}
    prefix_of = functools.partial(self.init_folder, init=init)
    rows = sorted(self.rows_at(request.scale), key=prefix_of)
    for prefix, group in itertools.groupby(rows, prefix_of):
      members = list(group)
      chosen = [runs[row.name] for row in members]
      try:
        if init is not None:
          config.train.init_from = self.init_workdir(
            members[0], request, config.seed, init
          )
        found = compare.compare(config, folder / prefix, chosen)['curves']
      except errors.DivergedError as error:
        print(f'{prefix}{error}', flush=True)
        # The other runs are finished.
        found = [
          curve or _diverged(config.eval.lengths)
          for curve in compare.finished(folder / prefix, chosen)
        ]
      for row, curve in zip(members, found, strict=True):
        curves[row.name] = curve
        curve['folder'] = prefix + runs_lib.folder(runs[row.name])
        if row.trained_as is not None:
          # The row that trains the model has the time of training.
          curve['train_seconds'] = 0.0
    return curves


def _diverged(lengths: Sequence[int]) -> Results:
  """Returns the curve of a model that diverged, or whose initial model did."""
  missing = [None] * len(lengths)
  return {
    'loss': missing,
    'perplexity': missing,
    'refused': {str(length): 'training diverged' for length in lengths},
    'trajectory': {'steps': []},
  }


def _trajectory(curves: list[Results], score: str) -> Results:
  """Returns the scores at the steps at which all curves were tested.

  It is {} if only the last was tested.
  """
  tested_at = [{*curve['trajectory']['steps']} for curve in curves]
  steps = sorted(set.intersection(*tested_at))
  if len(steps) < 2:
    return {}
  tested = [
    [one for one in _at_steps(curve) if one['steps'] in steps]
    for curve in curves
  ]
  found = {
    'steps': steps,
    'values': [[one[score] for one in of_seed] for of_seed in tested],
    'windows': [window_scores(one, score) for one in zip(*tested, strict=True)],
  }
  return {'trajectory': found}


def _at_steps(curve: Results) -> list[Results]:
  """Returns the scores of a curve at each of its steps."""
  return [
    one | {'perplexity': [*map(length_curve.perplexity, one['loss'])]}
    for one in experiment_lib.at_steps(curve['trajectory'])
  ]


def window_scores(
  curves: Sequence[Results], score: str
) -> list[Results | None]:
  """Returns the scores of single test windows in each column.

  They are those of `crossed`. A column is None if a loss is missing, a
  perplexity is beyond float64, or the version did not keep losses of windows.

  If the perplexity of all windows is p = exp(l), that of a window of loss x is
  p (1 + x - l). It is linear in x, so that its mean is p.
  """
  columns: list[Results | None] = []
  for n in range(len(curves[0]['loss'])):
    by_seed = []
    for curve in curves:
      loss_W = np.array(
        curve['window_loss'][n] if 'window_loss' in curve else ()
      )
      if score == 'perplexity' and curve['perplexity'][n] is None:
        loss_W = loss_W[:0]
      elif score == 'perplexity':
        loss_W = curve['perplexity'][n] * (1 + loss_W - curve['loss'][n])
      by_seed.append(loss_W)
    if not all(loss_W.size for loss_W in by_seed):
      columns.append(None)
      continue
    columns.append(crossed(np.stack(by_seed)))
  return columns


def crossed(score_SxW: np.ndarray) -> Results:
  """Returns mean scores of W windows or examples over S seeds, and their noise.

  Args:
    score_SxW: scores of each seed on each window or example.

  Returns:
    dict of 'mean', the mean over seeds for each window, and 'noise', the
    variance of the interaction of seed and window: of the residuals without the
    means of the seed and of the window.
  """
  mean_W = score_SxW.mean(0)
  own_SxW = score_SxW - mean_W - score_SxW.mean(1, keepdims=True)
  own_SxW += score_SxW.mean()
  freedom = math.prod(size - 1 for size in score_SxW.shape)
  noise = float((own_SxW**2).sum()) / freedom if freedom else 0.0
  return {'mean': mean_W.round(6).tolist(), 'noise': noise}


def restore(workdir: files.Path, spec: str) -> run_lib.Trained:
  """Returns the trained model of a workdir, configured for tests by `spec`."""
  trained = pretrained.restore(workdir)
  (run,) = runs_lib.parse(spec, trained.run.config)
  return trained.tested_as(run.tested_as)
