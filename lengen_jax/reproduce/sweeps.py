"""Scores of generated tasks beyond and within the training lengths."""

from collections.abc import Callable, Sequence
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

    def examples(by_length: Sequence[parts.Scores]) -> list[Results | None]:
      """Returns the variance of each column due to its test examples.

      The argument has the scores of each seed, which are tested on the same
      examples. Each length has a binomial share, whose estimate has one success
      and one failure more than were seen (Laplace): one of 0 or 1 varies, too.
      """
      count = config.eval.examples
      found: list[Results | None] = []
      for column in self.means:
        scores = [[one[n] for one in by_length] for n in members(column)]
        if any(None in of_seeds for of_seeds in scores):
          found.append(None)
          continue
        shares = [
          (count * statistics.fmean(of_seeds) + 1) / (count + 2)
          for of_seeds in scores
        ]
        variance = sum(p * (1 - p) for p in shares) / count / len(shares) ** 2
        found.append(
          {'variance': 100**2 * variance, 'count': count * len(shares)}
        )
      return found

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
      more = {
        'run': entry['run'],
        'examples': examples([point[score] for point in best]),
        **_trajectory(best, score, percents, examples),
      }
      scores.append((by_seed, more))
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


def _trajectory(
  points: list[Results],
  score: str,
  percents: Callable[[parts.Scores], parts.Scores],
  examples: Callable[[Sequence[parts.Scores]], Sequence[Results | None]],
) -> Results:
  """Returns the columns at all tested steps, of one point for each seed.

  It is {} if only the last step was tested, or the points at different steps.
  The points are those with the best learning rate after the last step. Points
  of an older sweep have no trajectory.
  """
  if not (steps := common_steps(points)):
    return {}
  tested = [one['trajectory'][score] for one in points]
  found = {
    'steps': steps,
    'values': [[*map(percents, of_seed)] for of_seed in tested],
    'examples': [*map(examples, zip(*tested, strict=True))],
  }
  return {'trajectory': found}
