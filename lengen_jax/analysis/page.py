"""HTML pages without scripts or external files."""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
import html
import itertools
import json
import shlex
from typing import Any

from lengen_jax.analysis import figures

# Fields of a config that differ between runs.
_OF_RUNS = (
  'model.encoding',
  'model.attention_scale',
  'model.contextual_positions',
  'positions',
)
_STYLE = """\
:root { color-scheme: light dark; --paper: #fff; --panel: #f4f5f7;
  --ink: #1b1d20; --soft: #5a6068; --line: #dcdfe3; --link: #0b5cad;
  --curve-0: #0072b2; --curve-1: #c25000; --curve-2: #008a65;
  --curve-3: #b9588e; --curve-4: #b57900; --curve-5: #3389bd;
  --curve-6: currentColor; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #14161a;
  --panel: #1f2227; --ink: #e4e6ea; --soft: #a2a8b1; --line: #363b43;
  --link: #7cb8f5; --curve-0: #4ba6e8; --curve-1: #ff8b4a;
  --curve-2: #2cc69a; --curve-3: #e597c5; --curve-4: #efb42f;
  --curve-5: #93d3fa; } }
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); max-width: 76rem; margin: 0 auto;
  padding: 1rem clamp(.8rem, 3vw, 2.5rem) 3rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .6rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; padding-top: .8rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p, ul { max-width: 48rem; margin: .5rem 0; }
.lead { font-size: 1.15rem; }
.note, figcaption { color: var(--soft); font-size: .875rem; }
a, summary { color: var(--link); }
summary { cursor: pointer; padding: .3rem 0; width: fit-content; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
img { max-width: 100%; height: auto; background: #fff; }
.figures { display: grid; gap: 1rem 2rem; grid-template-columns:
  repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: .5rem 0; max-width: 34rem; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
svg { fill: currentColor; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: .9375rem; }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
tbody th { font-weight: 500; }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; }
tfoot > * > * { border-top: 2px solid var(--soft); border-bottom: 0; }
tr > :first-child { text-align: left; padding-left: 0; white-space: normal;
  min-width: 9rem; position: sticky; left: 0;
  background: var(--paper); }
.prose :is(th, td) { text-align: left; white-space: normal;
  vertical-align: top; padding: .3rem .8rem .3rem 0; min-width: 4.5rem; }
.prose :is(thead th, tr > :first-child) { position: static;
  overflow-wrap: normal; }
tbody tr:hover > * { background: var(--panel); }
small { display: block; font-weight: normal; color: var(--soft); }
i { color: var(--soft); font-style: normal; }
label { display: inline-flex; align-items: center; gap: .5rem;
  cursor: pointer; }
label input { flex: none; width: 1.05rem; height: 1.05rem; margin: .2rem;
  accent-color: var(--link); }
label svg { flex: none; width: 2.6rem; height: .75rem; }
button { font: inherit; font-size: .875rem; color: var(--link); cursor: pointer;
  background: var(--panel); border: 1px solid var(--line);
  border-radius: .3rem; padding: .25rem .7rem; }
pre, code { font: .8125rem/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; background: var(--panel); padding: .8rem 1rem;
  border-radius: .3rem; }
@media (max-width: 40rem) { label { flex-wrap: wrap; }
  label span { flex-basis: 100%; } }
@media print { body { max-width: none; padding: 0; } button, input,
  .downloads { display: none; } .scroll { overflow: visible; }
  tr > :first-child { position: static; }
  h2, h3, .note { break-after: avoid; } tfoot { display: table-row-group; } }
"""


class Html(str):
  """Text that is HTML; all other text is escaped."""

  __slots__ = ()


def document(title: str, *body: Any, runs: int = 0) -> str:
  """Returns an HTML page; `runs` is the number of rows of its `legend`."""
  rules = []
  for n in range(runs):
    at = f':root:has(tr:hover #run-{n}:checked, #run-{n}:checked:focus-visible)'
    off = f':root:has(#run-{n}:not(:checked))'
    rules += [
      f'{off} [data-run="{n}"] {{ display: none; }}',
      f'@media (hover: hover) {{ {at} [data-run]:not([data-run="{n}"]) '
      '{ opacity: .15; } }',
    ]
  return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{_STYLE}{chr(10).join(rules)}</style>
<main>
<h1>{html.escape(title)}</h1>
{chr(10).join(body)}
</main>
</html>
"""


def element(tag: str, *content: Any, **attributes: Any) -> str:
  """Returns an HTML element that contains text or Html.

  Attributes that are None are left out. In attribute names, a final `_` is
  removed, and `_` becomes `-`.
  """
  given = ''.join(
    f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
    for name, value in attributes.items()
    if value is not None
  )
  inside = ''.join(
    part if isinstance(part, Html) else html.escape(str(part))
    for part in content
  )
  return Html(f'<{tag}{given}>{inside}</{tag}>')


def listing(lines: Iterable[Any], title: str = '', **attributes: Any) -> str:
  """Returns a bulleted list below a title; '' if there are no lines."""
  items = [element('li', line) for line in lines]
  above = element('p', title) if title else ''
  return Html(above + element('ul', *items, **attributes) if items else '')


def table(
  head: Sequence[Any],
  rows: Iterable[Sequence[Any]],
  *,
  foot: Sequence[Any] | None = None,
  caption: Any = None,
  class_: str | None = None,
) -> str:
  """Returns a table, with a caption above it.

  The first cell of a row, or of the footer `foot`, is its header. `class_` is
  'prose' if cells are text rather than numbers.
  """

  def line(cells: Sequence[Any]) -> str:
    name, *values = cells
    cells = [element('td', value) for value in values]
    return element('tr', element('th', name, scope='row'), *cells)

  columns = [element('th', one, scope='col') for one in head]
  parts = [
    element('thead', element('tr', *columns)),
    element('tbody', *map(line, rows)),
  ]
  if foot:
    parts.append(element('tfoot', line(foot)))
  # A focusable element scrolls by keyboard. The caption does not scroll.
  scrolled = element(
    'div',
    element('table', *parts, class_=class_),
    class_='scroll',
    tabindex=0,
    role='region',
    aria_label=caption or f'table by {head[0]}',
  )
  above = element('p', caption, class_='note') if caption else ''
  return Html(above + scrolled)


def legend(
  head: Sequence[Any], names: Sequence[str], columns: Any, caption: str
) -> str:
  """Returns a table of runs with checkboxes that show or hide curves.

  The first column has `names`; `head` and `columns` define the other columns.
  """
  rows = []
  for n, (name, *cells) in enumerate(zip(names, *columns, strict=True)):
    box = Html(f'<input type="checkbox" id="run-{n}" checked>')
    swatch = Html(figures.swatch(n))
    label = element('label', box, swatch, element('span', name))
    rows.append([label, *cells])
  return element(
    'form',
    table(
      ['run', *head], rows, caption=f'{caption} The boxes show and hide curves.'
    ),
    element('button', 'Show all curves', type='reset'),
    autocomplete='off',
  )


def best_marked(
  values: Sequence[Any], text: Callable[[Any], str], better: Any = min
) -> list[str]:
  """Returns table cells of `values`, with all cells of the best value in bold.

  `text` formats a number; None becomes a dash. Numbers with the same text are
  equal. `better` is min or max.
  """
  known = [value for value in values if value is not None]
  best = text(better(known)) if len(known) > 1 else None
  cells = []
  for value in values:
    cell = element('i', '–') if value is None else text(value)
    cells.append(element('strong', cell) if cell == best else cell)
  return cells


def picture(path: Any, alt: str) -> str:
  """Returns an image element with an embedded PNG file."""
  data = base64.b64encode(path.read_bytes()).decode()
  return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}">'


def figure(svg: str, *caption: Any) -> str:
  """Returns a figure with a caption."""
  return element('figure', Html(svg), element('figcaption', *caption))


def download(name: str, text: str) -> str:
  """Returns a link that downloads text as the file `name`, .json or .csv."""
  kind = {'json': 'application/json', 'csv': 'text/csv'}[name.split('.')[-1]]
  data = base64.b64encode(text.encode()).decode()
  href = f'data:{kind};base64,{data}'
  return element('a', f'Download {name}', download=name, href=href)


def appendix(
  config: dict[str, Any],
  defaults: dict[str, Any],
  facts: dict[str, Any],
  files: dict[str, str],
  folder: Any,
) -> Iterator[str]:
  """Yields the last sections: configuration, environment and downloads.

  Args:
    config: the config; `paper` and the fields of runs are not in the table.
    defaults: the default config; {} if there is none.
    facts: nested dict of versions, hardware and data.
    files: text of the files to download, by name.
    folder: the workdir.
  """
  config = {key: value for key, value in config.items() if key != 'paper'}
  theirs = dict(_leaves(defaults))
  rows = [
    (key, _shown(value), *([_shown(theirs.get(key))] if theirs else ()))
    for key, value in _leaves(config)
    if value != theirs.get(key, ...) and key not in _OF_RUNS
  ]
  yield element('h2', 'Configuration')
  yield table(
    ('setting', 'value', 'default') if theirs else ('setting', 'value'),
    rows,
    caption='Differences from the defaults' if theirs else None,
    class_='prose',
  )
  yield element(
    'details',
    element('summary', 'The whole configuration'),
    element('pre', json.dumps(config, indent=1)),
  )
  rows = [
    (key.replace('.', ' '), _shown(value))
    for key, value in _leaves(facts)
    if value not in (None, [])
  ]
  yield element('h2', 'Environment')
  yield table(('item', 'value'), rows, class_='prose')
  yield element('h2', 'Data')
  yield listing(itertools.starmap(download, files.items()), class_='downloads')
  yield element('p', 'To create this page from results.json:')
  command = f'lengen report --workdir={shlex.quote(str(folder))}'
  yield element('pre', command)


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
