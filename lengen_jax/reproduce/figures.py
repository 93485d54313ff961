"""Parts that train nothing: means over parts, figures, analyses of models."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any, ClassVar

from lengen_jax.reproduce import curves, parts
from lengen_jax.reproduce.experiment import (
  at_steps,
  common_steps,
  Results,
  trajectory,
)
from lengen_jax.training import files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Average(parts.Part):
  """Means over other parts, for each row that all of these parts have.

  Attributes:
    members: names of these parts; parts that a scale omits are left out.
  """

  members: tuple[str, ...]
  kind: ClassVar[str] = 'average'

  def run(self, request: parts.Request, previous: Sequence[Results]) -> Results:
    averaged = [one for one in previous if one['name'] in self.members]
    first = averaged[0]
    shared = ('unit', 'columns', 'of_seeds', 'standin', 'same_kind')
    table = []
    for name in (row['name'] for row in first['rows']):
      every = (row for part in averaged for row in part['rows'])
      rows = [row for row in every if row['name'] == name]
      if len(rows) < len(averaged):
        continue
      seeds = zip(*(row['values'] for row in rows), strict=True)
      by_seed = [parts.reduce_columns(scores) for scores in seeds]
      papers = [row['paper'] for row in rows]
      paper = None if None in papers else parts.reduce_columns(papers)
      line = parts.table_row(name, rows[0]['run'], by_seed, paper)
      # As in the papers: first the best seed, then the mean over parts.
      line['value'] = parts.reduce_columns([row['value'] for row in rows])
      line |= _mean_examples(rows)
      table.append(line | _mean_trajectory(rows))
    return self.results(
      table,
      **{key: first[key] for key in shared},
      of=[one['name'] for one in averaged],
      of_all=len(self.members),
    )


def _mean_trajectory(rows: Sequence[Results]) -> Results:
  """Returns the mean scores of rows at all tested steps.

  It is {} if the rows were tested at one step only, or at different steps.
  """
  if not (steps := common_steps(rows)):
    return {}
  by_seed = zip(*(row['trajectory']['values'] for row in rows), strict=True)
  values = [
    [parts.reduce_columns(each) for each in zip(*seed, strict=True)]
    for seed in by_seed
  ]
  # Fields other than `values` have an entry per step.
  tested = [
    at_steps({k: v for k, v in row['trajectory'].items() if k != 'values'})
    for row in rows
  ]
  return trajectory(
    steps, values, map(_mean_examples, zip(*tested, strict=True))
  )


def _mean_examples(rows: Sequence[Results]) -> Results:
  """Returns the variances of means due to test examples; see `sweeps`.

  Examples of different parts are independent.
  """

  def mean(key: str) -> list[Any] | None:
    if not all(key in row for row in rows):
      return None
    columns = zip(*(row[key] for row in rows), strict=True)
    return [None if None in column else of[key](column) for column in columns]

  def examples(column: Sequence[Results]) -> Results:
    variance = sum(one['variance'] for one in column) / len(column) ** 2
    return {'variance': variance, 'count': sum(one['count'] for one in column)}

  def windows(column: Sequence[Results]) -> Results | None:
    scores = [one['mean'] for one in column]
    if len({*map(len, scores)}) > 1:
      return None
    noise = sum(one['noise'] for one in column) / len(column) ** 2
    return {'mean': parts.reduce_columns(scores), 'noise': noise}

  of = {'examples': examples, 'windows': windows}
  return {key: found for key in of if (found := mean(key)) is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure(parts.Part):
  """A figure, and the numbers that claims compare. Trains no models.

  Attributes:
    draw: writes pictures and CSV files into a folder and returns their paths.
      If `part` is set, the first argument is {row: run.Trained} of the first
      seed. By default it draws nothing.
    part: name of a previous `LengthCurves` whose `rows` are analysed; '' for a
      computed figure, which is the same at every scale and for every seed.
    measure: returns the numbers of a `run.Trained`, one per column; without
      `part`, returns {row: numbers}. None if the figure has no numbers.
  """

  draw: Callable[..., list[pathlib.Path]] = lambda *_: []
  part: str = ''
  rows: tuple[str, ...] = ()
  columns: tuple[Any, ...] = ()
  unit: str = ''
  measure: Callable[..., Any] | None = None
  paper: Mapping[str, Sequence[float]] = dataclasses.field(
    default_factory=dict, hash=False
  )
  kind: ClassVar[str] = 'drawing'

  def first_model(self, row: str) -> tuple[str, str]:
    return self.part or self.name, row

  def run(self, request: parts.Request, previous: Sequence[Results]) -> Results:
    folder = request.folder / self.name
    folder.mkdir(parents=True, exist_ok=True)
    numbers: list[Mapping[str, Any]] = []
    fields: Results = {'exact': True}
    arguments: list[Any] = [folder]
    if self.part:
      part = parts.find(previous, self.part)
      fields = {key: part[key] for key in ('standin', 'same_kind')}
      drawn = [row for row in part['rows'] if row['name'] in self.rows]
      if any(map(parts.diverged, sum((row['values'] for row in drawn), []))):
        # Without one of its models, a figure is not drawn.
        return self.results(
          [], unit=self.unit, files=[], columns=list(self.columns), **fields
        )
      by_seed = [self._models(part, request, seed) for seed in request.seeds]
      arguments.insert(0, by_seed[0])
      if self.measure is not None:
        numbers = [
          {name: self.measure(model) for name, model in models.items()}
          for models in by_seed
        ]
    elif self.measure is not None:
      numbers = [self.measure()] * len(request.seeds)
    paths = self.draw(*arguments)
    rows = []
    for name in numbers[0] if numbers else ():
      by_seed = [[*map(files.finite, one[name])] for one in numbers]
      rows.append(parts.table_row(name, '', by_seed, self.paper.get(name)))
    return self.results(
      rows,
      unit=self.unit,
      files=[str(path.relative_to(folder)) for path in paths],
      columns=list(self.columns),
      **fields,
    )

  def _models(
    self, part: Results, request: parts.Request, seed: int
  ) -> dict[str, Any]:
    folder = files.locate(request.root) / part['trained'] / f'seed{seed}'
    return {
      row['name']: curves.restore(folder / row['folder'], row['run'])
      for row in part['rows']
      if row['name'] in self.rows
    }
