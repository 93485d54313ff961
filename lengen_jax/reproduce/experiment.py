"""What a table or figure of a paper is made of.

An experiment has parts; a part is trained and tested at one of four scales, and
holds the paper's figures. Claims are comparisons between figures of a part.
"""

from collections.abc import Callable
import dataclasses

SCALES = ('paper', 'small', 'cpu', 'tiny')


@dataclasses.dataclass(frozen=True)
class Standin:
  """What scales `cpu` and `tiny` have in place of a paper's data.

  Attributes:
    text: what it is.
    changes: the values of a config that make it so.
  """

  text: str
  changes: dict = dataclasses.field(hash=False)


STDLIB = Standin(
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
  """One line of a table.

  Attributes:
    name: what the paper calls it.
    run: 'encoding | positions | attention_scale'; or a function that gives it
      for the longest training length n.
    paper: the paper's figures, one per column; None where it has none.
    scales: at which the row is run.
  """

  name: str
  run: str | Callable
  paper: tuple | None = None
  scales: tuple = SCALES

  def run_at(self, n):
    """The run where the longest training length is n."""
    return self.run(n) if callable(self.run) else self.run


@dataclasses.dataclass(frozen=True)
class Curves:
  """Loss by length, on the same tokens at every length.

  Attributes:
    name: of the part, the name of its folder too.
    config: name of a file of configs, with what its argument has before the
      scale, 'fire_c4.py:base'.
    rows: the runs.
    ratios: lengths tested, in training lengths.
    unit: of the paper's figures and of ours: 'nats per token', 'perplexity', or
      'nats per sequence'.
    standin: of the data.
    shrink: the training length of the config is divided by this.
    window: of attention, in training lengths; None for the config's.
    scales: at which the part is run.
    starts_from: (part, row) of the same experiment, what the runs of a config
      of finetuning start from; None for nothing.
    of_seeds: 'mean', or 'min' where the paper has the best of its seeds.
  """

  name: str
  config: str
  rows: tuple
  ratios: tuple
  unit: str = 'nats per token'
  standin: Standin | None = STDLIB
  shrink: int = 1
  window: float | None = None
  scales: tuple = SCALES
  starts_from: tuple | None = None
  of_seeds: str = 'mean'


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Scores of a generated task beyond the training length.

  Attributes:
    name: as of Curves.
    config: as of Curves; its argument names the task.
    rows: the runs; a row's figure is the mean over lengths beyond training.
    unit: of the figures.
    scales: as of Curves.
    of_seeds: 'max' where the paper has the best of its seeds and learning
      rates, or 'mean'.
  """

  name: str
  config: str
  rows: tuple
  unit: str = 'percent'
  scales: tuple = SCALES
  of_seeds: str = 'max'


@dataclasses.dataclass(frozen=True)
class Drawing:
  """A figure that is computed and needs no training.

  Attributes:
    name: as of Curves.
    draw: writes pictures and CSVs into a folder and returns their paths.
  """

  name: str
  draw: Callable
  scales: tuple = SCALES


@dataclasses.dataclass(frozen=True)
class Probe:
  """A look into models that another part has trained.

  Attributes:
    name: as of Curves.
    of: name of that part, Curves.
    rows: names of its rows.
    draw: writes pictures and CSVs of {row: Trained} into a folder and returns
      their paths.
  """

  name: str
  of: str
  rows: tuple
  draw: Callable
  scales: tuple = SCALES


@dataclasses.dataclass(frozen=True)
class Less:
  """One figure is less than another.

  Attributes:
    low: (part, row, column), the names of the part and of the row, and a ratio
      of lengths, or 'beyond' of a sweep.
    high: likewise.
  """

  low: tuple
  high: tuple


def beats(part, row, others, columns, *, higher=False):
  """Comparisons: a row is better than each of the others at each column.

  Args:
    part: name of the part.
    row: name of the row.
    others: names of rows.
    columns: ratios, or ('beyond',).
    higher: whether higher figures are better.
  """
  pairs = [
    ((part, row, column), (part, other, column))
    for other in others
    for column in columns
  ]
  return tuple(Less(b, a) if higher else Less(a, b) for a, b in pairs)


@dataclasses.dataclass(frozen=True)
class Claim:
  """What a source says, as comparisons that can fail.

  Attributes:
    key: letter of the source and number.
    text: the claim.
    comparisons: all of them hold if the claim does.
  """

  key: str
  text: str
  comparisons: tuple


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A table or a figure.

  Attributes:
    name: 'PAPER/TABLE'.
    title: what it shows.
    hardware: the paper's, '' where it says none.
    parts: what is run.
    claims: what it is to show.
    summary: gives lines that sum the parts up, from the results.
    seeds: at every scale, unless told otherwise.
  """

  name: str
  title: str
  parts: tuple
  claims: tuple = ()
  hardware: str = ''
  summary: Callable | None = None
  seeds: tuple = (0, 1)
