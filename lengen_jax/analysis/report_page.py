"""The page of a comparison."""

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
  """The page: figures and data inside it, no script, no link elsewhere.

  Args:
    results: as in results.json.
    called: a name per curve.
    files: dict from the name of each file that can be saved to its text.
    folder: the workdir.
  """
  curves, config = results['curves'], results['config']
  facts = (
    f'{UNIT.capitalize()}, lower is better. Every length scores the same '
    f'{curves[0]["tokens"]:,} tokens; what differs is how much context they '
    f'have. One seed, {config["seed"]}: small differences may be chance.'
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
        'Loss by position within the longest window that each run can take; '
        'position 1 sees one token.',
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
  """Loss by length, which is the legend of the figures."""
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
  """What the table does not say: why a figure is missing or is inexact."""
  refused: dict[tuple[str, str], Any] = {}
  for name, curve in zip(called, curves, strict=True):
    for length, reason in curve['refused'].items():
      # Reasons that differ in their numbers are told once, by the last.
      kind = name, re.sub('[0-9]+', '', reason)
      lengths, _ = refused.get(kind, ([], None))
      refused[kind] = [*lengths, length], reason
  if refused:
    yield page.paragraph('Lengths without a figure:')
    yield page.listing(
      f'{name} at {", ".join(lengths)}: {reason}'
      for (name, _), (lengths, reason) in refused.items()
    )
  inexact = [
    f'{name}: off by up to {max(curve["bias_error"]):.1e} nats'
    for name, curve in zip(called, curves, strict=True)
    if any(curve['bias_error'])
  ]
  if inexact:
    yield page.paragraph('Biases that are interpolated:')
    yield page.listing(inexact)


def _paper(results: Mapping[str, Any]) -> Iterator[Any]:
  """The paper's figures, if the config has some."""
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
  """The additive biases of each run that has some."""
  drawn = [
    (number, name, curve['biases'])
    for number, (name, curve) in enumerate(zip(called, curves, strict=True))
    if curve.get('biases')
  ]
  if not drawn:
    return
  yield page.heading('Biases')
  yield page.paragraph(
    'What each head adds to its logits by the distance between the positions '
    'of query and key, of the last query at the training length and at the '
    'longest. The largest is taken to be 0, and what is '
    f'{figures.MOST_NATS} nats below it is cut. Each line is a head, ',
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
  """The kinds of heads in the colours that they are drawn in."""
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
  """What training took."""
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
  head = ('run', *head, 'begun, UTC', 'devices', 'GiB')
  total = ('all', '', '', f'{sums[0]:,}', f'{sums[1]:,.1f}', '', '', '', '')
  return [
    page.heading('Cost'),
    page.table(
      head,
      rows,
      foot=total if len(rows) > 1 else None,
      caption='Training. Seconds are those in steps, without compiling; GiB '
      'the most that a device held, where devices tell.',
    ),
  ]


def _sessions(sessions: Any) -> tuple[str, str]:
  """When a run began, and the devices it was on."""
  if not sessions:
    return '–', '–'
  devices = [f'{one["devices"]} × {one["device_kind"]}' for one in sessions]
  began = sessions[0]['started'][:16].replace('T', ' ')
  return began, ', '.join(dict.fromkeys(devices))
