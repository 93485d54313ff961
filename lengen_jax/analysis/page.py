"""Pages that need nothing else: no script, no link, pictures inside."""

import base64
import html
import json

_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; color: #222; }
img { max-width: 100%; height: auto; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right;
  border-bottom: 1px solid #ddd; white-space: nowrap; }
tr > th:first-child { text-align: left; }
pre { overflow-x: auto; background: #f6f6f6; padding: 1rem;
  font-size: 13px; }
"""


def document(title, *body):
  """A page of parts that the other functions here make."""
  return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{_STYLE}</style>
<h1>{html.escape(title)}</h1>
{chr(10).join(body)}
</html>
"""


def heading(text):
  """A heading within the page."""
  return f'<h2>{html.escape(text)}</h2>'


def paragraph(text):
  """A paragraph."""
  return f'<p>{html.escape(text)}</p>'


def listing(lines):
  """Lines, each with a dot."""
  items = ''.join(f'<li>{html.escape(line)}</li>' for line in lines)
  return f'<ul>{items}</ul>'


def table(head, rows):
  """A table; the first cell of each row names it."""
  cells = ''.join(f'<th>{html.escape(str(one))}</th>' for one in head)
  lines = [f'<tr>{cells}</tr>']
  for name, *values in rows:
    cells = ''.join(f'<td>{html.escape(str(value))}</td>' for value in values)
    lines.append(f'<tr><th>{html.escape(name)}</th>{cells}</tr>')
  return '<div><table>\n' + '\n'.join(lines) + '</table></div>'


def picture(path, alt):
  """A PNG."""
  data = base64.b64encode(path.read_bytes()).decode()
  return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}">'


def preformatted(value):
  """JSON, as it stands."""
  return f'<pre>{html.escape(json.dumps(value, indent=1))}</pre>'


def download(name, value):
  """A link that saves JSON under a name."""
  data = base64.b64encode(json.dumps(value).encode()).decode()
  return (
    f'<p><a download="{html.escape(name)}" '
    f'href="data:application/json;base64,{data}">Download {html.escape(name)}'
    '</a></p>'
  )
