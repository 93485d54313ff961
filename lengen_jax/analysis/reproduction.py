"""A reproduction as tables, pictures, CSV and a page, the paper's beside it."""

import csv
import io
import pathlib

import rich.markup

from lengen_jax.analysis import page
from lengen_jax.analysis import plots
from lengen_jax.analysis import tables
from lengen_jax.training import workdir as workdir_lib


def print_list(experiments):
  """Prints what can be reproduced."""
  table = tables.create()
  for column in ('experiment', 'what it shows', 'runs'):
    table.add_column(column, justify='right' if column == 'runs' else 'left')
  for one in experiments:
    runs = sum(len(getattr(part, 'rows', ())) for part in one.parts)
    table.add_row(one.name, one.title, f'{runs} x {len(one.seeds)}')
  tables.show('runs x seeds of each', table)


def print_tables(found):
  """Prints the parts of a reproduction and what became of its claims.

  Args:
    found: what `reproduce.run.reproduce` gives.
  """
  for part in found['parts']:
    if part['rows']:
      table = tables.create()
      for column in _head(part):
        table.add_column(column, justify='right' if column != 'run' else 'left')
      for row in _rows(part):
        table.add_row(*map(rich.markup.escape, row))
      tables.show(_title(found, part), table, _notes(part))
  for line in (*found['summary'], *map(_verdict, found['claims'])):
    print(line)


def write(found, workdir):
  """Writes pictures, CSV and page into the workdir.

  Args:
    found: what `reproduce.run.reproduce` gives.
    workdir: its folder.

  Returns:
    The paths written.
  """
  folder = pathlib.Path(workdir).expanduser().absolute()
  body = [page.paragraph(f'{found["title"]}. {_facts(found)}')]
  paths = []
  for part in found['parts']:
    body.append(page.heading(part['name']))
    if part['kind'] == 'drawing':
      files = [folder / part['name'] / name for name in part['files']]
      pictures = [file for file in files if file.suffix == '.png']
    else:
      picture = folder / f'{part["name"]}.png'
      draw = {'curves': plots.curves_beside, 'sweep': plots.bars_beside}
      draw[part['kind']](part, picture)
      text = folder / f'{part["name"]}.csv'
      workdir_lib.write_text(text, _csv(part))
      pictures, files = [picture], [picture, text]
      body.append(page.paragraph(_title(found, part)))
    paths += files
    body += [page.picture(one, part['name']) for one in pictures]
    if part['rows']:
      body.append(page.table(_head(part), _rows(part)))
    if _notes(part):
      body.append(page.listing(_notes(part)))
  if found['summary']:
    body.append(page.listing(found['summary']))
  if found['claims']:
    body.append(page.heading('Claims'))
    for claim in found['claims']:
      body.append(page.paragraph(_verdict(claim)))
      body.append(page.listing(_against(claim)))
  body.append(page.download('reproduction.json', found))
  path = folder / 'report.html'
  workdir_lib.write_text(path, page.document(found['name'], *body))
  return [*paths, path]


def _facts(found):
  seeds = ', '.join(map(str, found['seeds']))
  return (
    f'Scale {found["scale"]}, seeds {seeds}; {found["command"]}; commit '
    f'{found["commit"] or "unknown"}.'
  )


def _title(found, part):
  text = f'{found["name"]}, {part["name"]}: {part["unit"]}'
  if part['kind'] == 'curves':
    return (
      f'{text}, trained at {part["train_length"]}, the same '
      f'{part["tokens"]:,} tokens at every length, scale {found["scale"]}'
    )
  return (
    f'{text}, beyond the training length {part["train_length"]}, scale '
    f'{found["scale"]}'
  )


def _head(part):
  columns = [
    f'{c:g}x' if not isinstance(c, str) else c for c in part['columns']
  ]
  papers = [f'paper {column}' for column in columns]
  has_paper = any(row['paper'] for row in part['rows'])
  return ['run', *columns, *(papers if has_paper else [])]


def _rows(part):
  has_paper = any(row['paper'] for row in part['rows'])
  lines = []
  for row in part['rows']:
    cells = [
      _cell(value) + (f' ±{_cell(spread)}' if spread else '')
      for value, spread in zip(row['value'], row['spread'], strict=True)
    ]
    if has_paper:
      paper = row['paper'] or [None] * len(part['columns'])
      cells += [_cell(value) for value in paper]
    lines.append([row['name'], *cells])
  return lines


def _notes(part):
  """What differs from the paper, in lines."""
  notes = []
  if part['standin']:
    notes.append(f"in place of the paper's data: {part['standin']}")
  notes += part['differences']
  for row in part['rows']:
    for length, reason in row.get('refused', {}).items():
      notes.append(f'{row["name"]} at {length}: {reason}')
  if part['rows'] and part['of_seeds'] != 'mean':
    best = {'min': 'least', 'max': 'largest'}[part['of_seeds']]
    notes.append(f'the {best} over seeds, as the paper has it')
  return notes


def _verdict(claim):
  """A claim, what became of it, and how many comparisons bear it out."""
  outcomes = [one['outcome'] for one in claim['comparisons']]
  counts = ', '.join(
    f'{outcomes.count(kind)} {kind}' for kind in dict.fromkeys(outcomes)
  )
  return f'{claim["key"]}: {claim["text"]}: {claim["verdict"]} ({counts})'


def _against(claim):
  """Comparisons that do not hold, in lines."""
  return [
    f'{one["outcome"]}: {_name(one["low"])} < {_name(one["high"])}'
    + ('' if one['effect'] is None else f' (by {one["effect"]:.3f})')
    for one in claim['comparisons']
    if one['outcome'] != 'holds'
  ]


def _name(at):
  part, row, column = at
  where = part if isinstance(column, str) else f'{part}, {column:g}x'
  return f'{row} ({where})'


def _csv(part):
  """A line for each run and column: ours of each seed, and the paper's."""
  text = io.StringIO()
  lines = csv.writer(text, lineterminator='\n')
  seeds = len(part['rows'][0]['values'])
  lines.writerow(
    ['run', 'column', 'value', *(f'seed {n}' for n in range(seeds)), 'paper']
  )
  for row in part['rows']:
    paper = row['paper'] or [None] * len(part['columns'])
    for n, column in enumerate(part['columns']):
      by_seed = [values[n] for values in row['values']]
      lines.writerow([row['name'], column, row['value'][n], *by_seed, paper[n]])
  return text.getvalue()


def _cell(value):
  if value is None:
    return '–'
  return f'{value:.3f}' if abs(value) < 10 else f'{value:.1f}'
