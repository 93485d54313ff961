"""Base classes of the parts of an experiment.

A part checks and runs itself. Parts that train share the assembly of configs,
folders and results in `TrainedPart`.
"""

from collections.abc import Iterable, Mapping, Sequence
import copy
import dataclasses
import hashlib
import inspect
import json
import math
import pathlib
import statistics
import sys
from typing import Any, ClassVar, TypeAlias

import ml_collections

from lengen_jax import data, errors
from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce.experiment import Results, Row
from lengen_jax.training import config_file, files, workdir
from lengen_jax.training import runs as runs_lib

Config: TypeAlias = ml_collections.ConfigDict
# A score per column; None where a run has no score.
Scores = list[float | None]

# Settings that the list of differences omits: the description of substitute
# data covers them, or no score depends on them.
_OMITTED_DIFFERENCES = (
  'data.source',
  'data.task',
  'data.path',
  'data.raw',
  'eval.batch_tokens',
  'eval.lengths',
  'model.remat',
  'model.scan_layers',
  'seed',
  'sweep.batching',
  'sweep.runs',
  'sweep.seeds',
  'train.checkpoint_every',
  'train.init_from',
  'train.log_every',
  'train.buckets',
  'eval.buckets',
)
_RUN_SETTINGS = (
  'model.encoding',
  'model.attention_scale',
  'positions',
  'paper',
)


@dataclasses.dataclass(frozen=True)
class Request:
  """What to reproduce, and where.

  Attributes:
    scale: one of `experiment.SCALES`.
    seeds: the seeds.
    overrides: '--config.KEY=VALUE' arguments.
    root: folder of all reproductions.
    name: name of the experiment, 'PAPER/TABLE'.
  """

  scale: str
  seeds: tuple[int, ...]
  overrides: tuple[str, ...]
  root: str
  name: str

  @property
  def folder_name(self) -> str:
    """PAPER/TABLE/SCALE, with a suffix if the user overrides settings."""
    name = f'{self.name}/{self.scale}'
    if self.overrides:
      name += f'-{_digest(sorted(self.overrides))}'
    return name

  @property
  def folder(self) -> pathlib.Path:
    """Folder of the experiment at this scale."""
    return files.locate(self.root) / self.folder_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
  """A part of an experiment.

  Attributes:
    name: name of the part and of its folder.
    scales: scales at which the part is run.
    kind: value of 'kind' in the results.
  """

  name: str
  scales: tuple[str, ...] = experiment_lib.SCALES
  kind: ClassVar[str]

  def check(self, request: Request) -> None:
    """Raises `errors.LengenError` if the part cannot run."""

  def run(self, request: Request, previous: Sequence[Results]) -> Results:
    """Returns the results of the part.

    Args:
      request: what to run, and where.
      previous: results of the experiment's previous parts.
    """
    raise NotImplementedError

  def results(self, rows: list[Results], **fields: Any) -> Results:
    """Returns the results: defaults of the common fields, then `fields`."""
    return {
      'kind': self.kind,
      'name': self.name,
      'of_seeds': 'mean',
      'rows': rows,
      'standin': None,
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
  paper: Sequence[float | None] | None = None,
  reduction: str = 'mean',
) -> Results:
  """Returns a row of a results table.

  Args:
    name: the row's name.
    run: what was run.
    by_seed: scores of each seed, `[seeds][columns]`.
    paper: the paper's scores.
    reduction: 'mean', 'min' or 'max' over seeds.
  """
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
  """A part that runs each of its rows with a common config.

  Attributes:
    config: config file, with the start of its argument, to which the scale is
      appended: 'fire_c4.py:base'.
    rows: the runs.
    ratios: lengths tested, relative to the training length.
    substitute: replaces the data at scales `cpu` and `tiny`; None for the
      config's own data.
    seed_reduction: 'mean', or 'min' or 'max' where the paper reports the best
      seed.
    hardware: the paper's, if it differs from the experiment's.
  """

  config: str
  rows: tuple[Row, ...]
  ratios: tuple[float, ...] = ()
  substitute: experiment_lib.SubstituteData | None = None
  seed_reduction: str = 'mean'
  hardware: str = ''

  def make_config(self, request: Request) -> Config:
    """Returns the config that all rows share."""
    raise NotImplementedError

  def load(self, request: Request, *changes: str) -> Config:
    """Returns the config file at a scale; the user's overrides come last."""
    changes = (*self.substitute_overrides(request), *changes)
    config = load_config(
      self.config, request.scale, [*changes, *request.overrides]
    )
    with config.unlocked():
      if 'paper' in config:
        del config.paper
    return config

  def check(self, request: Request) -> None:
    self.parse(self.make_config(request), request.scale)

  def rows_at(self, scale: str) -> list[Row]:
    """Returns the rows that are run at a scale."""
    return [row for row in self.rows if scale in row.scales]

  def runs(self, config: Config, scale: str) -> dict[str, str]:
    """Returns {row: run}, with runs as `lengen compare --runs` reads them."""
    section = config.data if 'data' in config else config.train
    longest = section.get('train_length', section.get('max_length'))
    return {row.name: row.run_at(longest) for row in self.rows_at(scale)}

  def parse(
    self, config: Config, scale: str
  ) -> dict[str, tuple[str, str, str]]:
    """Returns {row: (encoding, positions, attention_scale)}."""
    runs = self.runs(config, scale)
    parsed = runs_lib.parse('; '.join(runs.values()), config)
    return dict(zip(runs, parsed, strict=True))

  def substitute_overrides(self, request: Request) -> list[str]:
    """Returns '--config.KEY=VALUE' overrides that select substitute data.

    The list is empty at scales that use the paper's data. The files need not
    exist yet.
    """
    if self.substitute is None or request.scale in experiment_lib.FULL_SCALES:
      return []
    changes = dict(self.substitute.changes)
    if self.substitute.write is not None:
      changes['data.raw'] = str(self._substitute_folder(request))
    return [f'--config.{key}={value}' for key, value in changes.items()]

  def write_substitute(self, request: Request) -> None:
    """Writes the files of the substitute data, if it has any."""
    if self.substitute and self.substitute.write is not None:
      if self.substitute_overrides(request):
        self.substitute.write(self._substitute_folder(request))

  def _substitute_folder(self, request: Request) -> pathlib.Path:
    """Returns a folder whose name depends on the source of the writer."""
    assert self.substitute is not None and self.substitute.write is not None
    module = sys.modules[self.substitute.write.__module__]
    name = module.__name__.rpartition('.')[2]
    version = _digest(inspect.getsource(module))
    return files.locate(request.root) / 'standins' / f'{name}-{version}'

  def differences(self, config: Config, full: Config, scale: str) -> list[str]:
    """Returns one line per setting that differs from the full-size config.

    Args:
      config: the config that was run.
      full: the config at scale `paper`.
      scale: the scale that was run.
    """
    full_values, values = _flatten(full), _flatten(config)
    lines = [
      f'{key}: {values.get(key)!r}, at full size {full_values.get(key)!r}'
      for key in sorted(full_values.keys() | values.keys())
      if full_values.get(key) != values.get(key)
      and key not in _OMITTED_DIFFERENCES
    ]
    full_runs = self.runs(full, scale)
    lines += [
      f'{name}: {run}, at full size {full_runs[name]}'
      for name, run in self.runs(config, scale).items()
      if run != full_runs[name]
    ]
    return lines

  def full_config(self, request: Request) -> Config:
    """Returns the config at scale `paper`, without the user's overrides."""
    full = dataclasses.replace(request, scale='paper', overrides=())
    return self.make_config(full)

  def trained_folder(self, request: Request, config: Config) -> str:
    """Returns the folder of the runs of a config, relative to `root`.

    Experiments that train the same models share this folder. Its name does not
    depend on settings that leave the trained parameters unchanged.
    """
    shared = copy.deepcopy(config)
    with shared.unlocked():
      for key in ('sweep', 'paper', 'seed', 'mesh'):
        if key in shared:
          del shared[key]
      free = workdir.FREE | {'data': ('path', 'raw')}
      for section, keys in free.items():
        for key in keys:
          if key in shared.get(section, {}):
            del shared[section][key]
    shared.model.encoding = shared.positions = ''
    shared.model.attention_scale = ''
    name = self.config.replace('.py', '').replace(':', ',').replace(',', '-')
    written = None
    if self.substitute and self.substitute.write is not None:
      if self.substitute_overrides(request):
        written = self._substitute_folder(request).name
    digest = _digest([json.loads(shared.to_json()), written])
    return f'trained/{name}-{request.scale}-{digest}'


@dataclasses.dataclass
class Trained:
  """Outcome of training and testing the rows of a part.

  Attributes:
    rows: rows of the results table.
    runs: result of every run; each has 'commit' and 'train_seconds'.
    fields: the other fields of the part's results.
  """

  rows: list[Results]
  runs: list[Results]
  fields: Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedPart(ConfiguredPart):
  """A part that trains and tests its rows with every seed."""

  def train(
    self,
    request: Request,
    config: Config,
    trained: str,
    previous: Sequence[Results],
  ) -> Trained:
    """Trains and tests every row with every seed.

    Args:
      request: what to run.
      config: config that the rows share; may be modified.
      trained: folder of the runs, relative to `request.root`.
      previous: results of previous parts.
    """
    raise NotImplementedError

  def prepare(
    self, request: Request, config: Config, previous: Sequence[Results]
  ) -> None:
    """Modifies the config before the folder of its runs is determined."""

  def run(self, request: Request, previous: Sequence[Results]) -> Results:
    config = self.make_config(request)
    self.prepare(request, config, previous)
    trained = self.trained_folder(request, config)
    with files.locked(files.locate(request.root) / trained):
      found = self.train(request, config, trained, previous)
    substituted = bool(self.substitute_overrides(request))
    return self.results(
      found.rows,
      of_seeds=self.seed_reduction,
      commits=sorted({str(r.get('commit', 'unrecorded')) for r in found.runs}),
      standin=self.substitute.text if self.substitute and substituted else None,
      differences=self.differences(
        config, self.full_config(request), request.scale
      )
      + found.fields.pop('differences', []),
      train_seconds=sum(one['train_seconds'] for one in found.runs),
      **found.fields,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthPart(TrainedPart):
  """A part that reads a corpus and is tested at several lengths.

  Attributes:
    init_part: previous part whose models provide the initial parameters; None
      for random ones.
    config_lengths: whether to test the lengths of the config, each of which is
      assigned to the nearest of `ratios`.
  """

  init_part: str | None = None
  config_lengths: bool = False

  def check(self, request: Request) -> None:
    """Writes substitute data, then raises an error if the part cannot run.

    Raises:
      errors.LengenError: the config or the runs are invalid, or data is
        missing.
    """
    self.write_substitute(request)
    config = self.make_config(request)
    self.parse(config, request.scale)
    try:
      data.check_present(data.DataConfig(**config.data.to_dict()))
    except errors.LengenError as error:
      raise errors.CorpusError(
        f'{self.config} at scale {request.scale}: {error}; --scale=cpu needs '
        'no data'
      ) from None

  def columns(self, config: Config) -> dict[float, int]:
    """Returns {relative length: length}."""
    train_length = config.data.train_length
    if not self.config_lengths:
      return {ratio: int(train_length * ratio) for ratio in self.ratios}

    def nearest(length: int) -> float:
      return min(
        self.ratios,
        key=lambda ratio: abs(math.log(length / train_length / ratio)),
      )

    return {nearest(length): length for length in config.eval.lengths}

  def paper_scores(
    self, row: Row, columns: Iterable[float]
  ) -> Sequence[float | None] | None:
    """Returns the paper's scores of a row at some of the relative lengths."""
    if row.paper is None:
      return None
    return [row.paper[self.ratios.index(column)] for column in columns]

  def init_folder(self, row: Row) -> str:
    """Returns the folder prefix of runs with the same initial model."""
    return '' if self.init_part is None else f'from-{row.init_row or row.name}/'

  def init_workdir(
    self, row: Row, request: Request, seed: int, previous: Sequence[Results]
  ) -> str:
    """Returns the workdir of the model that initialises a row."""
    assert self.init_part is not None
    part = find(previous, self.init_part)
    model = find(part['rows'], row.init_row or row.name)
    folder = files.locate(request.root) / part['trained'] / f'seed{seed}'
    return str(folder / model['folder'])


def load_config(text: str, scale: str, overrides: Iterable[str]) -> Config:
  """Returns a config at a scale.

  Args:
    text: see `ConfiguredPart.config`.
    scale: one of `experiment.SCALES`.
    overrides: '--config.KEY=VALUE' arguments.
  """
  file, _, arg = text.partition(':')
  arg = ','.join([arg, scale] if arg else [scale])
  path = f'{config_file.folder() / file}:{arg}'
  return config_file.load(path, list(overrides))


def _digest(value: Any) -> str:
  """Returns eight hexadecimal digits that identify a JSON value."""
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]


def _flatten(config: Config) -> Mapping[str, Any]:
  """Returns {'section.key': value} without the settings of runs."""
  flat: dict[str, Any] = {}
  for key, value in json.loads(config.to_json()).items():
    if isinstance(value, dict):
      flat |= {f'{key}.{inner}': each for inner, each in value.items()}
    else:
      flat[key] = value
  return {key: v for key, v in flat.items() if key not in _RUN_SETTINGS}
