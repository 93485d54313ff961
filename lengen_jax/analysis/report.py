"""Reports of a comparison: table, CSV, plot and HTML page."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

import rich.markup

from lengen_jax import errors
from lengen_jax.analysis import plots, report_page, tables
from lengen_jax.training import files
from lengen_jax.training import runs as runs_lib
from lengen_jax.types import PathLike


def read(workdir: PathLike) -> dict[str, Any]:
  """Returns the results of a comparison.

  Raises:
    errors.WorkdirError: results.json is missing or cannot be read.
  """
  path = pathlib.Path(workdir).expanduser().absolute() / 'results.json'
  if not path.exists():
    raise errors.WorkdirError(
      f'{path.parent} has no results.json; create it with lengen compare or '
      'lengen sweep'
    )
  results = files.read_json(path)
  missing = {'train_length', 'lengths', 'curves'} - {*results}
  if missing:
    raise errors.WorkdirError(
      f'{path} lacks {", ".join(sorted(missing))}; repeat lengen compare'
    )
  return results


def names(results: Mapping[str, Any]) -> list[str]:
  """Returns a name per curve."""
  return [
    runs_lib.name((c['encoding'], c['positions'], c['attention_scale']))
    for c in results['curves']
  ]


def print_table(results: Mapping[str, Any]) -> None:
  """Prints the loss, or the perplexity if that is the paper's unit."""
  paper = results.get('paper')
  column, unit = ('loss', report_page.UNIT)
  if paper and paper['unit'] == 'perplexity':
    column, unit = 'perplexity', 'perplexity'
  table = tables.create()
  table.add_column('run', overflow='fold')
  for length in results['lengths']:
    table.add_column(str(length), justify='right')
  for name, curve in zip(names(results), results['curves'], strict=True):
    table.add_row(
      rich.markup.escape(name), *(tables.loss(value) for value in curve[column])
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
        *(tables.loss(found.get(length)) for length in results['lengths']),
      )
    if paper['unit'] != unit:
      notes.append(f'the unit of the paper is {paper["unit"]}')
  tables.show(
    f'{unit}, trained at {results["train_length"]}, the same '
    f'{results["curves"][0]["tokens"]:,} tokens at every length',
    table,
    notes,
  )


def write(results: Mapping[str, Any], workdir: PathLike) -> list[pathlib.Path]:
  """Writes CSV files, plot and HTML page into the workdir.

  Returns:
    Paths of results.json and of the written files.
  """
  folder = pathlib.Path(workdir).expanduser().absolute()
  called = names(results)
  texts = {
    'results.json': json.dumps(results),
    'curves.csv': tables.csv_text(*_curves(results)),
    'positions.csv': tables.csv_text(*_positions(results)),
  }
  for name in ('curves.csv', 'positions.csv'):
    files.write_text(folder / name, texts[name])
  plot = folder / 'length_curves.png'
  plots.length_curves(results, called, plot, unit=report_page.UNIT)
  path = folder / 'report.html'
  page = report_page.create(results, called, texts, folder)
  files.write_text(path, page)
  return [*(folder / name for name in texts), plot, path]


def _curves(results: Mapping[str, Any]) -> tuple[tuple[str, ...], list[Any]]:
  """Returns header and rows of curves.csv, a row per run and length."""
  of_run = ('encoding', 'positions', 'attention_scale')
  measured = ('loss', 'perplexity', 'bits_per_byte', 'word_perplexity')
  cost = ('tokens', 'parameters', 'train_seconds')
  header = ('run', *of_run, 'train_length', 'length', *measured, *cost)
  rows = []
  for name, curve in zip(names(results), results['curves'], strict=True):
    for n, length in enumerate(results['lengths']):
      rows.append(
        [
          name,
          *(curve[key] for key in of_run),
          results['train_length'],
          length,
          *(curve[key][n] for key in measured),
          *(curve[key] for key in cost),
          curve['refused'].get(str(length)),
        ]
      )
  return (*header, 'refused'), rows


def _positions(results: Mapping[str, Any]) -> tuple[tuple[str, ...], list[Any]]:
  """Returns header and rows of positions.csv; positions count from 1."""
  rows = [
    (name, length, position + 1, loss)
    for name, curve in zip(names(results), results['curves'], strict=True)
    for length, found in curve['loss_by_position'].items()
    for position, loss in zip(found['position'], found['loss'], strict=True)
  ]
  return ('run', 'length', 'position', 'loss'), rows
