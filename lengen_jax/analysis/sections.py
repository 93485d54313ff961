"""Parts of reports that comparisons and sweeps share."""

from collections.abc import Callable, Iterator, Sequence
import shlex
from typing import Any

from lengen_jax.analysis import figures, page

# Fields that differ between runs.
_OF_RUNS = ('model.encoding', 'model.attention_scale', 'positions')


def legend_style(count: int) -> str:
  """Returns CSS with which the checkboxes of runs show and hide curves."""
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
  """Returns a table of runs with checkboxes that show or hide curves.

  See `legend_style`.

  Args:
    head: names of the columns after the first.
    names: names of the runs.
    columns: lists of cells.
    caption: text above the table.
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
  """Returns the cells of a column, with the best in bold.

  Args:
    values: numbers or None.
    text: formats a number. All cells with the text of the best are bold.
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
  """Returns a table of fields that differ from defaults, and all fields.

  Args:
    config: config as a dict; `paper` is not shown.
    defaults: default config as a dict, or None.
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
      caption='Differences from the defaults' if theirs else None,
      class_='prose',
    ),
    page.details('The whole configuration', page.preformatted(config)),
  ]


def environment(facts: dict[str, Any]) -> list[Any]:
  """Returns a table of versions, hardware and data.

  Args:
    facts: nested dict of values.
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
  """Returns download links, and the command that creates the page.

  Args:
    files: {name: text}.
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
    page.paragraph('To create this page from results.json:'),
    page.element('pre', command),
  ]


def _leaves(node: Any, prefix: str = '') -> Iterator[tuple[str, Any]]:
  """Yields (dotted key, value) of a nested dict."""
  for key, value in node.items():
    if isinstance(value, dict):
      yield from _leaves(value, f'{prefix}{key}.')
    else:
      yield f'{prefix}{key}', value


def _shown(value: Any) -> str:
  if isinstance(value, list):
    return ', '.join(map(_shown, value))
  return '–' if value is None else str(value) or "''"
