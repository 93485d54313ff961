"""Reports of a comparison: tables, CSV files, plot and HTML page."""

from collections.abc import Iterator, Mapping, Sequence
import json
import pathlib
import re
from typing import Any

from lengen_jax import errors
from lengen_jax.analysis import figures, finding, page, plots, tables
from lengen_jax.training import defaults, files
from lengen_jax.training import runs as runs_lib
from lengen_jax.types import PathLike

_UNIT = 'nats per token'


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
  return [_name(curve) for curve in results['curves']]


def _name(run: Mapping[str, Any]) -> str:
  return runs_lib.name(
    (run['encoding'], run['positions'], run['attention_scale'])
  )


def print_table(results: Mapping[str, Any]) -> None:
  """Prints the loss, or the perplexity if that is the paper's unit."""
  lengths, curves = results['lengths'], results['curves']
  paper = results.get('paper') or {'unit': _UNIT, 'columns': [], 'rows': []}
  column, unit = 'loss', _UNIT
  if paper['unit'] == 'perplexity':
    column, unit = 'perplexity', 'perplexity'
  rows, notes = [], []
  for name, curve in zip(names(results), curves, strict=True):
    rows.append([name, *map(tables.number, curve[column])])
    refused = curve['refused'].items()
    notes += [f'{name} at {length}: {reason}' for length, reason in refused]
  for name, values in paper['rows']:
    printed = dict(zip(paper['columns'], values, strict=True))
    cells = [tables.number(printed.get(length)) for length in lengths]
    rows.append([f'paper: {name}', *cells])
  if paper['unit'] != unit:
    notes.append(f'the unit of the paper is {paper["unit"]}')
  tables.show(
    f'{unit}, trained at {results["train_length"]}, the same '
    f'{curves[0]["tokens"]:,} tokens at every length',
    ['run', *map(str, lengths)],
    rows,
    notes,
  )


def print_scores(results: Mapping[str, Any]) -> None:
  """Prints the scores of a run's answers and those of the paper.

  A row is a length, or a task if there are several.

  Args:
    results: contents of eval.json, see `training.evaluate.answers`.
  """
  paper = results['paper'] or {'columns': [], 'rows': [], 'unit': 'percent'}
  scores = {
    length: {name: one['score'] for name, one in by_task.items()}
    | {'average': results['average'][length]}
    for length, by_task in results['scores'].items()
  }
  tasks = list(results['examples'])
  # Rows are the paper's columns: lengths of one task, or tasks.
  if len(tasks) == 1:
    (task,) = tasks
    columns = {task: {length: by[task] for length, by in scores.items()}}
    whole = {
      'whole prompts': {n: by[task] for n, by in results['whole'].items()}
    }
  else:
    columns = {f'length {length}': by for length, by in scores.items()}
    whole = {f'whole at {n}': by for n, by in results['whole'].items()}
  printed = map(str, paper['columns'])
  papers = {
    f'paper: {run}': dict(zip(map(str, paper['columns']), values, strict=True))
    for run, values in paper['rows']
  }
  keys = dict.fromkeys(
    [*(key for by in columns.values() for key in by), *printed]
  )
  rows = [
    [
      key.removeprefix('super_').split('/')[-1],
      *(tables.number(by.get(key), 2) for by in columns.values()),
      *(f'{100 * by[key]:.0f} %' if key in by else '' for by in whole.values()),
      *(tables.number(by.get(key), 2) for by in papers.values()),
    ]
    for key in keys
  ]
  tables.show(
    f'{paper["unit"]}, {_name(results)}, trained at {results["train_length"]}',
    ['', *columns, *whole, *papers],
    rows,
    [f'at {length}: {why}' for length, why in results['refused'].items()],
  )


def write(results: Mapping[str, Any], workdir: PathLike) -> list[pathlib.Path]:
  """Writes CSV files, plot and HTML page into the workdir.

  Returns:
    Paths of results.json and of the written files.
  """
  folder = pathlib.Path(workdir).expanduser().absolute()
  texts = {
    'results.json': json.dumps(results),
    'curves.csv': tables.csv_text(*_curves(results)),
    'positions.csv': tables.csv_text(*_positions(results)),
  }
  for name in ('curves.csv', 'positions.csv'):
    files.write_text(folder / name, texts[name])
  plot, path = folder / 'length_curves.png', folder / 'report.html'
  plots.write(plot, plots.length_curves, results, names(results), _UNIT)
  files.write_text(path, _page(results, names(results), texts, folder))
  return [*(folder / name for name in texts), plot, path]


def _curves(results: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
  """Returns header and rows of curves.csv, a row per run and length."""
  of_run = ('encoding', 'positions', 'attention_scale')
  measured = ('loss', 'perplexity', 'bits_per_byte', 'word_perplexity')
  cost = ('tokens', 'parameters', 'train_seconds')
  rows = [
    (
      name,
      *(curve[key] for key in of_run),
      results['train_length'],
      length,
      *(curve[key][n] for key in measured),
      *(curve[key] for key in cost),
      curve['refused'].get(str(length)),
    )
    for name, curve in zip(names(results), results['curves'], strict=True)
    for n, length in enumerate(results['lengths'])
  ]
  head = ['run', *of_run, 'train_length', 'length', *measured, *cost, 'refused']
  return head, rows


def _positions(results: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
  """Returns header and rows of positions.csv; positions count from 1."""
  rows = [
    (name, length, position + 1, loss)
    for name, curve in zip(names(results), results['curves'], strict=True)
    for length, found in curve['loss_by_position'].items()
    for position, loss in zip(found['position'], found['loss'], strict=True)
  ]
  return ['run', 'length', 'position', 'loss'], rows


def _page(
  results: Mapping[str, Any],
  called: Sequence[str],
  texts: dict[str, str],
  folder: pathlib.Path,
) -> str:
  """Returns the HTML page, with `texts` to download."""
  curves, config = results['curves'], results['config']
  facts = {
    **results['versions'],
    'platform': results.get('platform'),
    'commit': sorted({curve['commit'] or 'unknown' for curve in curves}),
    'corpus': results['corpus'],
  }
  defaulted = json.loads(defaults.get().to_json())
  charts = [
    page.figure(
      figures.chart(label, called, draw, results, called, _UNIT), caption
    )
    for draw, label, caption in (
      (
        plots.length_curves,
        'Loss against context length',
        'Loss against context length.',
      ),
      (
        plots.position_curves,
        'Loss against position',
        'Loss by position in the longest window that each run supports; '
        'position 1 has a context of one token.',
      ),
    )
  ]
  return page.document(
    f'{folder.name}: trained at {results["train_length"]}, tested to '
    f'{max(results["lengths"])}',
    page.element('p', finding.of_curves(results, called), class_='lead'),
    page.element(
      'p',
      f'{_UNIT.capitalize()}, lower is better. Every length scores the same '
      f'{curves[0]["tokens"]:,} tokens with different amounts of context. One '
      f'seed, {config["seed"]}: small differences may be chance.',
      class_='note',
    ),
    page.element('div', *charts, class_='figures'),
    _legend(results, called),
    *_notes(curves, called),
    *_paper(results),
    *_biases(curves, called),
    *_cost(results, called),
    *page.appendix(config, defaulted, facts, texts, folder),
    runs=len(curves),
  )


def _legend(results: Mapping[str, Any], called: Sequence[str]) -> str:
  """Returns the table of losses, which is also the legend of the figures."""
  head, columns = [], []
  for n, length in enumerate(results['lengths']):
    trained = length == results['train_length']
    note = page.element('small', 'trained') if trained else ''
    head.append(page.Html(f'{length}{note}'))
    losses = [curve['loss'][n] for curve in results['curves']]
    columns.append(page.best_marked(losses, tables.number))
  caption = f'{_UNIT.capitalize()} by context length, the best of each in bold.'
  return page.legend(head, called, columns, caption)


def _notes(
  curves: Sequence[dict[str, Any]], called: Sequence[str]
) -> Iterator[str]:
  """Yields the reasons of missing losses, and the errors of biases."""
  refused: dict[tuple[str, str], Any] = {}
  for name, curve in zip(called, curves, strict=True):
    for length, reason in curve['refused'].items():
      # Of reasons that differ in numbers only, the last is shown.
      kind = name, re.sub('[0-9]+', '', reason)
      lengths, _ = refused.get(kind, ([], None))
      refused[kind] = [*lengths, length], reason
  if refused:
    yield page.element('p', 'Lengths without a loss:')
    yield page.listing(
      f'{name} at {", ".join(lengths)}: {reason}'
      for (name, _), (lengths, reason) in refused.items()
    )
  inexact = [
    f'{name}: maximum error {max(curve["bias_error"]):.1e} nats'
    for name, curve in zip(called, curves, strict=True)
    if any(curve['bias_error'])
  ]
  if inexact:
    yield page.element('p', 'Interpolated biases:')
    yield page.listing(inexact)


def _paper(results: Mapping[str, Any]) -> Iterator[str]:
  """Yields the paper's scores if the config has them."""
  paper = results.get('paper')
  if not paper:
    return
  yield page.element('h2', 'The paper')
  yield page.table(
    ('run', *paper['columns']),
    [
      (name, *('–' if value is None else value for value in values))
      for name, values in paper['rows']
    ],
    caption=f'{paper["unit"].capitalize()} by context length, as printed',
  )


def _biases(
  curves: Sequence[dict[str, Any]], called: Sequence[str]
) -> Iterator[str]:
  """Yields figures of the additive biases."""
  if not any(curve.get('biases') for curve in curves):
    return
  kinds = [
    page.element('b', kind, style=f'color: {figures.ink(color)}')
    for kind, color in plots.KIND_COLORS.items()
  ]
  yield page.element('h2', 'Biases')
  yield page.element(
    'p',
    'Bias of each head by the distance between the positions of query and '
    'key, for the last query at the training length and at the longest '
    'length. The largest value is shifted to 0, and values below '
    f'-{figures.MOST_NATS} nats are clipped. Each line is a head, ',
    page.Html(', '.join(kinds)),
    '.',
    class_='note',
  )
  for number, (name, curve) in enumerate(zip(called, curves, strict=True)):
    if not curve.get('biases'):
      continue
    shown = page.element('div', *_bias_figures(number, curve), class_='figures')
    yield page.element(
      'section', page.element('h3', name), shown, data_run=number
    )


def _bias_figures(number: int, curve: dict[str, Any]) -> Iterator[str]:
  layers, thresholds = curve['biases']['layers'], curve['biases']['thresholds']
  learned = ', '.join(
    f'{at} {tokens:,.0f}' for at, tokens in thresholds.items()
  )
  for query, drawn in curve['biases']['queries'].items():
    kinds = [kind for layer in drawn['kind'] for kind in layer]
    counts = ', '.join(f'{kinds.count(one)} {one}' for one in plots.KIND_COLORS)
    caption = f'Query at position {query}. Heads: {counts}.'
    if learned:
      caption += f' Learned thresholds, in tokens: {learned}.'
    yield page.figure(
      figures.biases(number, layers, drawn, int(query)), caption
    )


def _cost(results: Mapping[str, Any], called: Sequence[str]) -> Iterator[str]:
  """Yields the table of training times and memory."""
  config, rows, all_tokens, all_seconds = results['config'], [], 0, 0.0
  per_step = config['data']['batch_size'] * results['train_length']
  for name, curve in zip(called, results['curves'], strict=True):
    steps = curve.get('steps', config['train']['steps'])
    seconds, tokens = curve['train_seconds'], steps * per_step
    all_tokens, all_seconds = all_tokens + tokens, all_seconds + seconds
    memory = curve.get('memory_bytes')
    sessions = curve.get('sessions', curve.get('sittings', []))
    devices = [f'{one["devices"]} × {one["device_kind"]}' for one in sessions]
    started = [one['started'][:16].replace('T', ' ') for one in sessions]
    rows.append(
      (
        name,
        f'{curve["parameters"]:,}',
        f'{steps:,}',
        f'{tokens:,}',
        f'{seconds:,.1f}',
        f'{tokens / seconds:,.0f}' if seconds else '–',
        started[0] if started else '–',
        ', '.join(dict.fromkeys(devices)) or '–',
        f'{memory / 2**30:.2f}' if memory else '–',
      )
    )
  head = ('run', 'parameters', 'steps', 'tokens seen', 'seconds', 'tokens/s')
  total = ('all', '', '', f'{all_tokens:,}', f'{all_seconds:,.1f}')
  yield page.element('h2', 'Cost')
  yield page.table(
    (*head, 'started, UTC', 'devices', 'GiB'),
    rows,
    foot=(*total, '', '', '', '') if len(rows) > 1 else None,
    caption='Training. Seconds are those in steps, without compilation. GiB is '
    'the peak memory of a device, if the device reports it.',
  )
