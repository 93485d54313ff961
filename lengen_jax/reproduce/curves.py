"""Loss by length, on the same tokens at every length."""

from collections.abc import Sequence
import dataclasses
from typing import ClassVar

from lengen_jax import data
from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import Results, Row
from lengen_jax.training import compare, evaluate, files, loop
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthCurves(parts.LengthPart):
  """Loss by length of each row: one comparison per seed.

  Attributes:
    unit: unit of the scores: 'nats per token', 'perplexity' etc.
    shrink: divisor of the config's training length.
    window: attention window in training lengths; None for the config's.
  """

  unit: str = 'nats per token'
  substitute: experiment_lib.SubstituteData | None = experiment_lib.STDLIB
  shrink: int = 1
  window: float | None = None
  kind: ClassVar[str] = 'curves'

  def make_config(self, request: parts.Request) -> parts.Config:
    config = self.load(request)
    with config.unlocked():
      whole = config.data.train_length
      length = whole // self.shrink
      config.data.train_length = length
      # Prepared windows have their length in the name: c4_512 and c4_2048.
      config.data.path = config.data.path.replace(f'_{whole}', f'_{length}')
      config.eval.lengths = tuple(self.columns(config).values())
      if self.window:
        config.model.window = int(length * self.window)
    return config

  def prepare(
    self,
    request: parts.Request,
    config: parts.Config,
    previous: Sequence[Results],
  ) -> None:
    if self.init_part is not None:
      # Other initial models have another folder of runs.
      init = parts.find(previous, self.init_part)
      config.train.init_from = init['trained']

  def train(
    self,
    request: parts.Request,
    config: parts.Config,
    trained: str,
    previous: Sequence[Results],
  ) -> parts.Trained:
    by_seed = []
    for seed in request.seeds:
      config.seed = seed
      folder = files.locate(request.root) / trained / f'seed{seed}'
      by_seed.append(self._curves(request, config, folder, previous))
    columns = list(self.columns(config))
    score = 'perplexity' if self.unit == 'perplexity' else 'loss'
    specs = self.runs(config, request.scale)
    folders = self._folders(config, request.scale)
    table = []
    for row in self.rows_at(request.scale):
      curves = [found[row.name] for found in by_seed]
      line = parts.table_row(
        row.name,
        specs[row.name],
        [curve[score] for curve in curves],
        self.paper_scores(row, columns),
        self.seed_reduction,
      )
      line |= {'refused': curves[0]['refused'], 'folder': folders[row.name]}
      table.append(line)
    fields = {
      'unit': self.unit,
      'columns': columns,
      'train_length': config.data.train_length,
      'tokens': by_seed[0][table[0]['name']]['tokens'],
      'trained': trained,
    }
    runs = [curve for curves in by_seed for curve in curves.values()]
    return parts.Trained(table, runs, fields)

  def _curves(
    self,
    request: parts.Request,
    config: parts.Config,
    folder: files.Path,
    previous: Sequence[Results],
  ) -> dict[str, Results]:
    """Returns {row: curve} of one seed."""
    rows = self.rows_at(request.scale)
    runs = self.parse(config, request.scale)
    groups: dict[str, list[Row]] = {}
    for row in rows:
      if row.trained_as is None:
        groups.setdefault(self.init_folder(row), []).append(row)
    curves: dict[str, Results] = {}
    for init, members in groups.items():
      if self.init_part is not None:
        config.train.init_from = self.init_workdir(
          members[0], request, config.seed, previous
        )
      found = compare.compare(
        config, folder / init, [runs[row.name] for row in members]
      )
      curves |= zip((row.name for row in members), found['curves'], strict=True)
    specs = self.runs(config, request.scale)
    folders = self._folders(config, request.scale)
    for row in rows:
      if row.trained_as is not None:
        curve = _evaluate_as(
          folder / folders[row.name],
          specs[row.name],
          folder / f'tested-{runs_lib.folder(runs[row.name])}',
        )
        # Its training is counted in the row that trains the model.
        curves[row.name] = curve | {'train_seconds': 0.0}
    return curves

  def _folders(self, config: parts.Config, scale: str) -> dict[str, str]:
    """Returns {row: folder of its model}, relative to that of a seed."""
    rows = {row.name: row for row in self.rows_at(scale)}
    runs = self.parse(config, scale)
    folders = {}
    for name, row in rows.items():
      model = row.trained_as or name
      prefix = self.init_folder(rows[model])
      folders[name] = prefix + runs_lib.folder(runs[model])
    return folders


def _evaluate_as(workdir: files.Path, spec: str, folder: files.Path) -> Results:
  """Returns the curve of a model under another run, cached in `folder`."""
  path = folder / 'curve.json'
  if path.exists():
    return files.read_json(path)
  trained = restore(workdir, spec)
  windows = data.load(trained.run.data, max(trained.run.eval.lengths))
  curve = evaluate.curve(trained, windows.evaluation(trained.run.eval), spec)
  folder.mkdir(parents=True, exist_ok=True)
  files.write_json(path, curve)
  return curve


def restore(workdir: files.Path, spec: str) -> run_lib.Trained:
  """Returns a trained model, to be tested as another run.

  Args:
    workdir: workdir of the model.
    spec: the run, 'encoding | positions | attention_scale'.
  """
  trained = loop.restore(workdir)
  (run,) = runs_lib.parse(spec, trained.run.config)
  config = runs_lib.configure(trained.run.config, run)
  return dataclasses.replace(trained, run=run_lib.Run(config))
