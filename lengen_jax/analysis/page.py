"""HTML pages without scripts or external files."""

import base64
from collections.abc import Iterable, Sequence
import html
import json
from typing import Any

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


def document(title: str, *body: Any, style: str = '') -> str:
  """Returns an HTML page.

  Args:
    title: title of the page.
    *body: HTML elements.
    style: additional CSS.
  """
  return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{_STYLE}{style}</style>
<main>
<h1>{html.escape(title)}</h1>
{chr(10).join(body)}
</main>
</html>
"""


def element(tag: str, *content: Any, **attributes: Any) -> str:
  """Returns an HTML element.

  Args:
    tag: name of the element.
    *content: text or Html.
    **attributes: attributes that are not None. `_` in a name stands for `-`,
      and a final `_` is removed.
  """
  given = ''.join(
    f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
    for name, value in attributes.items()
    if value is not None
  )
  return Html(f'<{tag}{given}>{"".join(map(_text, content))}</{tag}>')


def heading(text: Any, level: int = 2) -> str:
  """Returns a heading."""
  return element(f'h{level}', text)


def paragraph(*content: Any, class_: str | None = None) -> str:
  """Returns a paragraph."""
  return element('p', *content, class_=class_)


def listing(lines: Iterable[Any]) -> str:
  """Returns a bulleted list."""
  return element('ul', *(element('li', line) for line in lines))


def table(
  head: Sequence[Any],
  rows: Any,
  *,
  foot: Sequence[Any] | None = None,
  caption: Any = None,
  class_: str | None = None,
) -> str:
  """Returns a table.

  Args:
    head: names of the columns.
    rows: lists of cells; the first cell is the header of the row.
    foot: cells of the footer.
    caption: text above the table.
    class_: 'prose' if cells are text rather than numbers.
  """
  columns = [element('th', one, scope='col') for one in head]
  parts = [
    element('thead', element('tr', *columns)),
    element('tbody', *map(_row, rows)),
  ]
  if foot:
    parts.append(element('tfoot', _row(foot)))
  # A focusable element scrolls by keyboard. The caption does not scroll.
  scrolled = element(
    'div',
    element('table', *parts, class_=class_),
    class_='scroll',
    tabindex=0,
    role='region',
    aria_label=caption or f'table by {head[0]}',
  )
  return Html(
    paragraph(caption, class_='note') + scrolled if caption else scrolled
  )


def picture(path: Any, alt: str) -> str:
  """Returns an image element with a PNG file inside."""
  data = base64.b64encode(path.read_bytes()).decode()
  return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}">'


def figure(svg: str, *caption: Any) -> str:
  """Returns a figure with a caption."""
  return element('figure', Html(svg), element('figcaption', *caption))


def beside(*figures: Any) -> str:
  """Returns figures side by side if the page is wide enough."""
  return element('div', *figures, class_='figures')


def details(summary: str, *content: Any) -> str:
  """Returns content that is hidden until its summary is clicked."""
  return element('details', element('summary', summary), *content)


def preformatted(value: Any) -> str:
  """Returns a value as formatted JSON."""
  return element('pre', json.dumps(value, indent=1))


def download(name: str, text: Any) -> str:
  """Returns a link that downloads text as the file `name`, .json or .csv."""
  kind = {'json': 'application/json', 'csv': 'text/csv'}[name.split('.')[-1]]
  data = base64.b64encode(text.encode()).decode()
  href = f'data:{kind};base64,{data}'
  return element('a', f'Download {name}', download=name, href=href)


def _row(cells: Sequence[Any]) -> str:
  name, *values = cells
  row = element('th', name, scope='row')
  return element('tr', row, *(element('td', value) for value in values))


def _text(content: Any) -> str:
  return content if isinstance(content, Html) else html.escape(str(content))
