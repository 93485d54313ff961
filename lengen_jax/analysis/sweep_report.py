"""Reports of a sweep over a generated task: table, CSV, plot and page."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

from lengen_jax.analysis import figures, finding, page, plots, tables
from lengen_jax.training import files as files_lib
from lengen_jax.training import workdir as workdir_lib
from lengen_jax.types import PathLike

# Unit of a score, and its factor.
_SCORES = {
  'accuracy': ('accuracy, percent', 100),
  'exact': ('correct sequences, percent', 100),
  'loss': ('nats per target', 1),
}
RESULTS, _OPERANDS = 'results.json', 'operands.png'
_FIELDS = ('task', 'score', 'train_lengths', 'lengths', 'baselines', 'runs')
_NOTE = (
  'best: over seeds and learning rates, as in the papers; mean and std: over '
  'seeds, at the rate with the best mean; paper: with its full settings'
)


def read(workdir: PathLike) -> dict[str, Any] | None:
  """Returns the results of a sweep; None if the workdir contains no sweep.

  Raises:
    errors.WorkdirError: results.json cannot be read.
  """
  path = files_lib.locate(workdir)
  if not (path / workdir_lib.SWEEP).exists():
    return None
  return files_lib.read_json(path / RESULTS, _FIELDS)


def print_table(results: Mapping[str, Any]) -> None:
  """Prints the scores beyond the training length, one row per run."""
  baselines = results['baselines']
  shortest, longest = results['train_lengths']
  unit, scale = _SCORES[results['score']]
  longer = [n for n in results['lengths'] if n > longest]
  head = ('best', 'mean', 'std', 'paper')
  rows = []
  for run in results['runs']:
    cells = [_number(run[key], scale) for key in ('best', 'mean', 'std')]
    rows.append((run['run'], *cells, _number(run['paper'])))
  rows += [(name, 'unfinished') for name in results['unfinished']]
  rows += [
    (name, '', '', '', _number(value))
    for name, value in results['paper_only'].items()
  ]
  if results['score'] != 'loss':
    at = baselines['length']
    per = ', per token' if results['score'] == 'exact' else ''
    rows += [
      (f'{name}{per}', _number(value, scale))
      for name, value in (
        ('chance', results['chance']),
        (f'best constant class, at {at}', baselines['constant']),
        (f'majority at each position, at {at}', baselines['positionwise']),
      )
    ]
  tables.show(
    f'{results["task"]}: {unit}, mean over lengths {longer[0]}..{longer[-1]}, '
    f'trained on {shortest}..{longest}',
    ('run', *head),
    rows,
    [_NOTE],
  )


def write(results: Mapping[str, Any], workdir: PathLike) -> list[pathlib.Path]:
  """Writes CSV, plots and HTML page into the workdir.

  The plot by the digits of both operands is written if a run has such scores,
  and trajectories if points were tested at several steps. Returns the paths of
  results.json and of the written files.
  """
  folder = files_lib.locate(workdir)
  rows = []
  for run in results['runs']:
    for point in run['points']:
      row = run['run'], point['learning_rate'], point['seed']
      for n, length in enumerate(results['lengths']):
        rows.append((*row, length, *(point[score][n] for score in _SCORES)))
  head = ('run', 'learning_rate', 'seed', 'length', *_SCORES)
  curves = tables.csv_text(head, rows)
  texts = {'results.json': json.dumps(results), 'curves.csv': curves}
  draw = {'accuracy.png': plots.score_curves}
  if by_step := _trajectories(results):
    texts['trajectories.csv'] = tables.csv_text(
      (*head[:3], 'step', *head[3:]), by_step
    )
  if _best_has_trajectory(results):
    draw['trajectories.png'] = plots.score_trajectories
  path = folder / 'report.html'
  for name, text in texts.items():
    if name.endswith('.csv'):
      files_lib.write_text(folder / name, text)
  for name, draw_one in draw.items():
    plots.write(folder / name, draw_one, results, *_SCORES[results['score']])
  drawn = [folder / name for name in draw]
  if any(run.get('operands') for run in results['runs']):
    drawn.append(folder / _OPERANDS)
    plots.operand_maps(results, drawn[-1])
  files_lib.write_text(path, _page(results, texts, folder))
  return [*(folder / name for name in texts), *drawn, path]


def _trajectories(results: Mapping[str, Any]) -> list[tuple[Any, ...]]:
  """Returns (run, rate, seed, step, length, scores...) of each tested step.

  It is [] if all points were tested at one step only.
  """
  rows = []
  for run in results['runs']:
    for point in run['points']:
      # Points of earlier versions have no trajectory.
      found = point.get('trajectory') or {'steps': []}
      for at, step in enumerate(found['steps']):
        row = run['run'], point['learning_rate'], point['seed'], step
        for n, length in enumerate(results['lengths']):
          rows.append((*row, length, *(found[x][at][n] for x in _SCORES)))
  several = len({row[3] for row in rows}) > 1
  return rows if several else []


def _best_has_trajectory(results: Mapping[str, Any]) -> bool:
  """Returns whether the best point of some run was tested at several steps."""
  best = map(plots.best_point, results['runs'])
  found = (one.get('trajectory') or {'steps': []} for one in best)
  return any(len(one['steps']) > 1 for one in found)


def _page(
  results: Mapping[str, Any], texts: dict[str, str], folder: pathlib.Path
) -> str:
  """Returns the HTML page, with `texts` to download."""
  unit, scale = _SCORES[results['score']]
  runs, (_, longest) = results['runs'], results['train_lengths']
  names = [run['run'] for run in runs]
  better = min if results['score'] == 'loss' else max
  columns = [
    page.best_marked(
      [run[key] for run in runs], lambda one: _number(one, scale), better
    )
    for key in ('best', 'mean')
  ]
  columns.append([_number(run['std'], scale) for run in runs])
  columns.append([_number(run['paper']) for run in runs])
  caption = 'Score against length, of the best training of each run.'
  if results['score'] == 'accuracy':
    caption += (
      f' Chance is {_number(results["chance"], scale)}; the horizontal line is '
      'the majority at each position.'
    )
  shown = [(plots.score_curves, f'{unit} against length', caption)]
  if _best_has_trajectory(results):
    caption = (
      f'Mean score beyond {longest}, by training step, of these trainings.'
    )
    shown.append((plots.score_trajectories, f'{unit} by step', caption))
  charts = [
    page.figure(
      figures.chart(label, names, draw, results, unit, scale), caption
    )
    for draw, label, caption in shown
  ]
  others = [f'{name}: unfinished' for name in results['unfinished']]
  others += [
    f'{name}: {_number(value)} in the paper'
    for name, value in results['paper_only'].items()
  ]
  cost = []
  for name, run in zip(names, runs, strict=True):
    points = run['points']
    trained = sum(point['train_seconds'] for point in points)
    tested = sum(point['test_seconds'] for point in points)
    cost.append((name, len(points), f'{trained:,.1f}', f'{tested:,.1f}'))
  maps = []
  if any(run.get('operands') for run in runs):
    image = page.picture(
      folder / _OPERANDS,
      'Heat maps of right answers by digits of both operands',
    )
    maps = [
      page.element('h2', 'Digits of both operands'),
      page.figure(
        image,
        'Right answers of each run, mean over seeds. The lines mark the '
        f'training length, {longest}; gray cells have no examples.',
      ),
    ]
  commits = {
    one['commit'] or 'unknown' for run in runs for one in run['points']
  }
  facts = {**results['versions'], 'commit': sorted(commits)}
  return page.document(
    f'{results["task"]}: trained to {longest}, tested to '
    f'{max(results["lengths"])}',
    page.element('p', finding.of_scores(results, unit, scale), class_='lead'),
    page.element('div', *charts, class_='figures'),
    page.legend(
      ('best', 'mean', 'std', 'paper'),
      names,
      columns,
      f'{unit.capitalize()}, mean over lengths beyond {longest}. {_NOTE}.',
    ),
    page.listing(others, 'Without a curve:'),
    *maps,
    page.element('h2', 'Cost'),
    page.table(
      ('run', 'trainings', 'training seconds', 'test seconds'),
      cost,
      caption='Sums over seeds and learning rates, '
      f'{results["config"]["train"]["steps"]:,} steps each',
    ),
    *page.appendix(results['config'], {}, facts, texts, folder),
    runs=len(runs),
  )


def _number(value: Any, scale: float | None = None) -> str:
  """Returns a rounded score times `scale`; the exact score without `scale`."""
  if value is None or scale is None:
    return '' if value is None else str(value)
  return f'{scale * value:.{1 if scale > 1 else 3}f}'
