"""A comparison as a table, a plot and a page that needs nothing else."""

from collections.abc import Mapping
import pathlib
from typing import Any

import rich.markup

from lengen_jax import errors
from lengen_jax.analysis import page
from lengen_jax.analysis import plots
from lengen_jax.analysis import tables
from lengen_jax.hints import PathLike
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import workdir as workdir_lib

_UNIT = 'nats per token'


def read(workdir: PathLike) -> dict[str, Any]:
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


def names(results: Mapping[str, Any]) -> list[str]:
  """What to call each curve."""
  return [
    runs_lib.name((c['encoding'], c['positions'], c['attention_scale']))
    for c in results['curves']
  ]


def print_table(results: Mapping[str, Any]) -> None:
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


def write(results: Mapping[str, Any], workdir: PathLike) -> list[pathlib.Path]:
  """Writes plots and page into the workdir.

  Returns:
    The paths written.
  """
  folder = pathlib.Path(workdir).expanduser().absolute()
  curves = folder / 'length_curves.png'
  by_position = folder / 'loss_by_position.png'
  plots.length_curves(results, names(results), curves, unit=_UNIT)
  plots.position_curves(results, names(results), by_position, unit=_UNIT)
  path = folder / 'report.html'
  workdir_lib.write_text(path, _page(results, [curves, by_position]))
  return [folder / 'results.json', curves, by_position, path]


def _page(results, pictures):
  """The page: pictures and data inside it, no script, no link."""
  rows = [
    (
      name,
      *map(_cell, curve['loss']),
      f'{curve["parameters"]:,}',
      f'{curve["train_seconds"]:.0f}',
    )
    for name, curve in zip(names(results), results['curves'], strict=True)
  ]
  refused = [
    f'{name} at {length}: {reason}'
    for name, curve in zip(names(results), results['curves'], strict=True)
    for length, reason in curve['refused'].items()
  ]
  return page.document(
    'Train short, test long',
    page.paragraph(
      f'Trained at length {results["train_length"]}; every length scores the '
      f'same {results["curves"][0]["tokens"]:,} tokens. {_UNIT.capitalize()}; '
      'lower is better.'
    ),
    page.picture(pictures[0], 'Loss against context length'),
    page.table(
      ('run', *results['lengths'], 'parameters', 'train s'),
      rows,
    ),
    *([page.paragraph('Refused:'), page.listing(refused)] if refused else []),
    page.heading('Loss by position'),
    page.paragraph(
      'Within the longest window of each run; position 1 has no context.'
    ),
    page.picture(pictures[1], 'Loss against position'),
    page.heading('Settings'),
    page.preformatted(
      {key: results[key] for key in ('corpus', 'config', 'versions')}
    ),
    page.download('results.json', results),
  )


def _cell(loss):
  return '–' if loss is None else f'{loss:.3f}'
