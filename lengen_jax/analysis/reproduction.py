"""Reports of reproductions: tables, plots, CSV files and an HTML page."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import json
import pathlib
import statistics
from typing import Any

from lengen_jax.analysis import finding, page, plots, tables
from lengen_jax.training import files as files_lib
from lengen_jax.types import PathLike

# Name of the results file, in the folder of an experiment and scale.
RESULTS = 'reproduction.json'
_FIELDS = ('name', 'title', 'seeds', 'parts', 'summary', 'claims')
# A cell without a value.
_MISSING = '–'
UNMEASURED = 'not measured'

Results = dict[str, Any]

# By kind of part: the text that follows the unit in the part's description.
_DESCRIPTIONS = {
  'curves': (
    ', trained at {train_length}, the same {tokens:,} {what} at every length'
  ),
  'sweep': ', trained on lengths to {train_length}',
  'answers': (
    ', finetuned at {train_length}, {examples:,} prompts at each length'
  ),
  'timing': (
    ' of a forward pass of {tokens:,} tokens, rows of {train_length}, on '
    '{device[count]} x {device[kind]}'
  ),
  'average': ', mean over {all}',
}


def print_list(
  experiments: Iterable[
    tuple[Any, Mapping[tuple[int, str], float], Sequence[float]]
  ],
) -> None:
  """Prints all experiments and their costs; see `reproduce.costs`."""
  rows = []
  for one, hours, minutes in experiments:
    runs = sum(len(p.rows) for p in one.parts if hasattr(p, 'config'))
    seeds = f'{runs} x {len(one.seeds_at(one.largest_scale))}' if runs else ''
    paper = [
      f'{chips} {kind} x {_rounded(each)} h'
      for (chips, kind), each in hours.items()
    ]
    smaller = map(_duration, minutes)
    rows.append((one.name, one.title, seeds, '\n'.join(paper), *smaller))
  tables.show(
    'what can be reproduced',
    ('experiment', 'what it shows', 'runs', 'paper', 'small', 'hours', 'cpu'),
    rows,
    [
      'runs: rows x seeds at the largest scale; paper, small, hours, cpu: what '
      "training costs at that scale, estimated: chips x hours on the paper's "
      'hardware or one TPUv4, time on one H100, and time on two cores, with '
      'half a minute per run for compilation and tests',
      'experiments of one paper share models, which are trained once',
    ],
    left=2,
  )


def _duration(minutes: float) -> str:
  """Returns minutes or hours with their unit; '' for 0."""
  if not minutes:
    return ''
  if minutes < 100:
    return f'{_rounded(minutes)} min'
  return f'{_rounded(minutes / 60)} h'


def _rounded(value: float) -> str:
  """Returns a number with two significant digits."""
  return f'{float(f"{value:.2g}"):g}'


def read(workdir: PathLike) -> Results | None:
  """Returns the results of a reproduction; None if the folder has none."""
  path = files_lib.locate(workdir) / RESULTS
  return files_lib.read_json(path, _FIELDS) if path.exists() else None


def print_table(found: Results) -> None:
  """Prints the tables of a reproduction and the verdicts on its claims.

  If a part has a column 'mean', its other columns are not printed.
  """
  for part in found['parts']:
    columns, lines = part['columns'], notes(part)
    if 'mean' in columns:
      n, columns = columns.index('mean'), ['mean']
      of = f'the mean of {n} tasks; each of them is in the CSV and the page'
      lines = [of, *lines]
    if part['rows']:
      tables.show(_title(found, part), *table(part, columns), lines)
  for line in (*found['summary'], *map(_judged, found['claims'])):
    print(line)


def write(found: Results, workdir: PathLike) -> list[pathlib.Path]:
  """Writes plots, CSV files and report.html; returns their paths."""
  folder = files_lib.locate(workdir)
  seeds = ', '.join(map(str, found['seeds']))
  body = [
    page.element(
      'p',
      f'{found["title"]}. Scale {found["scale"]}, seeds {seeds}; '
      f'{found["command"]}; commit {found["commit"] or "unknown"}.',
    )
  ]
  paths: list[pathlib.Path] = []
  for part in found['parts']:
    body.append(page.element('h2', part['name']))
    if part['kind'] == 'drawing':
      files = [folder / part['name'] / name for name in part['files']]
    else:
      rows = part['rows']
      files = _write_part(part, found['seeds'], folder) if rows else []
      body.append(page.element('p', _title(found, part)))
    missing = [file for file in files if not file.exists()]
    files = [file for file in files if file not in missing]
    paths += files
    pictures = [file for file in files if file.suffix == '.png']
    body += [page.picture(one, part['name']) for one in pictures]
    body.append(
      page.listing([str(file) for file in missing], 'Files not in the workdir:')
    )
    if part['rows']:
      body.append(page.table(*table(part)))
    body.append(page.listing(notes(part)))
  body += [page.listing(found['summary']), page.listing(found['ours'])]
  if found['claims']:
    body.append(page.element('h2', 'Claims'))
  for claim in found['claims']:
    body.append(page.element('p', _judged(claim)))
    body.append(page.listing(against(claim)))
  body.append(page.element('p', page.download(RESULTS, json.dumps(found))))
  path = folder / 'report.html'
  files_lib.write_text(path, page.document(found['name'], *body))
  return [*paths, path]


def _write_part(
  part: Results, seeds: Sequence[int], folder: pathlib.Path
) -> list[pathlib.Path]:
  """Writes the pictures of a part and its CSV, a line per row and column."""
  name, columns = part['name'], part['columns']
  paths = [folder / f'{name}.png']
  of_lengths = len(columns) > 1 and not any(isinstance(c, str) for c in columns)
  draw = plots.curves_beside if of_lengths else plots.bars_beside
  draw(part, paths[0])
  if part['kind'] == 'sweep':
    paths.append(folder / f'{name}, by length.png')
    by_length = part['by_length']
    plots.write(paths[-1], plots.score_curves, by_length, part['unit'], 100)
  if any('trajectory' in row for row in part['rows']):
    paths.append(folder / f'{name}, by step.png')
    draw_trajectories(part, paths[-1])
  rows = []
  for row in part['rows']:
    paper = row['paper'] or [None] * len(columns)
    for n, column in enumerate(columns):
      by_seed = [values[n] for values in row['values']]
      rows.append([row['name'], column, row['value'][n], *by_seed, paper[n]])
  names = [f'seed {seed}' for seed in seeds]
  paths.append(folder / f'{name}.csv')
  tables.write_csv(paths[-1], ['run', 'column', 'value', *names, 'paper'], rows)
  return paths


def _title(found: Results, part: Results) -> str:
  return (
    f'{found["name"]}, {part["name"]}: {describe(part)}, scale {found["scale"]}'
  )


def describe(part: Results) -> str:
  """Returns a description of the scores of a part."""
  what = 'pictures' if part['unit'] == 'nats per picture' else 'tokens'
  of = ', '.join(part.get('of', []))
  text = _DESCRIPTIONS.get(part['kind'], '').format(**part, what=what, all=of)
  if part.get('chance'):
    text += f'; chance is {part["chance"]:.1f}'
  return part['unit'] + text


def table(
  part: Results, columns: Sequence[Any] | None = None
) -> tuple[list[str], list[list[str]]]:
  """Returns head and rows of a part's table; `columns` defaults to all."""
  columns = columns or part['columns']
  at = [part['columns'].index(column) for column in columns]
  has_paper = any(row['paper'] for row in part['rows'])
  names = [c if isinstance(c, str) else f'{c:g}x' for c in columns]
  head = ['run', *names, *(f'paper {name}' for name in names if has_paper)]
  rows = []
  for row in part['rows']:
    cells = [_cell(row['value'][n]) + _spread(part, row, n) for n in at]
    if has_paper:
      cells += [_cell(row['paper'][n] if row['paper'] else None) for n in at]
    rows.append([row['name'], *cells])
  return head, rows


def trajectory(part: Results) -> tuple[list[str], list[list[str]]] | None:
  """Returns head and rows of a part's table by training step, if it has one.

  A row of loss by length has the score at the training length, the difference
  between the longest length and this one, and the scores at all lengths; other
  rows have the score of each column. They are means over seeds; those of one
  score have ± half the range. Rows may have been tested at different steps.
  """
  rows = [row for row in part['rows'] if 'trajectory' in row]
  if not rows:
    return None
  columns = part['columns']
  digits, lengths = 3, []
  scores: dict[str, tuple[int, int | None]]
  if isinstance(columns[0], str):
    scores = {name: (n, None) for n, name in enumerate(columns)}
    digits = 1
  else:
    near = min(range(len(columns)), key=lambda n: abs(columns[n] - 1))
    far = columns.index(max(columns))
    scores = {f'{columns[near]:g}x': (near, None)}
    if far != near:
      scores[f'{columns[far]:g}x - {columns[near]:g}x'] = (far, near)
    lengths = columns
  tested = sorted({step for row in rows for step in row['trajectory']['steps']})
  head = ['run', 'score', *(f'step {step}' for step in tested)]
  body = []

  def add(row: Results, name: str, cells: list[str]) -> None:
    at = dict(zip(row['trajectory']['steps'], cells, strict=True))
    body.append([row['name'], name, *(at.get(x, _MISSING) for x in tested)])

  for row in rows:
    # One entry per step, of the scores of each seed.
    by_step = list(zip(*row['trajectory']['values'], strict=True))
    for name, (n, less) in scores.items():
      values = [
        [one[n] if less is None else _minus(one[n], one[less]) for one in seeds]
        for seeds in by_step
      ]
      add(row, name, [_mean_and_range(each, digits) for each in values])
    if lengths:
      add(
        row,
        ' '.join(f'{x:g}x' for x in lengths),
        [' '.join(map(_mean, zip(*seeds, strict=True))) for seeds in by_step],
      )
  return head, body


def _minus(high: float | None, low: float | None) -> float | None:
  return None if high is None or low is None else high - low


def _mean(figures: Sequence[float | None]) -> str:
  return _mean_and_range(figures, 3).partition(' ')[0]


def _mean_and_range(figures: Sequence[float | None], digits: int) -> str:
  known = [one for one in figures if one is not None]
  if len(known) < len(figures):
    return _MISSING
  half = (max(known) - min(known)) / 2
  text = f'{statistics.fmean(known):.{digits}f}'
  return f'{text} ±{half:.{digits}f}' if len(known) > 1 else text


def draw_trajectories(part: Results, path: pathlib.Path) -> None:
  """Draws a curve per row by training step.

  For a sweep, it is the first column. For loss by length, it is the loss of
  long contexts minus that at the training length; the latter if this is the
  longest.
  """
  columns, unit, shown = part['columns'], part['unit'], 0
  names, tested = _means_by_step(part)
  if not isinstance(columns[0], str):
    curves = _curves(part, tested)
    near, far = plots.gap_lengths(curves)
    if near < far:
      plots.write(path, plots.trajectories, curves, names, unit)
      return
    shown = curves['lengths'].index(near)
    columns = [f'length {length}' for length in curves['lengths']]
  by_step = [
    (one['steps'], plots.floats([scores[shown] for scores in one['loss']]))
    for one in tested
  ]
  plots.write(path, plots.by_step, by_step, names, f'{columns[shown]}, {unit}')


def _means_by_step(part: Results) -> tuple[list[str], list[Results]]:
  """Returns the rows with trajectories, and their means over seeds."""
  rows = [row for row in part['rows'] if 'trajectory' in row]
  tested = []
  for row in rows:
    by_step = zip(*row['trajectory']['values'], strict=True)
    means = [
      [
        None if None in column else statistics.fmean(column)
        for column in zip(*seeds, strict=True)
      ]
      for seeds in by_step
    ]
    tested.append({'steps': row['trajectory']['steps'], 'loss': means})
  return [row['name'] for row in rows], tested


def _curves(part: Results, tested: Sequence[Results]) -> Results:
  """Returns means over seeds in the format of `compare`."""
  scale = part['train_length']
  return {
    'lengths': [int(scale * column) for column in part['columns']],
    'train_length': scale,
    'curves': [{'trajectory': one} for one in tested],
  }


def _spread(part: Results, row: Results, n: int) -> str:
  """Returns ± half the range over seeds; the worst seed if the best counts."""
  figures = [values[n] for values in row['values']]
  if None in figures or min(figures) == max(figures) or part.get('exact'):
    return ''
  if part['of_seeds'] == 'mean':
    return f' ±{_cell((max(figures) - min(figures)) / 2)}'
  worst = max(figures) if part['of_seeds'] == 'min' else min(figures)
  return f' (to {_cell(worst)})'


def notes(part: Results) -> list[str]:
  """Returns differences from the paper and notes on the scores, as lines."""
  found: list[str] = []
  if part['standin']:
    found.append(f"in place of the paper's data: {part['standin']}")
  found += part['differences']
  for row in part['rows']:
    for length, reason in row.get('refused', {}).items():
      found.append(f'{row["name"]} at {length}: {reason}')
  if part['rows'] and part['of_seeds'] != 'mean':
    best = {'min': 'lowest', 'max': 'highest'}[part['of_seeds']]
    found.append(f'{best} over seeds, as in the paper; worst in parentheses')
  known = {
    row['name']: len(scores['mean'])
    for row in part['rows']
    for scores in row.get('windows', ())
    if scores
  }
  if known:
    of_examples = part['kind'] in ('sweep', 'average')
    what = 'test examples of each length' if of_examples else 'test windows'
    text = f'intervals include the variance over {max(known.values())} {what}'
    if lacking := [x['name'] for x in part['rows'] if x['name'] not in known]:
      rest = ', but not for these rows'
      if of_examples:
        rest = '; for these rows, that due to the number of examples'
      text += f'{rest}: {"; ".join(lacking)}'
    found.append(text)
  elif part['kind'] == 'curves':
    found.append('intervals are about the tested windows only')
  elif any('examples' in row for row in part['rows']):
    found.append(
      'intervals include the variance due to the number of test examples'
    )
  if part['kind'] == 'curves':
    names, tested = _means_by_step(part)
    curves = _curves(part, tested)
    longest = curves['lengths'][-1]
    if order := finding.order_over_training(curves, names, longest):
      found.append(f'{order} (means over seeds, not tested)')
    if early := _least_before_the_last(names, tested):
      listed = '; '.join(
        f'{name} (step {step})' for name, step in early.items()
      )
      found.append(
        f'runs whose mean score at {longest} was less at an earlier step: '
        f'{listed}'
      )
  return found


def _least_before_the_last(
  names: Sequence[str], tested: Sequence[Results]
) -> dict[str, int]:
  """Returns the step of the least score at the longest length, by row.

  Omits rows whose score is least at the last step or missing at some step.
  """
  found = {}
  for name, one in zip(names, tested, strict=True):
    losses = [by_length[-1] for by_length in one['loss']]
    if None not in losses and min(losses) < losses[-1]:
      found[name] = one['steps'][losses.index(min(losses))]
  return found


def verdict(claim: Results) -> str:
  """Returns the verdict on a claim and the counts of its outcomes."""
  outcomes = [one['outcome'] for one in claim['comparisons']]
  counts = ', '.join(
    f'{outcomes.count(kind)} {kind}' for kind in dict.fromkeys(outcomes)
  )
  return f'{claim["verdict"]} ({counts}{_by_step(claim)})'


def _by_step(claim: Results) -> str:
  """Returns at which steps the verdict changed; '' if tested at one step."""
  steps = claim.get('by_step', [])
  groups = [[*each] for _, each in itertools.groupby(steps, lambda one: one[1])]
  if len(groups) == 1:
    if groups[0][0][1] == UNMEASURED:
      return ''
    return f'; at all steps tested, from {steps[0][0]} on'
  changes = (f'{each[0][1]} from step {each[0][0]}' for each in groups)
  return '; ' + ', '.join(changes) if groups else ''


def effects(claim: Results) -> str:
  """Returns the least and the greatest effect of a claim, '' if it has none.

  Each has its 90 % interval.
  """
  found = [one for one in claim['comparisons'] if one['effect'] is not None]
  found.sort(key=lambda one: one['effect'])
  ends = [effect(one) for one in (*found[:1], *found[-1:])]
  return ' .. '.join(dict.fromkeys(ends))


def effect(comparison: Results, sign: str = '+') -> str:
  """Returns the effect of a comparison and its 90 % interval."""
  text = f'{comparison["effect"]:{sign}.3g}'
  if interval := comparison['interval']:
    text += ' [{}]'.format(', '.join(f'{end:{sign}.3g}' for end in interval))
  return text


def _judged(claim: Results) -> str:
  text = f'{claim["key"]}: {claim["text"]}: {verdict(claim)}'
  found = effects(claim)
  return f'{text}; effect {found}' if found else text


def against(
  claim: Results, outcomes: Sequence[str] = ('fails', 'unclear', UNMEASURED)
) -> list[str]:
  """Returns the comparisons with these outcomes, one line each."""
  return [
    f'{one["outcome"]}: {_name(one["low"])} < {_name(one["high"])}'
    + _margin(one)
    + ('' if one['effect'] is None else f' (effect {effect(one)})')
    for one in claim['comparisons']
    if one['outcome'] in outcomes
  ]


def _margin(comparison: Results) -> str:
  if not (by := comparison['by']):
    return ''
  return f' by {by:.0%}' if comparison['relative'] else f' by {by:g}'


def _name(at: Any) -> str:
  if not isinstance(at, list):
    return f'{at:g}'
  part, row, column = at
  where = column if isinstance(column, str) else f'{column:g}x'
  return f'{row} ({part}, {where})'


def _cell(value: float | None) -> str:
  if value is None:
    return _MISSING
  if 0 < abs(value) < 0.01:
    return f'{value:.2g}'
  return f'{value:.3f}' if abs(value) < 10 else f'{value:.1f}'
