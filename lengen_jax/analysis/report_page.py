"""HTML report of a comparison."""

from collections.abc import Iterator, Mapping, Sequence
import json
import re
from typing import Any

from lengen_jax.analysis import figures, finding, page, plots, sections, tables
from lengen_jax.training import defaults

UNIT = 'nats per token'


def create(
  results: Mapping[str, Any], called: Sequence[str], files: Any, folder: Any
) -> str:
  """Returns the HTML report of a comparison.

  Args:
    results: contents of results.json.
    called: a name per curve.
    files: {name: text} of the files to download.
    folder: the workdir.
  """
  curves, config = results['curves'], results['config']
  facts = (
    f'{UNIT.capitalize()}, lower is better. Every length scores the same '
    f'{curves[0]["tokens"]:,} tokens with different amounts of context. One '
    f'seed, {config["seed"]}: small differences may be chance.'
  )
  return page.document(
    f'{folder.name}: trained at {results["train_length"]}, tested to '
    f'{max(results["lengths"])}',
    page.paragraph(finding.of_curves(results, called), class_='lead'),
    page.paragraph(facts, class_='note'),
    page.beside(
      page.figure(
        figures.length_curves(results, called, unit=UNIT),
        'Loss against context length.',
      ),
      page.figure(
        figures.position_curves(results, called, unit=UNIT),
        'Loss by position in the longest window that each run supports; '
        'position 1 has a context of one token.',
      ),
    ),
    _table(results, called),
    *_notes(curves, called),
    *_paper(results),
    *_biases(curves, called),
    *_cost(results, called),
    *sections.settings(config, json.loads(defaults.get().to_json())),
    *sections.environment(
      {
        **results['versions'],
        'platform': results.get('platform'),
        'commit': sorted({curve['commit'] or 'unknown' for curve in curves}),
        'corpus': results['corpus'],
      }
    ),
    *sections.downloads(files, folder),
    style=sections.legend_style(len(curves)),
  )


def _table(results: Mapping[str, Any], called: Sequence[str]) -> Any:
  """Returns the table of losses, which is also the legend of the figures."""
  head, columns = [], []
  for n, length in enumerate(results['lengths']):
    trained = length == results['train_length']
    note = page.element('small', 'trained') if trained else ''
    head.append(page.Html(f'{length}{note}'))
    losses = [curve['loss'][n] for curve in results['curves']]
    columns.append(sections.best_marked(losses, tables.loss))
  return sections.legend(
    head,
    called,
    columns,
    f'{UNIT.capitalize()} by context length, the best of each in bold. '
    'The boxes show and hide curves.',
  )


def _notes(
  curves: Sequence[dict[str, Any]], called: Sequence[str]
) -> Iterator[Any]:
  """Yields the reasons of missing losses, and the errors of biases."""
  refused: dict[tuple[str, str], Any] = {}
  for name, curve in zip(called, curves, strict=True):
    for length, reason in curve['refused'].items():
      # Of reasons that differ in numbers only, the last is shown.
      kind = name, re.sub('[0-9]+', '', reason)
      lengths, _ = refused.get(kind, ([], None))
      refused[kind] = [*lengths, length], reason
  if refused:
    yield page.paragraph('Lengths without a loss:')
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
    yield page.paragraph('Interpolated biases:')
    yield page.listing(inexact)


def _paper(results: Mapping[str, Any]) -> Iterator[Any]:
  """Yields the paper's scores if the config has them."""
  paper = results.get('paper')
  if not paper:
    return
  yield page.heading('The paper')
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
) -> Iterator[Any]:
  """Yields figures of the additive biases."""
  drawn = [
    (number, name, curve['biases'])
    for number, (name, curve) in enumerate(zip(called, curves, strict=True))
    if curve.get('biases')
  ]
  if not drawn:
    return
  yield page.heading('Biases')
  yield page.paragraph(
    'Bias of each head by the distance between the positions of query and '
    'key, for the last query at the training length and at the longest '
    'length. The largest value is shifted to 0, and values below '
    f'-{figures.MOST_NATS} nats are clipped. Each line is a head, ',
    *_kinds(),
    class_='note',
  )
  for number, name, biases in drawn:
    yield page.element(
      'section',
      page.heading(name, level=3),
      page.beside(*_bias_figures(number, biases)),
      data_run=number,
    )


def _kinds() -> Iterator[Any]:
  """Yields the kinds of heads in their colors."""
  for number, (kind, color) in enumerate(plots.KIND_COLORS.items()):
    yield ', ' if number else ''
    yield page.element('b', kind, style=f'color: {figures.ink(color)}')
  yield '.'


def _bias_figures(number: int, biases: Any) -> Iterator[Any]:
  thresholds = ', '.join(
    f'{layer} {tokens:,.0f}' for layer, tokens in biases['thresholds'].items()
  )
  for query, drawn in biases['queries'].items():
    kinds = [kind for layer in drawn['kind'] for kind in layer]
    counts = ', '.join(
      f'{kinds.count(kind)} {kind}' for kind in plots.KIND_COLORS
    )
    caption = f'Query at position {query}. Heads: {counts}.'
    if thresholds:
      caption += f' Learned thresholds, in tokens: {thresholds}.'
    yield page.figure(
      figures.biases(number, biases['layers'], drawn, int(query)), caption
    )


def _cost(results: Mapping[str, Any], called: Sequence[str]) -> list[Any]:
  """Returns the table of training times and memory."""
  config, rows, sums = results['config'], [], [0, 0.0]
  per_step = config['data']['batch_size'] * results['train_length']
  for name, curve in zip(called, results['curves'], strict=True):
    steps = curve.get('steps', config['train']['steps'])
    seconds, tokens = curve['train_seconds'], steps * per_step
    sums = [sums[0] + tokens, sums[1] + seconds]
    memory = curve.get('memory_bytes')
    rows.append(
      (
        name,
        f'{curve["parameters"]:,}',
        f'{steps:,}',
        f'{tokens:,}',
        f'{seconds:,.1f}',
        f'{tokens / seconds:,.0f}' if seconds else '–',
        *_sessions(curve.get('sessions', curve.get('sittings', []))),
        f'{memory / 2**30:.2f}' if memory else '–',
      )
    )
  head = ('parameters', 'steps', 'tokens seen', 'seconds', 'tokens/s')
  head = ('run', *head, 'started, UTC', 'devices', 'GiB')
  total = ('all', '', '', f'{sums[0]:,}', f'{sums[1]:,.1f}', '', '', '', '')
  return [
    page.heading('Cost'),
    page.table(
      head,
      rows,
      foot=total if len(rows) > 1 else None,
      caption='Training. Seconds are those in steps, without compilation. GiB '
      'is the peak memory of a device, if the device reports it.',
    ),
  ]


def _sessions(sessions: Any) -> tuple[str, str]:
  """Returns the start time of a run, and its devices."""
  if not sessions:
    return '–', '–'
  devices = [f'{one["devices"]} × {one["device_kind"]}' for one in sessions]
  began = sessions[0]['started'][:16].replace('T', ' ')
  return began, ', '.join(dict.fromkeys(devices))
