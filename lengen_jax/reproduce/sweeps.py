"""Scores of generated tasks beyond and within the training lengths."""

from collections.abc import Callable
import dataclasses
import statistics
from typing import ClassVar

from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import common_steps, Results
from lengen_jax.training import files, sweep

# Columns: means over lengths beyond the training lengths, within them, and over
# both.
BEYOND, SEEN, ALL = 'beyond', 'seen', 'all'


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSweep(parts.ConfiguredPart):
  """Scores of each row on a generated task, at its best learning rate.

  Attributes:
    means: columns of the table. The first is that of the paper's scores, and
      determines the best learning rate.
  """

  means: tuple[str, ...] = (BEYOND, SEEN)
  unit: str = 'percent'
  seed_reduction: str = 'max'
  kind: ClassVar[str] = 'sweep'
  tested_earlier: ClassVar[bool] = True

  def make_config(self, request: parts.Request) -> parts.Config:
    config = self.load(request)
    with config.unlocked():
      config.sweep.runs = '; '.join(self.runs(config, request.scale).values())
      config.paper = ()
      # The report has no maps by the digits of both operands.
      config.eval.operand_examples = 0
    return config

  def train(
    self,
    request: parts.Request,
    config: parts.Config,
    folder: files.Path,
    init: Results | None,
  ) -> parts.Outcome:
    config.sweep.seeds = tuple(request.seeds)
    with files.locked(folder):
      results = sweep.sweep(config, folder)
    score, longest = results['score'], results['train_lengths'][1]

    def members(column: str) -> list[int]:
      """Returns the indices of the lengths of a column."""
      return [
        n
        for n, length in enumerate(results['lengths'])
        if column in (ALL, BEYOND if length > longest else SEEN)
      ]

    def percents(by_length: parts.Scores) -> parts.Scores:
      """Returns the means that are the columns, without rounding errors."""
      means: parts.Scores = []
      for column in self.means:
        scores = [by_length[n] for n in members(column)]
        missing = None in scores
        means.append(
          None if missing else round(100 * statistics.fmean(scores), 4)
        )
      return means

    def order(point: Results) -> float:
      mean = percents(point[score])[0]
      return -1.0 if mean is None else mean

    rows = self.rows_at(request.scale)
    scores: list[tuple[list[parts.Scores], Results]] = []
    curves, points = [], []
    for row, entry in zip(rows, results['runs'], strict=True):
      points += entry['points']
      best = [
        max((p for p in entry['points'] if p['seed'] == seed), key=order)
        for seed in request.seeds
      ]
      by_seed = [percents(point[score]) for point in best]
      more = {'run': entry['run'], **_trajectory(best, score, percents)}
      scores.append((by_seed, more))
      curve = parts.reduce_columns([point[score] for point in best])
      curves.append({'run': row.name, 'curve': curve})
    shared = ('score', 'lengths', 'train_lengths', 'baselines')
    fields = {
      'unit': self.unit,
      'columns': list(self.means),
      'train_length': longest,
      'column_examples': [
        config.eval.examples * len(members(column)) for column in self.means
      ],
      # Chance is close to 0 where whole sequences must be correct.
      'chance': 100 * results['chance'] if score == 'accuracy' else None,
      # As in results.json of a sweep, means over seeds.
      'by_length': {'runs': curves} | {key: results[key] for key in shared},
    }
    return scores, points, fields


def _trajectory(
  points: list[Results],
  score: str,
  percents: Callable[[parts.Scores], parts.Scores],
) -> Results:
  """Returns the columns at all tested steps, of one point for each seed.

  It is {} if only the last step was tested, or the points at different steps.
  The points are those with the best learning rate after the last step. Points
  of an older sweep have no trajectory.
  """
  if not (steps := common_steps(points)):
    return {}
  values = [[*map(percents, one['trajectory'][score])] for one in points]
  return {'trajectory': {'steps': steps, 'values': values}}
