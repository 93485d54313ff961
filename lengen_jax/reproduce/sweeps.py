"""Scores of generated tasks beyond and within the training lengths."""

import dataclasses
import statistics
from typing import ClassVar

from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import Results
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

    def percent(point: Results, column: str) -> float | None:
      """Returns the mean of a column."""
      scores = [
        score
        for score, length in zip(point[score], results['lengths'], strict=True)
        if column in (ALL, BEYOND if length > longest else SEEN)
      ]
      return None if None in scores else 100 * statistics.fmean(scores)

    def order(point: Results) -> float:
      mean = percent(point, self.means[0])
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
      by_seed = [
        [percent(point, column) for column in self.means] for point in best
      ]
      scores.append((by_seed, {'run': entry['run']}))
      curve = parts.reduce_columns([point[score] for point in best])
      curves.append({'run': row.name, 'curve': curve})
    shared = ('score', 'lengths', 'train_lengths', 'baselines')
    fields = {
      'unit': self.unit,
      'columns': list(self.means),
      'train_length': longest,
      # Chance is close to 0 where whole sequences must be correct.
      'chance': 100 * results['chance'] if score == 'accuracy' else None,
      # As in results.json of a sweep, means over seeds.
      'by_length': {'runs': curves} | {key: results[key] for key in shared},
    }
    return scores, points, fields
