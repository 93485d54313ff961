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
    write: writes it into a folder, which is then `data.raw`; None for what
      needs no files.
  """

  text: str
  changes: dict = dataclasses.field(hash=False)
  write: Callable | None = None


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
    trained_as: the row from which this one differs in testing alone, whose
      model it tests; None to train one.
    start: the row of the part it starts from, if not of the same name; see
      `Curves.starts_from`.
  """

  name: str
  run: str | Callable
  paper: tuple | None = None
  scales: tuple = SCALES
  trained_as: str | None = None
  start: str | None = None

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
    of_config: the lengths are those of the config, which ratios name roughly.
    unit: of the paper's figures and of ours: 'nats per token', 'perplexity' and
      so on.
    standin: of the data.
    shrink: the training length of the config is divided by this.
    window: of attention, in training lengths; None for the config's.
    scales: at which the part is run.
    starts_from: the part of the same experiment whose models are finetuned;
      None to start from nothing.
    of_seeds: 'mean', or 'min' where the paper has the best of its seeds.
    hardware: the paper's, where it is not that of the experiment.
  """

  name: str
  config: str
  rows: tuple
  ratios: tuple
  unit: str = 'nats per token'
  standin: Standin | None = STDLIB
  shrink: int = 1
  window: float | None = None
  of_config: bool = False
  scales: tuple = SCALES
  starts_from: str | None = None
  of_seeds: str = 'mean'
  hardware: str = ''


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Scores of a generated task beyond the training length.

  Attributes:
    name: as of Curves.
    config: as of Curves; its argument names the task.
    rows: the runs; figures are the mean over lengths beyond training, which is
      the paper's, and that over lengths seen in training.
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
class Answers:
  """Scores of answers to prompts, after finetuning.

  Attributes:
    name: as of Curves.
    config: as of Curves.
    rows: the runs.
    standin: as of Curves.
    starts_from: as of Curves, at scales `paper` and `small`; a stand-in's
      models start from nothing.
    ratios: lengths tested, in training lengths; the columns of one task.
    of_config: as of Curves.
    tasks: the columns of a mixture, tested at the training length; a column
      'mean' comes last. None for a single task.
    scales: as of Curves.
  """

  name: str
  config: str
  rows: tuple
  standin: Standin
  starts_from: str
  ratios: tuple = (1,)
  of_config: bool = False
  tasks: tuple | None = None
  scales: tuple = SCALES


@dataclasses.dataclass(frozen=True)
class Timing:
  """Time of a forward pass of models that are not trained, on random tokens.

  Attributes:
    name: as of Curves.
    config: as of Curves.
    rows: the runs.
    ratios: lengths timed, in training lengths.
    runs: timed of each row and seed.
    scales: as of Curves.
  """

  name: str
  config: str
  rows: tuple
  ratios: tuple = (1,)
  runs: int = 10
  scales: tuple = SCALES


@dataclasses.dataclass(frozen=True)
class Average:
  """The mean over other parts of the figures of rows that all of them have.

  Attributes:
    name: of the part.
    of: names of the parts; those that are not run at a scale are left out.
  """

  name: str
  of: tuple
  scales: tuple = SCALES


@dataclasses.dataclass(frozen=True)
class Figures:
  """Numbers that a drawing or a look into models gives for claims.

  Attributes:
    columns: their names.
    unit: what they are.
    measure: for a Drawing, gives {row: a number per column}; for a Probe,
      which has a row for each of its models, a number per column of a Trained.
    paper: {row: the paper's figures}.
  """

  columns: tuple
  unit: str
  measure: Callable
  paper: dict = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class Drawing:
  """A figure that is computed and needs no training.

  Attributes:
    name: as of Curves.
    draw: writes pictures and CSVs into a folder and returns their paths.
    figures: what claims are put to; None for nothing.
  """

  name: str
  draw: Callable
  figures: Figures | None = None
  scales: tuple = SCALES


@dataclasses.dataclass(frozen=True)
class Probe:
  """A look into models that another part has trained.

  Attributes:
    name: as of Curves.
    of: name of that part, Curves.
    rows: names of its rows.
    draw: writes pictures and CSVs of {row: Trained} of the first seed into a
      folder and returns their paths.
    figures: of the models of every seed; None for nothing.
  """

  name: str
  of: str
  rows: tuple
  draw: Callable
  figures: Figures | None = None
  scales: tuple = SCALES


@dataclasses.dataclass(frozen=True)
class Less:
  """One figure is less than another.

  Attributes:
    low: (part, row, column), the names of the part and of the row, and a ratio
      of lengths or another column, 'beyond' of a sweep; or a number.
    high: likewise.
    by: by how much at least; less than 0 for what may even be more.
  """

  low: tuple | float
  high: tuple | float
  by: float = 0.0


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
    ours: what the paper leaves open and is our choice, in lines.
    seeds: at every scale, unless told otherwise.
  """

  name: str
  title: str
  parts: tuple
  claims: tuple = ()
  hardware: str = ''
  summary: Callable | None = None
  ours: tuple = ()
  seeds: tuple = (0, 1)
