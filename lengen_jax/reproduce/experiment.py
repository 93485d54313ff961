"""Experiments as data: tables of runs, and claims that compare their scores."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any

SCALES = ('paper', 'small', 'cpu', 'tiny')
# Scales that use the paper's data; the other two use substitutes.
FULL_SCALES = ('paper', 'small')

Results = dict[str, Any]
# (part, row, column) of a score, or a constant.
Operand = tuple[str, str, Any] | float
# One or several names of parts, rows or columns.
Names = Any


@dataclasses.dataclass(frozen=True)
class SubstituteData:
  """Data that replaces a paper's data set at scales `cpu` and `tiny`.

  Attributes:
    text: description, as printed below a table.
    changes: config values that select the data.
    write: writes the files into a folder, which becomes `data.raw`; None if
      the data needs no files.
  """

  text: str
  changes: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, hash=False
  )
  write: Callable[..., None] | None = None


STDLIB = SubstituteData(
  'source of the Python standard library, in bytes',
  {
    'data.source': 'stdlib',
    'data.path': '',
    'data.task': '',
    'data.mode': 'doc_window',
    'model.vocab_size': 256,
  },
)


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a table: one run and the scores that the paper reports for it.

  Attributes:
    name: the paper's name of the method.
    run: 'encoding | positions | attention_scale', or a function that returns
      it for the longest training length n.
    paper: the paper's scores, one per column; None if it reports none.
    scales: scales at which the row is run.
    trained_as: name of the row whose trained model this row evaluates; None
      if the row trains its own model.
    init_row: name of the row of `init_part` that provides the initial
      parameters; None for the row with the same name.
  """

  name: str
  run: str | Callable[[int], str]
  paper: Sequence[float | None] | None = None
  scales: tuple[str, ...] = SCALES
  trained_as: str | None = None
  init_row: str | None = None

  def run_at(self, n: int) -> str:
    """Returns the run for the longest training length n."""
    return self.run(n) if callable(self.run) else self.run


def rows(
  runs: Mapping[str, str | Callable[[int], str]],
  paper: Mapping[str, Sequence[float | None]] | None = None,
  **options: Any,
) -> tuple[Row, ...]:
  """Returns one row per item of `runs`.

  Args:
    runs: {name: run}, see `Row.run`.
    paper: {name: the paper's scores}; a missing name has none.
    **options: other attributes, common to all rows.
  """
  paper = paper or {}
  return tuple(
    Row(name, run, paper.get(name), **options) for name, run in runs.items()
  )


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The hypothesis `low` < `high` - `margin`.

  Attributes:
    low: (part, row, column) of a score, or a number. Columns are relative
      lengths, or names such as 'beyond'.
    high: likewise.
    margin: minimum difference; a negative margin tolerates the opposite order
      up to that amount.
  """

  low: Operand
  high: Operand
  margin: float = 0.0


def beats(
  parts: Names,
  better: Names,
  worse: Names,
  columns: Names,
  *,
  higher: bool = False,
  margin: float = 0.0,
) -> tuple[Comparison, ...]:
  """Returns the comparisons 'each of `better` beats each of `worse`'.

  Args:
    parts: a part or a tuple of parts; each is compared separately.
    better: a row or a tuple of rows.
    worse: a row or a tuple of rows.
    columns: a column or a tuple of columns.
    higher: whether higher scores are better.
    margin: see `Comparison`.
  """
  comparisons = []
  for part, a, b, column in itertools.product(
    *map(_as_tuple, (parts, better, worse, columns))
  ):
    low, high = (part, a, column), (part, b, column)
    if higher:
      low, high = high, low
    comparisons.append(Comparison(low, high, margin))
  return tuple(comparisons)


def beats_pairwise(
  part: str,
  pairs: Sequence[tuple[str, str]],
  columns: Names,
  **options: Any,
) -> tuple[Comparison, ...]:
  """Returns the comparisons of `beats` for each pair (better, worse)."""
  return tuple(
    comparison
    for better, worse in pairs
    for comparison in beats(part, better, worse, columns, **options)
  )


def increases(
  part: str, names: Names, columns: Sequence[Any], margin: float = 0.0
) -> tuple[Comparison, ...]:
  """Returns the comparisons 'the score grows from column to column'."""
  return tuple(
    Comparison((part, row, first), (part, row, second), margin)
    for row in _as_tuple(names)
    for first, second in itertools.pairwise(columns)
  )


def _as_tuple(names: Names) -> tuple[Any, ...]:
  return tuple(names) if isinstance(names, (tuple, list)) else (names,)


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement of a paper, as comparisons that can fail.

  Attributes:
    key: initial of the paper and number of the claim.
    text: the statement.
    comparisons: the claim holds if all of them hold.
  """

  key: str
  text: str
  comparisons: tuple[Comparison, ...]


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A table or figure of a paper.

  Attributes:
    name: 'PAPER/TABLE'.
    title: what the table shows.
    parts: the `parts.Part`s that are run, in this order.
    claims: statements to test.
    hardware: the paper's hardware; '' if unknown.
    summary: returns summary lines for the results; None for no summary.
    ours: settings that the paper does not specify, one line each.
    seeds: default seeds.
  """

  name: str
  title: str
  parts: tuple[Any, ...]
  claims: tuple[Claim, ...] = ()
  hardware: str = ''
  summary: Callable[[Results], list[str]] | None = None
  ours: tuple[str, ...] = ()
  seeds: tuple[int, ...] = (0, 1)
