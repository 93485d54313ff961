"""A comparison as a table, a plot and a page that needs nothing else."""

import base64
import html
import json
import pathlib

import rich.markup

from lengen_jax import errors
from lengen_jax.analysis import plots
from lengen_jax.analysis import tables
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import workdir as workdir_lib

_UNIT = 'nats per token'


def read(workdir):
  """The results of a comparison.

  Raises:
    errors.WorkdirError: there are none, or they cannot be read.
  """
  path = pathlib.Path(workdir).expanduser().absolute() / 'results.json'
  if not path.exists():
    raise errors.WorkdirError(
      f'{path.parent} holds no results.json; make one with lengen compare or '
      'lengen sweep'
    )
  results = workdir_lib.read_json(path)
  missing = {'train_length', 'lengths', 'curves'} - {*results}
  if missing:
    raise errors.WorkdirError(
      f'{path} lacks {", ".join(sorted(missing))}; lengen compare makes it anew'
    )
  return results


def names(results):
  """What to call each curve."""
  return [
    runs_lib.name((c['encoding'], c['positions'], c['attention_scale']))
    for c in results['curves']
  ]


def print_table(results):
  """Prints loss by length, a row per run, in the paper's unit if it has one."""
  paper = results.get('paper')
  # What the paper has; where that is another unit, a note says so.
  column, unit = ('loss', _UNIT)
  if paper and paper['unit'] == 'perplexity':
    column, unit = 'perplexity', 'perplexity'
  table = tables.create()
  table.add_column('run', overflow='fold')
  for length in results['lengths']:
    table.add_column(str(length), justify='right')
  for name, curve in zip(names(results), results['curves'], strict=True):
    table.add_row(
      rich.markup.escape(name), *(_cell(value) for value in curve[column])
    )
  notes = [
    f'{name} at {length}: {reason}'
    for name, curve in zip(names(results), results['curves'], strict=True)
    for length, reason in curve['refused'].items()
  ]
  if paper:
    table.add_section()
    for name, values in paper['rows']:
      found = dict(zip(paper['columns'], values, strict=True))
      table.add_row(
        rich.markup.escape(f'paper: {name}'),
        *(_cell(found.get(length)) for length in results['lengths']),
      )
    if paper['unit'] != unit:
      notes.append(f'the paper has {paper["unit"]}')
  tables.show(
    f'{unit}, trained at {results["train_length"]}, the same '
    f'{results["curves"][0]["tokens"]:,} tokens at every length',
    table,
    notes,
  )


def write(results, workdir):
  """Writes plots and page into the workdir.

  Returns:
    The paths written.
  """
  folder = pathlib.Path(workdir).expanduser().absolute()
  curves = folder / 'length_curves.png'
  by_position = folder / 'loss_by_position.png'
  plots.length_curves(results, names(results), curves, unit=_UNIT)
  plots.position_curves(results, names(results), by_position, unit=_UNIT)
  page = folder / 'report.html'
  workdir_lib.write_text(page, _page(results, [curves, by_position]))
  return [folder / 'results.json', curves, by_position, page]


def _page(results, pictures):
  """The page: pictures and data inside it, no script, no link."""
  embedded = [
    'data:image/png;base64,' + base64.b64encode(p.read_bytes()).decode()
    for p in pictures
  ]
  data = base64.b64encode(json.dumps(results).encode()).decode()
  head = ''.join(f'<th>{length}</th>' for length in results['lengths'])
  rows = ''
  for name, curve in zip(names(results), results['curves'], strict=True):
    cells = ''.join(f'<td>{_cell(loss)}</td>' for loss in curve['loss'])
    rows += (
      f'<tr><th>{html.escape(name)}</th>{cells}'
      f'<td>{curve["parameters"]:,}</td><td>{curve["train_seconds"]:.0f}</td>'
      '</tr>'
    )
  refused = ''.join(
    f'<li>{html.escape(name)} at {length}: {html.escape(reason)}</li>'
    for name, curve in zip(names(results), results['curves'], strict=True)
    for length, reason in curve['refused'].items()
  )
  facts = {key: results[key] for key in ('corpus', 'config', 'versions')}
  tokens = results['curves'][0]['tokens']
  return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Train short, test long</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; color: #222; }}
img {{ max-width: 100%; height: auto; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2rem .7rem; text-align: right;
  border-bottom: 1px solid #ddd; white-space: nowrap; }}
tr > th:first-child {{ text-align: left; }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1rem;
  font-size: 13px; }}
</style>
<h1>Train short, test long</h1>
<p>Trained at length {results['train_length']}; every length scores the same
{tokens:,} tokens. {_UNIT.capitalize()}; lower is better.</p>
<img src="{embedded[0]}" alt="Loss against context length">
<div><table>
<tr><th>run</th>{head}<th>parameters</th><th>train s</th></tr>
{rows}</table></div>
{f'<p>Refused:</p><ul>{refused}</ul>' if refused else ''}
<h2>Loss by position</h2>
<p>Within the longest window of each run; position 1 has no context.</p>
<img src="{embedded[1]}" alt="Loss against position">
<h2>Settings</h2>
<pre>{html.escape(json.dumps(facts, indent=1))}</pre>
<p><a download="results.json" href="data:application/json;base64,{data}">
Download results.json</a></p>
</html>
"""


def _cell(loss):
  return '–' if loss is None else f'{loss:.3f}'
