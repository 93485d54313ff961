"""Experiments as data: tables of runs, and claims that compare their scores."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
from typing import Any

SCALES = ('paper', 'small', 'cpu', 'tiny')
# Scales that use the paper's data; the other two use substitutes.
FULL_SCALES = ('paper', 'small')

Results = dict[str, Any]
# (part, row, column) of a score, or a constant.
Operand = tuple[str, str, Any] | float


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
  hardware: str = ''
  summary: Callable[[Results], list[str]] | None = None
  ours: tuple[str, ...] = ()
  seeds: tuple[int, ...] = (0, 1)
  claims: tuple[Claim, ...] = ()


def parse_comparisons(line: str) -> tuple[Comparison, ...]:
  """Returns the comparisons of a line such as 'part: a < b|c @ 1|4'.

  The line is 'LEFT < RIGHT' or 'LEFT > RIGHT', optionally followed by
  'by MARGIN'. A side is 'PARTS: ROWS @ COLUMNS', with alternatives separated by
  '|', and defaults to the other side's parts, rows and columns; the right side
  may be a number. Rows are combined in all pairs, columns are paired in order.
  """
  body, _, margin = line.partition(' by ')
  sign = '<' if ' < ' in body else '>'
  left, right = (_parse_side(side) for side in body.split(f' {sign} '))
  columns = left[2] or right[2]
  comparisons = []
  for part, row in itertools.product(left[0], left[1]):
    for other in right[1] or [row]:
      for column, other_column in zip(
        columns, right[2] or columns, strict=True
      ):
        pair: list[Operand] = [
          (part, row, column),
          (right[0][0] if right[0] else part, other, other_column),
        ]
        if isinstance(other, float):
          pair[1] = other
        low, high = pair if sign == '<' else reversed(pair)
        comparisons.append(Comparison(low, high, float(margin or 0)))
  return tuple(comparisons)


def _parse_side(text: str) -> tuple[list[str], list[Any], list[Any]]:
  """Returns parts, rows and columns of one side of a comparison."""
  names, _, columns = text.partition('@')
  if not columns:
    try:
      return [], [float(names)], []
    except ValueError:
      pass
  parts, _, rows_ = names.rpartition(':')
  return _split(parts), _split(rows_), [_number(c) for c in _split(columns)]


def _split(text: str) -> list[str]:
  return [one.strip() for one in text.split('|') if one.strip()]


def _number(text: str) -> Any:
  for kind in (int, float):
    try:
      return kind(text)
    except ValueError:
      pass
  return text


def with_claims(
  text: str, experiments: Sequence[Experiment]
) -> tuple[Experiment, ...]:
  """Returns the experiments with the claims of a text.

  A line '[NAME]' starts an experiment, an unindented line 'KEY: TEXT' a claim,
  and a line indented by two spaces is read by `parse_comparisons`. Lines
  indented by four spaces continue the previous line.
  """
  claims: dict[str, list[Claim]] = {one.name: [] for one in experiments}
  name = ''
  for line in text.strip().replace('\n    ', ' ').splitlines():
    if line.startswith('['):
      name = line.strip('[]')
    elif line.startswith('  '):
      claim = claims[name][-1]
      comparisons = claim.comparisons + parse_comparisons(line)
      claims[name][-1] = dataclasses.replace(claim, comparisons=comparisons)
    else:
      key, _, statement = line.partition(': ')
      claims[name].append(Claim(key, statement, ()))
  return tuple(
    dataclasses.replace(one, claims=tuple(claims[one.name]))
    for one in experiments
  )
