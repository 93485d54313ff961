"""A sweep over a generated task as a table and a plot."""

from collections.abc import Mapping
import pathlib
from typing import Any

import rich.markup

from lengen_jax.analysis import plots
from lengen_jax.analysis import tables
from lengen_jax.hints import PathLike
from lengen_jax.training import workdir as workdir_lib

# What a score is called, and what it is multiplied by.
_SCORES = {
  'accuracy': ('accuracy, percent', 100),
  'exact': ('sequences all right, percent', 100),
  'loss': ('nats per target', 1),
}


def read(workdir: PathLike) -> dict[str, Any] | None:
  """The results of a sweep; None if the workdir holds none.

  Raises:
    errors.WorkdirError: they cannot be read.
  """
  path = pathlib.Path(workdir).expanduser().absolute()
  if not (path / workdir_lib.SWEEP).exists():
    return None
  return workdir_lib.read_json(path / 'results.json')


def print_table(results: Mapping[str, Any]) -> None:
  """Prints the score beyond the training length, a row per run."""
  baselines, (shortest, longest) = (
    results['baselines'],
    results['train_lengths'],
  )
  unit, scale = _SCORES[results['score']]
  longer = [n for n in results['lengths'] if n > longest]
  table = tables.create()
  table.add_column('run', overflow='fold')
  for column in ('best', 'mean', 'std', 'paper'):
    table.add_column(column, justify='right')
  for run in results['runs']:
    table.add_row(
      rich.markup.escape(run['run']),
      *(_number(run[key], scale) for key in ('best', 'mean', 'std')),
      _paper(run['paper']),
    )
  for name in results['unfinished']:
    table.add_row(rich.markup.escape(name), 'unfinished')
  for name, value in results['paper_only'].items():
    table.add_row(rich.markup.escape(name), '', '', '', _paper(value))
  if results['score'] != 'loss':
    at = baselines['length']
    for name, value in (
      ('chance', results['chance']),
      (f'best constant class, at {at}', baselines['constant']),
      (f'majority at each position, at {at}', baselines['positionwise']),
    ):
      per = ', per token' if results['score'] == 'exact' else ''
      table.add_row(f'[dim]{name}{per}[/dim]', _number(value, scale))
  tables.show(
    f'{results["task"]}: {unit}, mean over lengths {longer[0]}..{longer[-1]}, '
    f'trained on {shortest}..{longest}',
    table,
    [
      'best: over seeds and learning rates, as the papers give it; mean and '
      'std: over seeds, at the rate with the best mean; paper: at its full '
      'settings'
    ],
  )


def write(results: Mapping[str, Any], workdir: PathLike) -> pathlib.Path:
  """Draws the score against length; returns the path of the PNG."""
  path = pathlib.Path(workdir).expanduser().absolute() / 'accuracy.png'
  unit, scale = _SCORES[results['score']]
  plots.score_curves(results, path, unit=unit, scale=scale)
  return path


def _number(value, scale):
  return '' if value is None else f'{scale * value:.{1 if scale > 1 else 3}f}'


def _paper(value):
  return '' if value is None else str(value)
