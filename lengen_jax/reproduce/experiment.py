"""Experiments as data: tables of runs, and claims that compare their scores."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import itertools
import json
import re
from typing import Any

SCALES = ('paper', 'small', 'hours', 'cpu', 'tiny')
# Scales that use the paper's data; the others use substitute data.
FULL_SCALES = ('paper', 'small')
# `hours` is `cpu` with this many times the training steps and other seeds.
LONGER = 12
HOURS_SEEDS = (0, 1, 2)
# Suffix of the name of a part whose scores are those of an earlier step.
EARLY = ' early'

Results = dict[str, Any]
# (part, row, column) of a score, or a constant.
Operand = tuple[str, str, Any] | float
# 'encoding | positions | attention_scale', or a function that returns it for
# the longest training length.
Run = str | Callable[[int], str]
Scores = Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class SubstituteData:
  """Data that replaces a paper's data set at scales below `small`.

  Attributes:
    changes: config values that select the data.
    write: writes the files into a folder, which becomes `data.raw`; None if
      the data needs no files.
    same_kind: whether it is data of the kind of the paper's, such as text for
      text. Other data, such as template sentences for a set of questions, has
      only the format.
  """

  text: str
  changes: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, hash=False
  )
  write: Callable[..., None] | None = None
  same_kind: bool = True


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
    paper: the paper's scores, one per column; None if it reports none.
    trained_as: name of the row whose trained model this row evaluates; None
      if the row trains its own model.
    init_row: name of the row of `init_part` that provides the initial
      parameters; None for the row with the same name.
  """

  name: str
  run: Run
  paper: Scores | None = None
  scales: tuple[str, ...] = SCALES
  trained_as: str | None = None
  init_row: str | None = None

  @property
  def init_name(self) -> str:
    """Name of the row that provides the initial parameters, if one does."""
    return self.init_row or self.name

  def run_at(self, n: int) -> str:
    """Returns the run for the longest training length n."""
    return self.run(n) if callable(self.run) else self.run


def rows(
  runs: Mapping[str, Run],
  paper: Mapping[str, Scores | None] | None = None,
  names: Iterable[str] | None = None,
  **options: Any,
) -> tuple[Row, ...]:
  """Returns the rows `names` of a table; None for all.

  Runs and the paper's scores are given by name; all rows share `options`.
  """
  paper = paper or {}
  return tuple(
    Row(name, runs[name], paper.get(name), **options) for name in names or runs
  )


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The hypothesis `low` < `high` - `margin`.

  Columns are relative lengths, or names such as 'beyond'. A negative margin
  tolerates the opposite order up to that amount. A `relative` margin is a
  fraction of the mean of `high`. Scores are `paired` if those of a seed are of
  the same model, or of models that were trained from the same one.
  """

  low: Operand
  high: Operand
  margin: float = 0.0
  relative: bool = False
  paired: bool = False


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement of a paper, which holds if all of its comparisons hold.

  Attributes:
    key: initial of the paper and number of the claim.
    full_size: whether the claim depends on the paper's data, model or hardware,
      so that only scale `paper` can decide it.
  """

  key: str
  text: str
  comparisons: tuple[Comparison, ...]
  full_size: bool = False


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A table or figure of a paper.

  Attributes:
    name: 'PAPER/TABLE'.
    parts: the `parts.Part`s that are run, in this order.
    hardware: the paper's hardware; '' if unknown.
    summary: returns summary lines for the results.
    ours: settings that the paper does not specify, one line each.
  """

  name: str
  title: str
  parts: tuple[Any, ...]
  hardware: str = ''
  summary: Callable[[Results], list[str]] | None = None
  ours: tuple[str, ...] = ()
  seeds: tuple[int, ...] = (0, 1)
  claims: tuple[Claim, ...] = ()

  @property
  def largest_scale(self) -> str:
    """The first of SCALES that a part has."""
    scales = {each for part in self.parts for each in part.scales}
    return next(each for each in SCALES if each in scales)

  def seeds_at(self, scale: str) -> tuple[int, ...]:
    """Returns the default seeds of a scale."""
    return HOURS_SEEDS if scale == 'hours' else self.seeds

  def replicates(self, scale: str, seeds: Iterable[int]) -> bool:
    """Returns whether none of the seeds is a default seed of a scale."""
    return {*seeds}.isdisjoint(self.seeds_at(scale))


def parse_comparisons(
  line: str, experiment_parts: Sequence[Any] = ()
) -> tuple[Comparison, ...]:
  """Returns the comparisons of a line such as 'part: a < b|c @ 1|4'.

  The line is 'LEFT < RIGHT' or 'LEFT > RIGHT', optionally followed by
  'by MARGIN' or 'by PERCENT%'. A side is 'PARTS: ROWS @ COLUMNS', with
  alternatives separated by '|'. Parts, rows or columns that a side omits are
  those of the other side. The right side may be a number. All pairs of rows are
  compared; columns are paired in order. A line with '[a|b]' stands for two
  lines: one has a in place of this and of any '[]', the other has b.

  `experiment_parts` determine which scores are paired; without them, those of
  the same row are.
  """
  if '[' in line:
    head, names, tail = re.split(r'[\[\]]', line, maxsplit=2)
    lines = [(head + x + tail).replace('[]', x) for x in names.split('|')]
    return sum((parse_comparisons(x, experiment_parts) for x in lines), ())
  body, _, margin = line.partition(' by ')
  sign = '<' if ' < ' in body else '>'
  left, right = (_parse_side(side) for side in body.split(f' {sign} '))
  columns = left[2] or right[2]
  comparisons = []
  for part, row in itertools.product(*left[:2]):
    for other in right[1] or [row]:
      pairs = zip(columns, right[2] or columns, strict=True)
      for column, other_column in pairs:
        low: Operand = part, row, column
        high: Operand = other
        if not isinstance(other, float):
          high = (right[0] or [part])[0], other, other_column
        if sign == '>':
          low, high = high, low
        percent = margin.endswith('%')
        amount = float(margin.rstrip('%') or 0) / (100 if percent else 1)
        first, second = (_first_model(x, experiment_parts) for x in (low, high))
        paired = first is not None and first == second
        comparisons.append(Comparison(low, high, amount, percent, paired))
  return tuple(comparisons)


def _first_model(
  operand: Operand, experiment_parts: Sequence[Any]
) -> tuple[str, str] | None:
  """Returns (part, row) of the model that an operand's training starts from.

  A model trained from random parameters returns its own part and row. Returns
  None for a constant.
  """
  if not isinstance(operand, tuple):
    return None
  name, row, _ = operand
  name = name.removesuffix(EARLY)
  # A model starts from one of a previous part.
  for part in reversed(experiment_parts):
    if part.name == name:
      name, row = part.first_model(row)
  return name, row


def _parse_side(text: str) -> tuple[list[Any], list[Any], list[Any]]:
  """Returns parts, rows and columns of one side of a comparison."""
  names, _, columns = text.partition('@')
  if not columns and isinstance(_number(names), int | float):
    return [], [float(names)], []
  parts, _, rows_ = names.rpartition(':')
  return _split(parts), _split(rows_), [_number(c) for c in _split(columns)]


def _split(text: str) -> list[Any]:
  return [one.strip() for one in text.split('|') if one.strip()]


def _number(text: str) -> Any:
  try:
    return json.loads(text)
  except ValueError:
    return text


def common_steps(rows: Iterable[Results]) -> list[int]:
  """Returns the steps of rows with trajectories, the same ones in each.

  It is [] if a row was tested at one step only, or rows at different steps.
  """
  steps = [row.get('trajectory', {}).get('steps', []) for row in rows]
  alike = steps and all(one == steps[0] for one in steps)
  return steps[0] if alike else []


def at_steps(trajectory: Results) -> list[Results]:
  """Returns the scores of a trajectory at each of its steps."""
  return [
    {name: values[n] for name, values in trajectory.items()}
    for n in range(len(trajectory['steps']))
  ]


def trajectory(
  steps: Sequence[int], values: Any, more: Iterable[Results]
) -> Results:
  """Returns the trajectory of a row, given further fields at each step.

  Args:
    steps: the tested steps.
    values: scores `[seed][step][column]`.
    more: the further fields, a mapping for each step.
  """
  more = list(more)
  fields = {name: [one[name] for one in more] for name in more[0]}
  return {'trajectory': {'steps': steps, 'values': values, **fields}}


def read(
  paper: str,
  text: str,
  parts: Mapping[str, Sequence[Any]],
  fields: Mapping[str, Mapping[str, Any]],
  **defaults: Any,
) -> tuple[Experiment, ...]:
  """Returns the experiments of a paper.

  A line '[TABLE] TITLE' of the text starts an experiment, an unindented line
  'KEY: TEXT' a claim, or 'KEY*: TEXT' one that needs the full size, and a line
  indented by two spaces is read by `parse_comparisons`. Lines indented by four
  spaces continue the previous line.

  `parts` maps each table to its parts, and `fields` maps a table to the
  attributes that override `defaults`.
  """
  found: list[Experiment] = []
  claims: list[Claim] = []
  for line in text.strip().replace('\n    ', ' ').splitlines():
    if line.startswith('['):
      table, _, title = line[1:].partition('] ')
      others = defaults | {**fields.get(table, {})}
      name, claims = f'{paper}/{table}', []
      found.append(Experiment(name, title, tuple(parts[table]), **others))
    elif line.startswith('  '):
      claim = claims.pop()
      comparisons = claim.comparisons + parse_comparisons(line, parts[table])
      claims.append(dataclasses.replace(claim, comparisons=comparisons))
    else:
      key, _, statement = line.partition(': ')
      full = key.endswith('*')
      claims.append(Claim(key.rstrip('*'), statement, (), full_size=full))
    found[-1] = dataclasses.replace(found[-1], claims=tuple(claims))
  return tuple(found)
