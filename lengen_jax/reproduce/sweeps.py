"""Scores of generated tasks beyond and within the training lengths."""

from collections.abc import Sequence
import dataclasses
import statistics
from typing import ClassVar

import numpy as np

from lengen_jax import errors
from lengen_jax.reproduce import curves as curves_lib
from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import (
  at_steps,
  common_steps,
  Results,
  trajectory,
)
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

  def check(self, request: parts.Request) -> None:
    super().check(request)
    config = self.make_config(request)
    lengths, longest = config.eval.lengths, config.train.max_length
    members = self._members(lengths, longest)
    for column, of_column in zip(self.means, members, strict=True):
      if not of_column:
        raise errors.ConfigError(
          f'{self.name}: no length is {column!r}: eval.lengths are from '
          f'{min(lengths)} to {max(lengths)}, and train.max_length is '
          f'{longest}; change one of them'
        )

  def _members(self, lengths: Sequence[int], longest: int) -> list[list[int]]:
    """Returns the indices of the lengths of each column.

    `longest` is the longest length of training.
    """
    return [
      [
        n
        for n, length in enumerate(lengths)
        if column in (ALL, BEYOND if length > longest else SEEN)
      ]
      for column in self.means
    ]

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
    members = self._members(results['lengths'], longest)
    columns = _Columns(score, members, config.eval.examples)

    def order(point: Results) -> float:
      mean = columns.percents(point)[0]
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
      more = {
        'run': entry['run'],
        **columns.of_examples(best),
        **_trajectory(best, columns),
      }
      scores.append(([columns.percents(point) for point in best], more))
      curve = parts.reduce_columns([point[score] for point in best])
      curves.append({'run': row.name, 'curve': curve})
    shared = ('score', 'lengths', 'train_lengths', 'baselines')
    fields = {
      'unit': self.unit,
      'columns': list(self.means),
      'train_length': longest,
      # Chance is close to 0 where whole sequences must be correct.
      'chance': 100 * results['chance'] if score == 'accuracy' else None,
      # In the format of results.json of a sweep, but means over seeds.
      'by_length': {'runs': curves} | {key: results[key] for key in shared},
    }
    return scores, points, fields


@dataclasses.dataclass(frozen=True)
class _Columns:
  """Columns of a table, which are means over lengths.

  The points that the methods take have scores by length, as in a sweep.

  Attributes:
    score: name of the score.
    members: indices of the lengths of each column.
    count: number of test examples of each length, the same for all points.
  """

  score: str
  members: Sequence[Sequence[int]]
  count: int

  def percents(self, point: Results) -> parts.Scores:
    """Returns the columns of a point, without rounding errors."""
    found: parts.Scores = []
    for members in self.members:
      scores = [point[self.score][n] for n in members]
      missing = None in scores
      found.append(
        None if missing else round(100 * statistics.fmean(scores), 4)
      )
    return found

  def of_examples(self, points: Sequence[Results]) -> Results:
    """Returns 'examples' and 'windows' of each column, given a point per seed.

    'examples' has the variance of the mean of independent examples, and their
    number. 'windows' are the scores of single examples, one of each length
    together; see `curves.crossed`. Sweeps of earlier versions lack them.
    """
    found: Results = {
      'examples': [self._variance(points, m) for m in self.members]
    }
    if all('right' in point for point in points):
      right_SxLxE = np.array(
        [
          [_bits(text, self.count) for text in point['right']]
          for point in points
        ]
      )
      found['windows'] = [
        curves_lib.crossed(100 * right_SxLxE[:, members].mean(1))
        for members in self.members
      ]
    return found

  def _variance(
    self, points: Sequence[Results], members: Sequence[int]
  ) -> Results | None:
    """Returns the variance of a column due to its finite number of examples.

    The proportion of each length is estimated by Laplace's rule of succession,
    with one more success and one more failure than observed. Its binomial
    variance is therefore positive even if all or no answers are correct.
    """
    scores = [[point[self.score][n] for point in points] for n in members]
    if any(None in of_seeds for of_seeds in scores):
      return None
    shares = [
      (self.count * statistics.fmean(of_seeds) + 1) / (self.count + 2)
      for of_seeds in scores
    ]
    variance = sum(p * (1 - p) for p in shares) / self.count / len(shares) ** 2
    return {'variance': 100**2 * variance, 'count': self.count * len(shares)}


def _trajectory(points: Sequence[Results], columns: _Columns) -> Results:
  """Returns the columns at all tested steps, of one point for each seed.

  It is {} if only the last step was tested, or the points at different steps.
  The points are those with the best learning rate after the last step. Points
  of an older sweep have no trajectory.
  """
  if not (steps := common_steps(points)):
    return {}
  tested = [at_steps(point['trajectory']) for point in points]
  values = [[*map(columns.percents, of_seed)] for of_seed in tested]
  of_examples = map(columns.of_examples, zip(*tested, strict=True))
  return trajectory(steps, values, of_examples)


def _bits(text: str, count: int) -> np.ndarray:
  """Returns `count` bits, given hexadecimal digits."""
  packed = np.frombuffer(bytes.fromhex(text), np.uint8)
  return np.unpackbits(packed, count=count)
