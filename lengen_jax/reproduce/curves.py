"""Runs `experiment.Curves`: a comparison for each seed."""

from lengen_jax import data
from lengen_jax import errors
from lengen_jax.reproduce import rows as rows_lib
from lengen_jax.reproduce import settings
from lengen_jax.training import compare
from lengen_jax.training import runs as runs_lib


def make_config(part, scale, overrides=()):
  """The config that all rows share."""
  changes = []
  if scale in ('cpu', 'tiny') and part.standin:
    changes = [f'--config.{k}={v}' for k, v in part.standin.changes.items()]
  # What a user sets comes after what a scale does.
  config = settings.load(part.config, scale, [*changes, *overrides])
  with config.unlocked():
    length = config.data.train_length // part.shrink
    config.data.train_length = length
    config.eval.lengths = tuple(int(length * r) for r in part.ratios)
    if part.window:
      config.model.window = int(length * part.window)
    if 'paper' in config:
      del config.paper
  return config


def check(part, scale, overrides):
  """Raises unless its config and runs can be read and its data is there."""
  config = make_config(part, scale, overrides)
  runs_lib.parse('; '.join(settings.runs(part, config, scale)), config)
  try:
    data.check_present(data.DataConfig(**config.data.to_dict()))
  except errors.LengenError as error:
    raise errors.CorpusError(
      f'{part.config} at scale {scale}: {error}; --scale=cpu needs no data'
    ) from None


def run(part, scale, folder, seeds, overrides, before):
  """Trains and tests every row with every seed; a part of the results."""
  config = make_config(part, scale, overrides)
  names = settings.runs(part, config, scale)
  runs = runs_lib.parse('; '.join(names), config)
  results = []
  for seed in seeds:
    config.seed = seed
    if part.starts_from:
      config.train.init_from = _start(
        part.starts_from, before, folder.parent, seed
      )
    results.append(compare.compare(config, folder / f'seed{seed}', runs))
  column = 'perplexity' if part.unit == 'perplexity' else 'loss'
  rows = []
  for number, row in enumerate(settings.rows(part, scale)):
    curves = [result['curves'][number] for result in results]
    losses = [curve[column] for curve in curves]
    rows.append(
      rows_lib.make(row, names[number], losses, part.of_seeds)
      | {
        'refused': curves[0]['refused'],
        'folder': runs_lib.folder(runs[number]),
      }
    )
  small = scale in ('cpu', 'tiny')
  return {
    'kind': 'curves',
    'name': part.name,
    'unit': part.unit,
    'columns': list(part.ratios),
    'train_length': config.data.train_length,
    'tokens': results[0]['curves'][0]['tokens'],
    'of_seeds': part.of_seeds,
    'rows': rows,
    'standin': part.standin.text if small and part.standin else None,
    'differences': settings.differences(
      make_config(part, 'paper'), config, part, scale
    ),
    'train_seconds': sum(
      curve['train_seconds'] for result in results for curve in result['curves']
    ),
  }


def _start(starts_from, before, folder, seed):
  """The workdir of the run of another part that a run starts from."""
  name, row_name = starts_from
  (part,) = (part for part in before if part['name'] == name)
  (row,) = (row for row in part['rows'] if row['name'] == row_name)
  return str(folder / name / f'seed{seed}' / row['folder'])
