"""Reports of a sweep over a generated task: table, CSV, plot and page."""

from collections.abc import Iterator, Mapping
import json
import pathlib
from typing import Any

import rich.markup

from lengen_jax.analysis import figures, finding, page, plots, sections, tables
from lengen_jax.training import files as files_lib
from lengen_jax.training import workdir as workdir_lib
from lengen_jax.types import PathLike

# Unit of a score, and its factor.
_SCORES = {
  'accuracy': ('accuracy, percent', 100),
  'exact': ('correct sequences, percent', 100),
  'loss': ('nats per target', 1),
}
_NOTE = (
  'best: over seeds and learning rates, as in the papers; mean and std: over '
  'seeds, at the rate with the best mean; paper: with its full settings'
)


def read(workdir: PathLike) -> dict[str, Any] | None:
  """Returns the results of a sweep; None if the workdir is not of a sweep.

  Raises:
    errors.WorkdirError: results.json cannot be read.
  """
  path = pathlib.Path(workdir).expanduser().absolute()
  if not (path / workdir_lib.SWEEP).exists():
    return None
  return files_lib.read_json(path / 'results.json')


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
    [_NOTE],
  )


def write(results: Mapping[str, Any], workdir: PathLike) -> list[pathlib.Path]:
  """Writes CSV, plot and HTML page into the workdir.

  Returns:
    Paths of results.json and of the written files.
  """
  folder = pathlib.Path(workdir).expanduser().absolute()
  texts = {
    'results.json': json.dumps(results),
    'curves.csv': tables.csv_text(*_curves(results)),
  }
  files_lib.write_text(folder / 'curves.csv', texts['curves.csv'])
  plot = folder / 'accuracy.png'
  unit, scale = _SCORES[results['score']]
  plots.score_curves(results, plot, unit=unit, scale=scale)
  path = folder / 'report.html'
  files_lib.write_text(path, _page(results, texts, folder))
  return [*(folder / name for name in texts), plot, path]


def _curves(results: Mapping[str, Any]) -> tuple[Any, Any]:
  """Returns header and rows of curves.csv, by run, rate, seed and length."""
  header = ('run', 'learning_rate', 'seed', 'length', *_SCORES)
  rows = [
    (
      run['run'],
      point['learning_rate'],
      point['seed'],
      length,
      *(point[score][n] for score in _SCORES),
    )
    for run in results['runs']
    for point in run['points']
    for n, length in enumerate(results['lengths'])
  ]
  return header, rows


def _page(results: Mapping[str, Any], files: Any, folder: Any) -> str:
  """Returns the HTML page."""
  unit, scale = _SCORES[results['score']]
  runs, (_, longest) = results['runs'], results['train_lengths']
  better = min if results['score'] == 'loss' else max
  columns = [
    sections.best_marked(
      [run[key] for run in runs], lambda one: _number(one, scale), better
    )
    for key in ('best', 'mean')
  ]
  columns.append([_number(run['std'], scale) for run in runs])
  columns.append([_paper(run['paper']) for run in runs])
  return page.document(
    f'{results["task"]}: trained to {longest}, tested to '
    f'{max(results["lengths"])}',
    page.paragraph(finding.of_scores(results, unit, scale), class_='lead'),
    page.beside(
      page.figure(
        figures.score_curves(results, unit=unit, scale=scale),
        _caption(results, scale),
      )
    ),
    sections.legend(
      ('best', 'mean', 'std', 'paper'),
      [run['run'] for run in runs],
      columns,
      f'{unit.capitalize()}, mean over lengths beyond {longest}. {_NOTE}. The '
      'boxes show and hide curves.',
    ),
    *_others(results),
    *_cost(results),
    *sections.settings(results['config']),
    *sections.environment(
      {
        **results['versions'],
        'commit': sorted(
          {point['commit'] or 'unknown' for r in runs for point in r['points']}
        ),
      }
    ),
    *sections.downloads(files, folder),
    style=sections.legend_style(len(runs)),
  )


def _caption(results: Mapping[str, Any], scale: float) -> str:
  caption = 'Score against length, of the best training of each run.'
  if results['score'] == 'accuracy':
    caption += (
      f' Chance is {_number(results["chance"], scale)}; the horizontal line is '
      'the majority at each position.'
    )
  return caption


def _others(results: Mapping[str, Any]) -> Iterator[Any]:
  """Yields a list of the runs without a curve."""
  lines = [f'{name}: unfinished' for name in results['unfinished']]
  lines += [
    f'{name}: {_paper(value)} in the paper'
    for name, value in results['paper_only'].items()
  ]
  if lines:
    yield page.paragraph('Without a curve:')
    yield page.listing(lines)


def _cost(results: Mapping[str, Any]) -> Iterator[Any]:
  """Yields the table of training and test times."""
  rows = [
    (
      run['run'],
      str(len(run['points'])),
      *(
        f'{sum(point[key] for point in run["points"]):,.1f}'
        for key in ('train_seconds', 'test_seconds')
      ),
    )
    for run in results['runs']
  ]
  yield page.heading('Cost')
  yield page.table(
    ('run', 'trainings', 'training seconds', 'test seconds'),
    rows,
    caption='Sums over seeds and learning rates, '
    f'{results["config"]["train"]["steps"]:,} steps each',
  )


def _number(value: Any, scale: float) -> str:
  return '' if value is None else f'{scale * value:.{1 if scale > 1 else 3}f}'


def _paper(value: Any) -> str:
  return '' if value is None else str(value)
