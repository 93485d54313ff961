"""Reports of a comparison: tables, CSV files, plot and HTML page."""

import collections
from collections.abc import Iterator, Mapping
import itertools
import json
import pathlib
import re
from typing import Any

from lengen_jax import errors
from lengen_jax.analysis import figures, finding, page, plots, tables
from lengen_jax.training import defaults, files
from lengen_jax.training import runs as runs_lib
from lengen_jax.types import PathLike

RESULTS = 'results.json'
_UNIT = 'nats per token'


def read(workdir: PathLike) -> dict[str, Any]:
  """Returns the results of a comparison.

  Raises:
    errors.WorkdirError: results.json is missing or cannot be read.
  """
  path = files.locate(workdir) / RESULTS
  if not path.exists():
    raise errors.WorkdirError(
      f'{path.parent} has no {RESULTS}; give the folder of a comparison, of a '
      'sweep, of scores on RULER, or PAPER/TABLE/SCALE of a reproduction; for '
      'a single run, use lengen eval'
    )
  return files.read_json(path, ('train_length', 'lengths', 'curves'))


def names(results: Mapping[str, Any]) -> list[str]:
  """Returns a name per curve."""
  return [name for name, _ in _runs(results)]


def _runs(results: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
  """Returns (name, curve) of each run."""
  return [(_name(curve), curve) for curve in results['curves']]


def _name(run: Mapping[str, Any]) -> str:
  specs = run['encoding'], run['positions'], run['attention_scale']
  tested = run.get('tested_as')
  tested_as = runs_lib.Run(*tested.split('|')) if tested else None
  return runs_lib.name(runs_lib.Run(*specs, tested_as))


def print_table(results: Mapping[str, Any]) -> None:
  """Prints the loss, or the perplexity if that is the paper's unit."""
  lengths, curves = results['lengths'], results['curves']
  paper = results.get('paper') or {'unit': _UNIT, 'columns': [], 'rows': []}
  column, unit = 'loss', _UNIT
  if paper['unit'] == 'perplexity':
    column, unit = 'perplexity', 'perplexity'
  rows, notes = [], []
  for name, curve in _runs(results):
    rows.append([name, *map(tables.number, curve[column])])
    refused = curve['refused'].items()
    notes += [f'{name} at {length}: {reason}' for length, reason in refused]
  rows += [[name, 'unfinished'] for name in results.get('unfinished', ())]
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
  """Prints the scores of a run's answers, given the contents of eval.json.

  Rows are lengths. With several tasks, rows are tasks, as in the paper's table.
  """
  paper = results['paper'] or {'columns': [], 'rows': [], 'unit': 'percent'}
  columns = collections.defaultdict[str, dict[str, str]](dict)
  for length, by_task in results['scores'].items():
    for task, found in by_task.items():
      names, row = (task, 'whole prompts'), length
      if len(results['examples']) > 1:
        names, row = (f'length {length}', f'whole at {length}'), task
      share = 100 * results['whole'][length][task]
      columns[names[0]][row] = tables.number(found['score'], 2)
      columns[names[1]][row] = f'{share:.0f} %'
    if len(results['examples']) > 1:
      average = tables.number(results['average'][length], 2)
      columns[f'length {length}']['average'] = average
  printed = list(map(str, paper['columns']))
  for run, values in paper['rows']:
    texts = [tables.number(value, 2) for value in values]
    columns[f'paper: {run}'] = dict(zip(printed, texts, strict=True))
  rows = dict.fromkeys(itertools.chain(*columns.values(), printed))
  tables.show(
    f'{paper["unit"]}, {_name(results)}, trained at {results["train_length"]}',
    ['', *columns],
    [
      [
        row.removeprefix('super_').split('/')[-1],
        *(cells.get(row, '–') for cells in columns.values()),
      ]
      for row in rows
    ],
    [f'at {length}: {why}' for length, why in results['refused'].items()],
  )


def write(results: Mapping[str, Any], workdir: PathLike) -> list[pathlib.Path]:
  """Writes CSV files, plot and HTML page into the workdir.

  Positions in positions.csv count from 1. If a run has contextual positions,
  contextual_positions.csv has those of some tokens, whose indices count from 0.
  Returns the paths of results.json and of the written files.
  """
  folder = files.locate(workdir)
  of_run = ('encoding', 'positions', 'attention_scale')
  measured = ('loss', 'perplexity', 'bits_per_byte', 'word_perplexity')
  cost = ('tokens', 'parameters', 'train_seconds')
  head = ['run', *of_run, 'train_length', 'length', *measured, *cost, 'refused']
  curves, positions, contextual = [], [], []
  for name, curve in _runs(results):
    for layer, drawn in (curve.get('contextual_positions') or {}).items():
      for number, values in enumerate(drawn['position']):
        points = zip(drawn['token'], values, strict=True)
        contextual += [(name, layer, number, *point) for point in points]
    for n, length in enumerate(results['lengths']):
      row = [name, *map(curve.get, of_run), results['train_length'], length]
      row += [*(curve[key][n] for key in measured), *map(curve.get, cost)]
      curves.append([*row, curve['refused'].get(str(length))])
    for length, found in curve['loss_by_position'].items():
      points = zip(found['position'], found['loss'], strict=True)
      positions += [(name, length, at + 1, loss) for at, loss in points]
  texts = {
    'results.json': json.dumps(results),
    'curves.csv': tables.csv_text(head, curves),
    'positions.csv': tables.csv_text(
      ('run', 'length', 'position', 'loss'), positions
    ),
  }
  trajectory = [
    (name, step, length, loss)
    for name, curve in _runs(results)
    for step, losses in zip(*_trajectory(curve), strict=True)
    for length, loss in zip(results['lengths'], losses, strict=True)
  ]
  if _has_trajectories(results):
    texts['trajectories.csv'] = tables.csv_text(
      ('run', 'step', 'length', 'loss'), trajectory
    )
  if contextual:
    texts['contextual_positions.csv'] = tables.csv_text(
      ('run', 'layer', 'head', 'token', 'position'), contextual
    )
  for name, text in texts.items():
    if name.endswith('.csv'):
      files.write_text(folder / name, text)
  drawn = {'length_curves.png': plots.length_curves}
  if _has_gap(results):
    drawn['trajectories.png'] = plots.trajectories
  for name, draw in drawn.items():
    plots.write(folder / name, draw, results, names(results), _UNIT)
  path = folder / 'report.html'
  files.write_text(path, _page(results, texts, folder))
  return [*(folder / name for name in (*texts, *drawn)), path]


def _trajectory(curve: Mapping[str, Any]) -> tuple[list[int], list[Any]]:
  """Returns the steps at which a run was evaluated, and the losses of each."""
  found = curve.get('trajectory') or {'steps': [], 'loss': []}
  return found['steps'], found['loss']


def _has_trajectories(results: Mapping[str, Any]) -> bool:
  """Returns whether a run was evaluated at more than its last step."""
  return any(len(_trajectory(curve)[0]) > 1 for curve in results['curves'])


def _has_gap(results: Mapping[str, Any]) -> bool:
  """Returns whether `plots.trajectories` has two lengths to compare."""
  near, far = plots.gap_lengths(results)
  return near < far and _has_trajectories(results)


def _page(
  results: Mapping[str, Any], texts: dict[str, str], folder: pathlib.Path
) -> str:
  """Returns the HTML page, with `texts` to download."""
  curves, config, called = results['curves'], results['config'], names(results)
  facts = {
    **results['versions'],
    'platform': results.get('platform'),
    'commit': sorted({curve['commit'] or 'unknown' for curve in curves}),
    'corpus': results['corpus'],
  }
  drawn = [
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
  ]
  if _has_gap(results):
    drawn.append(
      (
        plots.trajectories,
        'Gap against training step',
        'Difference of the losses at two lengths, by training step.',
      )
    )
  charts = [
    page.figure(
      figures.chart(label, called, draw, results, called, _UNIT), caption
    )
    for draw, label, caption in drawn
  ]
  head, columns = [], []
  for n, length in enumerate(results['lengths']):
    trained = length == results['train_length']
    note = page.element('small', 'trained') if trained else ''
    head.append(page.Html(f'{length}{note}'))
    losses = [curve['loss'][n] for curve in curves]
    columns.append(page.best_marked(losses, tables.number))
  inexact = [
    f'{name}: maximum error {max(curve["bias_error"]):.1e} nats'
    for name, curve in _runs(results)
    if any(curve['bias_error'])
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
    page.legend(
      head,
      called,
      columns,
      f'{_UNIT.capitalize()} by context length, the best of each in bold.',
    ),
    page.listing(results.get('unfinished', []), 'Unfinished runs:'),
    page.listing(_refused(results), 'Lengths without a loss:'),
    page.listing(inexact, 'Interpolated biases:'),
    *_paper(results),
    *_biases(results),
    *_positions(results),
    *_cost(results),
    *page.appendix(
      config, json.loads(defaults.get().to_json()), facts, texts, folder
    ),
    runs=len(curves),
  )


def _refused(results: Mapping[str, Any]) -> list[str]:
  """Returns the reasons of missing losses; similar ones share a line."""
  found: dict[tuple[str, str], Any] = {}
  for name, curve in _runs(results):
    for length, reason in curve['refused'].items():
      # Reasons that differ only in numbers share one line.
      kind = name, re.sub('[0-9]+', '', reason)
      lengths, _ = found.get(kind, ([], None))
      found[kind] = [*lengths, length], reason
  return [
    f'{name} at {", ".join(lengths)}: {reason}'
    for (name, _), (lengths, reason) in found.items()
  ]


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


def _biases(results: Mapping[str, Any]) -> Iterator[str]:
  """Yields figures of the additive biases."""
  if not any(curve.get('biases') for curve in results['curves']):
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
    '. Positions are 0, 1, 2, …, also in runs with contextual positions.',
    class_='note',
  )
  for number, (name, curve) in enumerate(_runs(results)):
    biases = curve.get('biases') or {'queries': {}}
    drawn = []
    for query, found in biases['queries'].items():
      heads = [kind for layer in found['kind'] for kind in layer]
      counts = [f'{heads.count(one)} {one}' for one in plots.KIND_COLORS]
      caption = f'Query at position {query}. Heads: {", ".join(counts)}.'
      if learned := biases['thresholds'].items():
        tokens = ', '.join(
          f'{layer} {tables.number(value, 0)}' for layer, value in learned
        )
        caption += f' Learned thresholds, in tokens: {tokens}.'
      svg = figures.biases(number, biases['layers'], found, int(query))
      drawn.append(page.figure(svg, caption))
    if drawn:
      shown = page.element('div', *drawn, class_='figures')
      title = page.element('h3', name)
      yield page.element('section', title, shown, data_run=number)


def _positions(results: Mapping[str, Any]) -> Iterator[str]:
  """Yields figures of the contextual positions."""
  runs = [
    (number, name, curve['contextual_positions'])
    for number, (name, curve) in enumerate(_runs(results))
    if curve.get('contextual_positions')
  ]
  if not runs:
    return
  yield page.element('h2', 'Positions')
  yield page.element(
    'p',
    'Positions that each layer computes from contents, by the index of the '
    'token, in the first of the longest validation windows. Each line is a '
    'head; the dashed line is the index itself.',
    class_='note',
  )
  for number, name, layers in runs:
    shown = page.figure(figures.positions(number, layers), 'Panels are layers.')
    title = page.element('h3', name)
    yield page.element('section', title, shown, data_run=number)


def _cost(results: Mapping[str, Any]) -> Iterator[str]:
  """Yields the table of training times and memory."""
  config, rows, all_tokens, all_seconds = results['config'], [], 0, 0.0
  per_step = config['data']['batch_size'] * results['train_length']
  counted = set()
  for name, curve in _runs(results):
    steps = curve.get('steps', config['train']['steps'])
    seconds, tokens = curve['train_seconds'], steps * per_step
    # Several runs may test one model.
    model = name.partition(' => ')[0]
    if model not in counted:
      counted.add(model)
      all_tokens, all_seconds = all_tokens + tokens, all_seconds + seconds
    memory = curve.get('memory_bytes')
    sessions = curve.get('sessions', [])
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
    'the peak memory of a device since the command started, which may have '
    'trained other runs before, if the device reports it.',
  )
