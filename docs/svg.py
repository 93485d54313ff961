"""Pictures in SVG: shapes on a card, and line charts.

The bytes do not depend on versions of a plotting library, so that a test can
compare the pictures in the repository with new ones.
"""

import math
import re

# The color-blind safe palette of Okabe and Ito.
BLUE, RED, GREEN, PINK, GOLD, GRAY = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#999999',
)
INK, PALE = '#222222', '#E8EEF4'


class Picture:
  """A white card with shapes, legible on any background."""

  def __init__(self, width, height, title):
    self.width, self.height = width, height
    self._shapes = [f'<title>{title}</title>']
    self.box(0.5, 0.5, width - 1, height - 1, 'white', '#D0D0D0', radius=6)

  def box(self, x, y, width, height, fill, line='none', *, radius=0, wide=1):
    """Adds a rectangle."""
    self._add(
      'rect',
      x=x,
      y=y,
      width=width,
      height=height,
      rx=radius,
      fill=fill,
      stroke=line,
      stroke_width=wide,
    )

  def line(self, points, color=INK, *, wide=1.5, dashes='none', arrow=False):
    """Adds a line through points, with an arrow head at its end if `arrow`."""
    where = ' '.join(f'{_number(x)},{_number(y)}' for x, y in points)
    self._add(
      'polyline',
      points=where,
      fill='none',
      stroke=color,
      stroke_width=wide,
      stroke_dasharray=dashes,
      stroke_linejoin='round',
    )
    if arrow:
      (a, b), (x, y) = points[-2:]
      turn = math.atan2(y - b, x - a)
      corners = [
        (x + 7 * math.cos(turn + by), y + 7 * math.sin(turn + by))
        for by in (math.pi - 0.45, math.pi + 0.45)
      ]
      where = ' '.join(
        f'{_number(p)},{_number(q)}' for p, q in [(x, y), *corners]
      )
      self._add('polygon', points=where, fill=color)

  def dot(self, x, y, color, radius=3.2):
    """Adds a disc."""
    self._add('circle', cx=x, cy=y, r=radius, fill=color)

  def text(self, x, y, words, *, size=13, color=INK, at='start', bold=False):
    """Adds a line of text on the base line y, with `code` in backquotes."""
    parts = []
    for number, part in enumerate(re.split('`', words)):
      part = part.replace('&', '&amp;').replace('<', '&lt;')
      if number % 2:
        part = f'<tspan font-family="monospace">{part}</tspan>'
      parts.append(part)
    self._add(
      'text',
      ''.join(parts),
      x=x,
      y=y,
      font_size=size,
      fill=color,
      text_anchor=at,
      font_weight='bold' if bold else 'normal',
    )

  def write(self, path):
    """Writes the SVG file."""
    width, height = self.width, self.height
    path.write_text(
      f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
      f'width="{width}" height="{height}" '
      'font-family="Helvetica, Arial, sans-serif">\n'
      + '\n'.join(self._shapes)
      + '\n</svg>\n'
    )

  def _add(self, tag, content=None, **values):
    words = ' '.join(
      f'{key.replace("_", "-")}="{_number(value)}"'
      for key, value in values.items()
      if value not in ('none', 'normal', 'start', 0)
      or key in ('fill', 'x', 'y')
    )
    end = '/>' if content is None else f'>{content}</{tag}>'
    self._shapes.append(f'<{tag} {words}{end}')


def _number(value):
  return f'{value:.1f}'.removesuffix('.0') if type(value) is float else value


def shade(part, color=BLUE):
  """Returns the color between white, at 0, and `color`, at 1."""
  rgb = (int(color[n : n + 2], 16) for n in (1, 3, 5))
  mixed = (round(255 + part * (value - 255)) for value in rgb)
  return '#' + ''.join(f'{value:02X}' for value in mixed)


def chart(
  p,
  lines,
  *,
  y_range,
  y_ticks,
  title,
  below,
  log=False,
  tick=str,
  limit=None,
):
  """Adds a chart of lines over lengths that double, labelled at their ends."""
  left, right, top, bottom = 84, 520, 52, p.height - 52
  xs = [*next(iter(lines.values()))]
  scale = math.log if log else float
  low, high = map(scale, y_range)

  def at(length, value):
    along = math.log(length / xs[0]) / math.log(xs[-1] / xs[0])
    up = (scale(value) - low) / (high - low)
    return left + (right - left) * along, bottom - (bottom - top) * up

  p.text(24, 28, title, bold=True)
  for value in y_ticks:
    _, y = at(xs[0], value)
    p.line([(left, y), (right, y)], '#E4E4E4', wide=1)
    p.text(left - 8, y + 4, tick(value), size=11, at='end', color='#555555')
  for length in xs:
    x, _ = at(length, y_ticks[0])
    p.text(x, bottom + 18, f'{length:,}', size=11, at='middle', color='#555555')
  p.text((left + right) / 2, bottom + 38, below, size=12, at='middle')
  if limit:
    value, words = limit
    _, y = at(xs[0], value)
    p.line([(left, y), (right, y)], INK, wide=1, dashes='5 4')
    p.text(left + 6, y - 6, words, size=12)
  ends = []
  colors = (BLUE, RED, GREEN, PINK, GOLD, GRAY)
  for (name, values), color in zip(lines.items(), colors, strict=False):
    points = [at(*point) for point in values.items()]
    p.line(points, color, wide=2)
    for x, y in points:
      p.dot(x, y, color)
    ends.append([points[-1][1], name, color])
  # Labels that would overlap move apart.
  ends.sort()
  for _ in range(100):
    for upper, lower in zip(ends, ends[1:], strict=False):
      if (over := 16 - (lower[0] - upper[0])) > 0:
        upper[0] -= over / 2
        lower[0] += over / 2
  for y, name, color in ends:
    p.text(right + 12, y + 4, name, color=color)
