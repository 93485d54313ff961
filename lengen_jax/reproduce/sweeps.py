"""Scores of generated tasks beyond the training length."""

from collections.abc import Sequence
import dataclasses
import statistics
from typing import ClassVar

from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import Results
from lengen_jax.training import files, sweep

# Columns: mean over lengths beyond the training lengths, and over those.
BEYOND, SEEN = 'beyond', 'seen'


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSweep(parts.TrainedPart):
  """Scores of each row on a generated task, at its best learning rate.

  Attributes:
    unit: unit of the scores.
  """

  unit: str = 'percent'
  seed_reduction: str = 'max'
  kind: ClassVar[str] = 'sweep'

  def make_config(self, request: parts.Request) -> parts.Config:
    config = self.load(request)
    with config.unlocked():
      runs = self.runs(config, request.scale)
      config.sweep.runs = '; '.join(runs.values())
      config.paper = ()
    return config

  def train(
    self,
    request: parts.Request,
    config: parts.Config,
    trained: str,
    previous: Sequence[Results],
  ) -> parts.Trained:
    config.sweep.seeds = tuple(request.seeds)
    results = sweep.sweep(config, files.locate(request.root) / trained)
    score = results['score']
    table, curves = [], []
    for row, entry in zip(
      self.rows_at(request.scale), results['runs'], strict=True
    ):
      best = [_best(entry, results, seed) for seed in request.seeds]
      line = parts.table_row(
        row.name,
        entry['run'],
        [
          [_percent(point[score], results, beyond) for beyond in (True, False)]
          for point in best
        ],
        row.paper and [*row.paper, None],
        self.seed_reduction,
      )
      table.append(line)
      curve = parts.reduce_columns([point[score] for point in best])
      curves.append({'run': row.name, 'curve': curve})
    fields = {
      'unit': self.unit,
      'columns': [BEYOND, SEEN],
      'train_length': results['train_lengths'][1],
      'trained': trained,
      # Chance is close to 0 where whole sequences must be correct.
      'chance': 100 * results['chance'] if score == 'accuracy' else None,
      # As in results.json of a sweep, means over seeds.
      'by_length': {'runs': curves}
      | {
        key: results[key]
        for key in ('score', 'lengths', 'train_lengths', 'baselines')
      },
    }
    points = [one for entry in results['runs'] for one in entry['points']]
    return parts.Trained(table, points, fields)


def _best(entry: Results, results: Results, seed: int) -> Results:
  """Returns a seed's point with the best score beyond the training lengths."""

  def score(point: Results) -> float:
    percent = _percent(point[results['score']], results, True)
    return -1.0 if percent is None else percent

  points = [one for one in entry['points'] if one['seed'] == seed]
  return max(points, key=score)


def _percent(
  curve: parts.Scores, results: Results, beyond: bool
) -> float | None:
  """Returns the mean in percent beyond the training lengths, or up to them.

  None if a length has no score.
  """
  longest = results['train_lengths'][1]
  scores = [
    score
    for score, length in zip(curve, results['lengths'], strict=True)
    if (length > longest) == beyond
  ]
  return None if None in scores else 100 * statistics.fmean(scores)
