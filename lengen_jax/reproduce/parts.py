"""Base classes of the parts of an experiment; a part checks and runs itself."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import hashlib
import inspect
import json
import math
import pathlib
import statistics
import sys
from typing import Any, ClassVar, TypeAlias

from flax import traverse_util
import ml_collections

from lengen_jax import data, errors
from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce.experiment import Results, Row
from lengen_jax.training import config_file, files, workdir
from lengen_jax.training import runs as runs_lib

Config: TypeAlias = ml_collections.ConfigDict
# A score per column; None where a run has no score.
Scores = list[float | None]
# Scores `[seeds][columns]` and further fields of each row; results of all runs;
# other fields of the part's results, which must include 'columns'.
Outcome = tuple[list[tuple[list[Scores], Results]], list[Results], Results]

# At scale `hours`, models are also tested at 1 / n of their training steps.
_TESTED_AT = (16, 8, 4, 2)
# Settings, or sections of them, that the list of differences omits: other lines
# describe them, or no score depends on them.
_OMITTED_DIFFERENCES = (
  *('data.source', 'data.task', 'data.path', 'data.raw', 'model.encoding'),
  *('eval.batch_tokens', 'eval.buckets', 'eval.lengths', 'eval.steps'),
  *('model.remat', 'model.scan_layers', 'model.attention_scale', 'positions'),
  *('paper', 'seed', 'sweep.batching', 'sweep.runs', 'sweep.seeds'),
  *('train.buckets', 'train.checkpoint_every', 'train.init_from'),
  'train.log_every',
)


@dataclasses.dataclass(frozen=True)
class Request:
  """Arguments of `run.reproduce`; `name` is PAPER/TABLE.

  Attributes:
    replicates: see `Experiment.replicates`.
    rows: the rows that a user chose; () for all.
  """

  scale: str
  seeds: tuple[int, ...]
  overrides: tuple[str, ...]
  root: str
  name: str
  replicates: bool = False
  rows: tuple[str, ...] = ()

  @property
  def folder_name(self) -> str:
    """PAPER/TABLE/SCALE, with a suffix for other seeds, rows and overrides."""
    # The last value of a field counts.
    last = {each.partition('=')[0]: each for each in self.overrides}
    changes = sorted(last.values())
    # A replication mostly has some of the rows.
    if self.rows and not self.replicates:
      changes += ['--rows', *sorted(self.rows)]
    suffix = '-replication' if self.replicates else ''
    suffix += f'-{_digest(changes)}' if changes else ''
    return f'{self.name}/{self.scale}{suffix}'

  @property
  def folder(self) -> pathlib.Path:
    """Folder of the experiment at this scale."""
    return files.locate(self.root) / self.folder_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
  """A part of an experiment; `kind` names the type of its results."""

  name: str
  scales: tuple[str, ...] = experiment_lib.SCALES
  kind: ClassVar[str]

  def check(self, request: Request) -> None:
    """Raises `errors.LengenError` if the part cannot run."""

  def first_model(self, row: str) -> tuple[str, str]:
    """Returns (part, row) of the model that the training of a row starts from.

    A model trained from random parameters returns its own part and row.
    """
    return self.name, row

  def run(self, request: Request, previous: Sequence[Results]) -> Results:
    """Returns the results, given those of the experiment's previous parts."""
    raise NotImplementedError

  def results(self, rows: list[Results], **fields: Any) -> Results:
    """Returns results with `rows`, default values, and `fields` over these."""
    return {
      'kind': self.kind,
      'name': self.name,
      'of_seeds': 'mean',
      'rows': rows,
      'standin': None,
      'same_kind': True,
      'differences': [],
      'train_seconds': 0.0,
    } | fields


def find(results: Sequence[Results], name: str) -> Results:
  """Returns the results of the part or row called `name`."""
  (found,) = (one for one in results if one['name'] == name)
  return found


def table_row(
  name: str,
  run: str,
  by_seed: Sequence[Scores],
  paper: experiment_lib.Scores | None = None,
  reduction: str = 'mean',
) -> Results:
  """Returns a row of a results table, given scores `[seeds][columns]`."""
  reduce = {'mean': statistics.fmean, 'min': min, 'max': max}[reduction]
  return {
    'name': name,
    'run': run,
    'values': by_seed,
    'value': reduce_columns(by_seed, reduce),
    'paper': None if paper is None else list(paper),
  }


def reduce_columns(
  lines: Sequence[Scores], reduce: Any = statistics.fmean
) -> Scores:
  """Reduces scores `[lines][columns]` over lines; None if any is missing."""
  return [
    None if None in column else reduce(column)
    for column in zip(*lines, strict=True)
  ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfiguredPart(Part):
  """A part that trains and tests its rows with a common config.

  Attributes:
    config: config file, with the start of its argument, to which the scale is
      appended: 'fire_c4.py:base'.
    ratios: lengths tested, relative to the training length.
    config_lengths: whether to test the lengths of the config, each of which is
      assigned to the nearest of `ratios`.
    settings: config values in place of those of the config file.
    substitute: replaces the data at scales below `small`; None for the
      config's own data.
    init_part: previous part whose models provide the initial parameters; None
      for random ones.
    seed_reduction: 'mean', or 'min' or 'max' where the paper reports the best
      seed.
  """

  config: str
  rows: tuple[Row, ...]
  ratios: tuple[float, ...] = ()
  config_lengths: bool = False
  settings: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, hash=False
  )
  substitute: experiment_lib.SubstituteData | None = None
  init_part: str | None = None
  seed_reduction: str = 'mean'
  hardware: str = ''
  # Written into the folder of a finished run; None if runs have no folders.
  result: ClassVar[str | None] = None
  # Fields of the section train, of those in `workdir.FREE`, that scores depend
  # on.
  scored: ClassVar[tuple[str, ...]] = ()
  # Whether results have the scores of models at `eval.steps`.
  tested_earlier: ClassVar[bool] = False
  omitted: ClassVar[tuple[str, ...]] = _OMITTED_DIFFERENCES

  def make_config(self, request: Request) -> Config:
    """Returns the config that all rows share."""
    config = self.load(request)
    with config.unlocked():
      config.eval.lengths = tuple(self.columns(config).values())
    return config

  def load(self, request: Request, *changes: str) -> Config:
    """Returns the config at a scale, with the user's overrides.

    At scale `hours`, models are also tested at earlier steps.
    """
    substitute = self.substitute_at(request.scale)
    values = {**self.settings, **(substitute.changes if substitute else {})}
    if folder := self._substitute_folder(request):
      values['data.raw'] = folder
    overrides = [f'--config.{key}={value}' for key, value in values.items()]
    overrides += [*changes, *request.overrides]
    if request.scale == 'hours':
      steps = load_config(self.config, 'cpu', []).train.steps
      steps *= experiment_lib.LONGER
      longer = f'--config.train.steps={steps}'
      config = load_config(self.config, 'cpu', [longer, *overrides])
      if self.tested_earlier and not config.eval.steps:
        steps = config.train.steps
        # Training of fewer than 16 steps is tested at fewer of them.
        earlier = {steps // part for part in _TESTED_AT} - {0, steps}
        config.eval.steps = tuple(sorted(earlier))
    else:
      config = load_config(self.config, request.scale, overrides)
    with config.unlocked():
      if 'paper' in config:
        del config.paper
    return config

  def check(self, request: Request) -> None:
    """Writes substitute data; for the errors see `Part.check`."""
    self.write_substitute(request)
    config = self.make_config(request)
    self.parse(config, request.scale)
    if 'data' not in config:
      return
    try:
      data.check_present(data.DataConfig(**config.data.to_dict()))
    except errors.LengenError as error:
      raise errors.CorpusError(
        f'{self.config} at scale {request.scale}: {error}; --scale=cpu needs '
        'no data'
      ) from None

  def first_model(self, row: str) -> tuple[str, str]:
    by_name = {one.name: one for one in self.rows}
    model = by_name[by_name[row].trained_as or row]
    if self.init_part is None:
      return self.name, model.name
    return self.init_part, model.init_name

  def rows_at(self, scale: str) -> list[Row]:
    """Returns the rows that are run at a scale."""
    return [row for row in self.rows if scale in row.scales]

  def runs(self, config: Config, scale: str) -> dict[str, str]:
    """Returns {row: run}, with runs as `lengen compare --runs` reads them."""
    section = config.data if 'data' in config else config.train
    longest = section.get('train_length', section.get('max_length'))
    runs = {row.name: row.run_at(longest) for row in self.rows_at(scale)}
    for row in self.rows_at(scale):
      if row.trained_as:
        runs[row.name] = f'{runs[row.trained_as]} => {runs[row.name]}'
    return runs

  def parse(self, config: Config, scale: str) -> dict[str, runs_lib.Run]:
    """Returns {row: run}."""
    runs = self.runs(config, scale)
    parsed = runs_lib.parse('; '.join(runs.values()), config)
    return dict(zip(runs, parsed, strict=True))

  def substitute_at(self, scale: str) -> experiment_lib.SubstituteData | None:
    """Returns the substitute data; None if the scale uses the paper's."""
    return None if scale in experiment_lib.FULL_SCALES else self.substitute

  def write_substitute(self, request: Request) -> None:
    """Writes the files of the substitute data, if it has any."""
    if folder := self._substitute_folder(request):
      self.substitute.write(folder)

  def _substitute_folder(self, request: Request) -> pathlib.Path | None:
    """Returns a folder whose name has a hash of the writer's source code."""
    substitute = self.substitute_at(request.scale)
    if substitute is None or substitute.write is None:
      return None
    module = sys.modules[substitute.write.__module__]
    name = module.__name__.rpartition('.')[2]
    version = _digest(inspect.getsource(module))
    return files.locate(request.root) / 'standins' / f'{name}-{version}'

  def differences(self, config: Config, request: Request) -> list[str]:
    """Returns one line per setting that differs from scale `paper`.

    Without that scale, it is one line per setting of the part.
    """
    if 'paper' not in self.scales:
      return [f'{key}: {value!r}' for key, value in self.settings.items()]
    full = self.make_config(
      dataclasses.replace(request, scale='paper', overrides=())
    )
    before, after = (
      traverse_util.flatten_dict(json.loads(one.to_json()), sep='.')
      for one in (full, config)
    )
    lines = [
      f'{key}: {after.get(key)!r}, at full size {before.get(key)!r}'
      for key in sorted({*before, *after})
      if before.get(key) != after.get(key)
      and not {key, key.partition('.')[0]} & {*self.omitted}
    ]
    full_runs = self.runs(full, request.scale)
    return lines + [
      f'{name}: {run}, at full size {full_runs[name]}'
      for name, run in self.runs(config, request.scale).items()
      if run != full_runs[name]
    ]

  def trained_folder(self, request: Request, config: Config) -> str:
    """Returns the folder of the runs of a config, relative to `root`.

    Experiments that train the same models share this folder. Its name does not
    depend on the seed, the mesh, where the data is, or the encodings, which are
    in the names of the folders of runs. Nor does it depend on those of
    `workdir.FREE` that no score depends on.
    """
    shared = json.loads(config.to_json())
    if 'sweep' in shared:
      shared['eval'].pop('steps')
    for key in ('sweep', 'paper', 'seed', 'mesh'):
      shared.pop(key, None)
    for section, keys in (workdir.FREE | {'data': ('path', 'raw')}).items():
      for key in {*keys} - {*self.scored}:
        shared.get(section, {}).pop(key, None)
    shared['model'] |= {'encoding': '', 'attention_scale': ''}
    shared['positions'] = ''
    name = self.config.replace('.py', '').replace(':', ',').replace(',', '-')
    written = self._substitute_folder(request)
    digest = _digest([shared, written and written.name])
    return f'trained/{name}-{request.scale}-{digest}'

  def prepared(
    self, request: Request, previous: Sequence[Results]
  ) -> tuple[Config, Results | None, str]:
    """Returns the config, the results of `init_part`, and the folder of runs.

    Of the results of previous parts, 'name' and 'trained' are required.
    """
    config = self.make_config(request)
    start = self.init_part_at(request.scale)
    init = find(previous, start) if start else None
    if init is not None:
      # The initial models determine the folder of runs.
      config.train.init_from = init['trained']
    return config, init, self.trained_folder(request, config)

  def unfinished(
    self, request: Request, previous: Sequence[Results]
  ) -> list[Config]:
    """Returns the configs of runs without results; see `prepared`."""
    left: list[Config] = []
    if self.result is None:
      return left
    config, init, trained = self.prepared(request, previous)
    runs = self.parse(config, request.scale)
    for seed in request.seeds:
      folder = files.locate(request.root) / trained / f'seed{seed}'
      for row in self.rows_at(request.scale):
        name = self.init_folder(row, init) + runs_lib.folder(runs[row.name])
        if not row.trained_as and not (folder / name / self.result).exists():
          left.append(runs_lib.configure(config, runs[row.name]))
    return left

  def run(self, request: Request, previous: Sequence[Results]) -> Results:
    config, init, trained = self.prepared(request, previous)
    folder = files.locate(request.root) / trained
    scores, runs, fields = self.train(request, config, folder, init)
    table = []
    specs, rows = self.runs(config, request.scale), self.rows_at(request.scale)
    for row, (by_seed, more) in zip(rows, scores, strict=True):
      paper = self.paper_scores(row, fields['columns'])
      line = (row.name, specs[row.name], by_seed, paper, self.seed_reduction)
      table.append(table_row(*line) | more)
    substitute = self.substitute_at(request.scale)
    return self.results(
      table,
      of_seeds=self.seed_reduction,
      commits=sorted({str(r.get('commit', 'unrecorded')) for r in runs}),
      standin=substitute.text if substitute else None,
      same_kind=not substitute or substitute.same_kind,
      init_part=init['name'] if init else None,
      differences=self.differences(config, request)
      + fields.pop('differences', []),
      train_seconds=sum(one['train_seconds'] for one in runs),
      trained=trained,
      **fields,
    )

  def train(
    self,
    request: Request,
    config: Config,
    folder: files.Path,
    init: Results | None,
  ) -> Outcome:
    """Trains and tests every row with every seed in `folder`.

    Locks what it writes into, so that other processes can train other seeds.

    `config`, which the rows share, may be modified. `init` has the results of
    `init_part`; None for random initial parameters.
    """
    raise NotImplementedError

  def init_part_at(self, scale: str) -> str | None:
    """Returns `init_part`; None if models start from random parameters."""
    return self.init_part

  def columns(self, config: Config) -> dict[float, int]:
    """Returns {relative length: length}."""
    whole = config.data.train_length
    if not self.config_lengths:
      return {ratio: int(whole * ratio) for ratio in self.ratios}
    return {
      min(self.ratios, key=lambda x: abs(math.log(length / whole / x))): length
      for length in config.eval.lengths
    }

  def paper_scores(self, row: Row, columns: Sequence[Any]) -> Scores | None:
    """Returns the paper's scores of a row, one per column.

    Their order is that of the columns if these have names, else of `ratios`.
    """
    if row.paper is None:
      return None
    named = isinstance(columns[0], str)
    scores = zip(columns if named else self.ratios, row.paper, strict=False)
    return list(map(dict(scores).get, columns))

  def init_folder(self, row: Row, init: Results | None) -> str:
    """Returns the folder prefix of runs with the same initial model."""
    return '' if init is None else f'from-{row.init_name}/'

  def init_workdir(
    self, row: Row, request: Request, seed: int, init: Results
  ) -> str:
    """Returns the workdir of the model that initialises a row.

    Raises:
      errors.DivergedError: that model diverged.
    """
    model = find(init['rows'], row.init_name)
    if diverged(model['values'][request.seeds.index(seed)]):
      raise errors.DivergedError(f'its initial model {row.init_name} diverged')
    folder = files.locate(request.root) / init['trained'] / f'seed{seed}'
    return str(folder / model['folder'])


def diverged(scores: Scores) -> bool:
  """Returns whether a model has no scores."""
  return all(score is None for score in scores)


def first_reasons(by_seed: Sequence[Results]) -> dict[str, str]:
  """Returns why columns have no score, for the first seed without one."""
  return {
    column: reason
    for one in reversed(by_seed)
    for column, reason in one['refused'].items()
  }


def load_config(text: str, scale: str, overrides: Iterable[str]) -> Config:
  """Returns a config at a scale; for `text` see `ConfiguredPart.config`."""
  file, _, arg = text.partition(':')
  arg = ','.join([arg, scale] if arg else [scale])
  path = f'{config_file.folder() / file}:{arg}'
  return config_file.load(path, list(overrides))


def _digest(value: Any) -> str:
  """Returns eight hexadecimal digits that identify a JSON value."""
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]
