"""What the pages of a comparison and of a sweep have in common."""

from collections.abc import Callable, Iterator, Sequence
import shlex
from typing import Any

from lengen_jax.analysis import figures, page

# What each run has its own value of.
_OF_RUNS = ('model.encoding', 'model.attention_scale', 'positions')


def legend_style(count: int) -> str:
  """CSS by which the boxes of so many runs show and hide their curves."""
  rules = []
  for n in range(count):
    rules.append(
      f':root:has(#run-{n}:not(:checked)) [data-run="{n}"] {{ display: none; }}'
    )
    at = f':root:has(tr:hover #run-{n}:checked, #run-{n}:checked:focus-visible)'
    rules.append(
      f'@media (hover: hover) {{ {at} [data-run]:not([data-run="{n}"]) '
      '{ opacity: .15; } }'
    )
  return '\n'.join(rules) + '\n'


def legend(
  head: Sequence[Any], names: Sequence[str], columns: Any, caption: Any
) -> Any:
  """The table of runs: a box at each name shows or hides what is drawn for it.

  It needs no script: see `legend_style`.

  Args:
    head: names of the columns after the first.
    names: of the runs.
    columns: lists of cells.
    caption: what the figures are.
  """
  rows = [
    [_label(number, name), *cells]
    for number, (name, *cells) in enumerate(zip(names, *columns, strict=True))
  ]
  return page.element(
    'form',
    page.table(['run', *head], rows, caption=caption),
    page.element('button', 'Show all curves', type='reset'),
    autocomplete='off',
  )


def _label(number: int, name: str) -> Any:
  box = page.Html(f'<input type="checkbox" id="run-{number}" checked>')
  drawn = page.Html(figures.swatch(number))
  return page.element('label', box, drawn, page.element('span', name))


def best_marked(
  values: Any, text: Any, better: Callable[..., Any] = min
) -> list[Any]:
  """Cells of a column of which the best is bold, or all that look like it.

  Args:
    values: numbers; None where there is none.
    text: a function that formats one.
    better: min or max.
  """
  known = [value for value in values if value is not None]
  best = text(better(known)) if len(known) > 1 else None
  cells = []
  for value in values:
    cell = page.element('i', '–') if value is None else text(value)
    cells.append(page.element('strong', cell) if cell == best else cell)
  return cells


def settings(config: Any, defaults: Any = None) -> list[Any]:
  """The configuration: first what differs from the defaults, then all of it.

  Args:
    config: a dict; what a paper has is told elsewhere.
    defaults: likewise, if there are some.
  """
  config = {key: value for key, value in config.items() if key != 'paper'}
  theirs = dict(_leaves(defaults or {}))
  rows = [
    (key, _shown(value), *([_shown(theirs.get(key))] if theirs else ()))
    for key, value in _leaves(config)
    if value != theirs.get(key, ...) and key not in _OF_RUNS
  ]
  return [
    page.heading('Configuration'),
    page.table(
      ('setting', 'value', *(['default'] if theirs else ())),
      rows,
      caption='What differs from the defaults' if theirs else None,
      class_='prose',
    ),
    page.details('The whole configuration', page.preformatted(config)),
  ]


def environment(facts: dict[str, Any]) -> list[Any]:
  """Where the results come from.

  Args:
    facts: dict of what is known; its dicts are told key by key.
  """
  rows = [
    (key.replace('.', ' '), _shown(value))
    for key, value in _leaves(facts)
    if value not in (None, [])
  ]
  return [
    page.heading('Environment'),
    page.table(('item', 'value'), rows, class_='prose'),
  ]


def downloads(files: Any, folder: Any) -> list[Any]:
  """Links that save the data, and the command that makes the page again.

  Args:
    files: dict from a name to its text.
    folder: the workdir.
  """
  links = [
    page.element('li', page.download(name, text))
    for name, text in files.items()
  ]
  command = f'lengen report --workdir={shlex.quote(str(folder))}'
  return [
    page.heading('Data'),
    page.element('ul', *links, class_='downloads'),
    page.paragraph('This page is made again from results.json by'),
    page.element('pre', command),
  ]


def _leaves(node: Any, prefix: str = '') -> Iterator[tuple[str, Any]]:
  """(key with dots, value) of a nested dict."""
  for key, value in node.items():
    if isinstance(value, dict):
      yield from _leaves(value, f'{prefix}{key}.')
    else:
      yield f'{prefix}{key}', value


def _shown(value: Any) -> str:
  if isinstance(value, list):
    return ', '.join(map(_shown, value))
  return '–' if value is None else str(value) or "''"
