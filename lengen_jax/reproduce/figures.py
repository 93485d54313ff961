"""Parts that train nothing: means, computed figures, analyses of models."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any, ClassVar

from lengen_jax.reproduce import curves, parts
from lengen_jax.reproduce.experiment import Results
from lengen_jax.training import files
from lengen_jax.training import run as run_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Average(parts.Part):
  """The mean over other parts, of the rows that all of them have.

  Attributes:
    members: names of the parts; parts that a scale omits are left out.
  """

  members: tuple[str, ...]
  kind: ClassVar[str] = 'average'

  def run(self, request: parts.Request, previous: Sequence[Results]) -> Results:
    averaged = [one for one in previous if one['name'] in self.members]
    first = averaged[0]
    table = []
    for name in (row['name'] for row in first['rows']):
      rows = [
        row for part in averaged for row in part['rows'] if row['name'] == name
      ]
      if len(rows) < len(averaged):
        continue
      papers = [row['paper'] for row in rows]
      line = parts.table_row(
        name,
        rows[0]['run'],
        [
          parts.reduce_columns(scores)
          for scores in zip(*(row['values'] for row in rows), strict=True)
        ],
        None if None in papers else parts.reduce_columns(papers),
      )
      # As in the papers: first the best seed, then the mean over parts.
      line['value'] = parts.reduce_columns([row['value'] for row in rows])
      table.append(line)
    return self.results(
      table,
      unit=first['unit'],
      columns=first['columns'],
      of=[one['name'] for one in averaged],
      of_all=len(self.members),
      of_seeds=first['of_seeds'],
      standin=first['standin'],
    )


@dataclasses.dataclass(frozen=True)
class Measurements:
  """Numbers of a figure or of trained models, which claims compare.

  Attributes:
    columns: names of the numbers.
    unit: their unit.
    measure: for a `ComputedFigure`, returns {row: a number per column}; for a
      `ModelAnalysis`, returns a number per column for a `run.Trained`.
    paper: {row: the paper's numbers}.
  """

  columns: tuple[Any, ...]
  unit: str
  measure: Callable[..., Any]
  paper: Mapping[str, Sequence[float]] = dataclasses.field(
    default_factory=dict, hash=False
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputedFigure(parts.Part):
  """A figure that needs no training; the same at every scale.

  Attributes:
    draw: writes pictures and CSV files into a folder and returns their paths.
    measurements: numbers for claims; None for none.
  """

  draw: Callable[..., list[pathlib.Path]]
  measurements: Measurements | None = None
  kind: ClassVar[str] = 'drawing'

  def run(self, request: parts.Request, previous: Sequence[Results]) -> Results:
    folder = request.folder / self.name
    folder.mkdir(parents=True, exist_ok=True)
    numbers = []
    if self.measurements is not None:
      # They do not depend on the seed.
      numbers = [self.measurements.measure()] * len(request.seeds)
    return self._results(self.draw(folder), folder, numbers) | {'exact': True}

  def _results(
    self,
    paths: Sequence[pathlib.Path],
    folder: pathlib.Path,
    numbers: Sequence[Mapping[str, Sequence[float]]],
  ) -> Results:
    """Returns results with files and, for each seed, {row: numbers}."""
    found = self.measurements
    return self.results(
      [
        parts.table_row(
          name,
          '',
          [list(of_seed[name]) for of_seed in numbers],
          found.paper.get(name) if found else None,
        )
        for name in (numbers[0] if numbers else ())
      ],
      unit=found.unit if found else '',
      files=[str(path.relative_to(folder)) for path in paths],
      columns=list(found.columns) if found else [],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelAnalysis(ComputedFigure):
  """A figure of models that a previous part has trained.

  Attributes:
    part: name of that part, a `LengthCurves`.
    rows: names of its rows.
    draw: writes files for {row: run.Trained} of the first seed into a folder.
    measurements: numbers of the models of every seed.
  """

  part: str
  rows: tuple[str, ...]

  def run(self, request: parts.Request, previous: Sequence[Results]) -> Results:
    part = parts.find(previous, self.part)
    by_seed = [self._models(part, request, seed) for seed in request.seeds]
    folder = request.folder / self.name
    folder.mkdir(parents=True, exist_ok=True)
    numbers: list[dict[str, Any]] = []
    if self.measurements is not None:
      measure = self.measurements.measure
      numbers = [
        {name: measure(model) for name, model in models.items()}
        for models in by_seed
      ]
    paths = self.draw(by_seed[0], folder)
    results = self._results(paths, folder, numbers)
    return results | {'standin': part['standin']}

  def _models(
    self, part: Results, request: parts.Request, seed: int
  ) -> dict[str, run_lib.Trained]:
    folder = files.locate(request.root) / part['trained'] / f'seed{seed}'
    return {
      row['name']: curves.restore(folder / row['folder'], row['run'])
      for row in part['rows']
      if row['name'] in self.rows
    }
