"""Draws the pictures of these pages: python -m docs.draw

SVG, written by hand: matplotlib's changes from version to version, and a test
holds the pictures in the repository to what is drawn here. Curves of figures
are drawn from where these are on record, in `benchmarks/results` or in a page's
table.
"""

import functools
import json
import math
import pathlib
import re
import sys

import jax
import jax.numpy as jnp

from lengen_jax import positions

_DOCS = pathlib.Path(__file__).parent
_RESULTS = _DOCS.parent / 'benchmarks' / 'results'
PICTURES = _DOCS / 'pictures'

# Okabe and Ito's, which the colour-blind can tell apart.
_BLUE, _RED, _GREEN, _PINK, _GOLD, _GRAY = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#999999',
)
_INK, _PALE = '#222222', '#E8EEF4'


class _Picture:
  """Shapes on a white card, so that they are legible on any background."""

  def __init__(self, width, height, title):
    self._size = (width, height)
    self._shapes = [f'<title>{title}</title>']
    self.box(0.5, 0.5, width - 1, height - 1, 'white', '#D0D0D0', radius=6)

  def box(self, x, y, width, height, fill, line='none', *, radius=0, wide=1):
    """A rectangle."""
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

  def line(self, points, color=_INK, *, wide=1.5, dashes='none', arrow=False):
    """A line through points; an arrow head at its end is a small triangle."""
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
    """A disc."""
    self._add('circle', cx=x, cy=y, r=radius, fill=color)

  def text(self, x, y, words, *, size=13, color=_INK, at='start', bold=False):
    """A line of text on the base line y; `code` in backquotes."""
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
    """Writes the file."""
    width, height = self._size
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


def _shade(part, color=_BLUE):
  """A colour between white, at 0, and `color`, at 1."""
  rgb = (int(color[n : n + 2], 16) for n in (1, 3, 5))
  mixed = (round(255 + part * (value - 255)) for value in rgb)
  return '#' + ''.join(f'{value:02X}' for value in mixed)


def _positions():
  """Index, scheme, positions, layers."""
  p = _Picture(760, 250, 'Positions are made once and handed to every layer')
  tokens = ('To', 'be', 'or', 'not', 'to', 'be')
  drawn = (4, 19, 23, 58, 71, 90)
  rows = (
    ('tokens', tokens, 50),
    ('index', range(6), 96),
    ('positions', drawn, 188),
  )
  for label, values, y in rows:
    p.text(24, y + 5, label, bold=label == 'positions')
    for n, value in enumerate(values):
      x = 110 + 44 * n
      fill = _shade(0.25 + 0.75 * value / 100, _GOLD) if y == 188 else _PALE
      p.box(x, y - 16, 40, 30, fill, radius=4)
      p.text(x + 20, y + 4, str(value), at='middle')
  p.line([(130, 114), (130, 166)], arrow=True)
  p.text(144, 136, 'a position scheme, once per batch', color=_RED, bold=True)
  p.text(144, 155, '`randomized(max_position=100)`', size=12)
  p.text(110, 225, 'an array [B, L], handed down as an argument', size=12)
  p.line([(378, 187), (440, 187)])
  for n, name in enumerate(('input', 'layer 0', 'layer 1', 'layer N')):
    y = (22, 68, 114, 186)[n]
    p.line([(440, 187), (440, y + 17), (468, y + 17)], arrow=True)
    p.box(470, y, 262, 36, _PALE, radius=4)
    p.text(482, y + 23, name, bold=True)
    hook = '`embed(x, p)`' if n == 0 else '`rotate`, `bias(p, p)`'
    p.text(550, y + 23, f'encoding: {hook}', size=12)
  p.text(601, 173, '⋮', at='middle')
  return p


def _schemes():
  """Where 16 tokens come to stand."""
  n, train, limit = 16, 8, 64
  index = jnp.arange(n)[None]
  rows = (
    ('standard', 'the index'),
    (f'interpolated(train_length={train})', 'squeezed into 8'),
    ('randomized(max_position=64)', 'a sorted sample'),
    ('shape(max_shift=32)', 'shifted'),
    (f'head_warp(train_length={train}, alpha=0.7, fraction=1.)', 'slowed down'),
    (
      f"tail_warp(train_length={train}, skew='sqrt', fraction=1.)",
      'fast, then slow',
    ),
    ('equal_mean', 'stretched to a random end'),
  )
  p = _Picture(760, 60 + 44 * len(rows), 'Positions of 16 tokens by scheme')

  def x(position):
    return 210 + 530.0 * position / limit

  for number, (spec, what) in enumerate(rows):
    y = 40 + 44 * number
    found = positions.create(spec)(
      index,
      lengths=jnp.array([[n]]),
      rng=jax.random.key(3),
      train=True,
    )
    p.text(24, y - 2, f'`{spec.partition("(")[0]}`', bold=True)
    p.text(24, y + 14, what, size=12, color='#555555')
    p.line([(x(0), y), (x(limit), y)], '#CCCCCC', wide=1)
    for token, position in enumerate(found[0].tolist()):
      color = _shade(0.3 + 0.7 * token / (n - 1))
      p.dot(x(position), y, color, 4)
  y = 36 + 44 * len(rows)
  for position in range(0, limit + 1, 8):
    p.text(x(position), y, str(position), size=11, at='middle', color='#555555')
  return p


def _windows():
  """What is scored, by two constructions."""
  p = _Picture(760, 336, 'The same tokens at every length, and not the same')
  documents = (8, 3, 9)
  cell, gap = 15.0, 12

  def draw(y, title, scored):
    p.text(24, y, title, bold=True)
    for row, length in enumerate((2, 4, 8)):
      top, left = y + 16 + 36 * row, 130.0
      p.text(118, top + 15, f'length {length}', size=12, at='end')
      for size in documents:
        for n in range(size):
          is_scored = scored(size, length, n)
          # Beginnings are hard.
          fill = _shade(1 - 0.75 * n / 9) if is_scored else '#F0F0F0'
          p.box(left + cell * n, top, cell - 1, 20, fill)
          if is_scored:
            edges = [n] * (n % length == 0) + [n + 1] * ((n + 1) % length == 0)
            for edge in edges:
              x = left + cell * edge - 0.5
              p.line([(x, top - 4), (x, top + 24)], _RED)
        left += cell * size + gap

  def beginning(size, length, n):
    return n < length <= size

  def recut(size, length, n):
    del length
    return n < size // 8 * 8

  draw(
    30,
    'The beginning of each document: other tokens at every length',
    beginning,
  )
  draw(188, 'Windows of the longest length, cut again: the same tokens', recut)
  x, y = 500, 76
  p.text(x, y, 'dark: hard to guess, as', size=12)
  p.text(x, y + 17, 'beginnings of documents are', size=12)
  p.text(x, y + 34, 'gray: not scored', size=12, color='#555555')
  p.text(x, y + 51, 'red: ends of windows', size=12, color=_RED)
  p.text(x, 252, 'what differs is the context', size=12)
  p.text(x, 269, 'alone', size=12)
  return p


def _curves():
  """The table of curves.md."""
  rows = re.findall(
    r'^\| `([\w ]+)` \|((?: [\d.]+ \|){5})',
    (_DOCS / 'curves.md').read_text(),
    re.M,
  )
  lengths = (512, 1024, 2048, 4096, 8192)
  lines = {
    name: dict(
      zip(lengths, map(float, values.strip(' |').split('|')), strict=True)
    )
    for name, values in rows
  }
  p = _Picture(760, 330, 'Loss of a model without context, by construction')
  _chart(
    p,
    lines,
    y_range=(2.35, 2.95),
    y_ticks=(2.4, 2.5, 2.6, 2.7, 2.8, 2.9),
    title='nats per byte, of a model that sees one byte',
    below='length of the windows',
  )
  return p


def _memory():
  """What attention needs on a TPU v4, by its compiler."""
  found = json.loads((_RESULTS / 'attention_memory.json').read_text())
  names = {
    'naive': 'all pairs in memory',
    'anchored': 'blockwise, anchored',
    'blockwise': 'blockwise',
  }
  lines = {
    label: {int(k): v for k, v in found['mib_on_v4_chip'][name].items()}
    for name, label in names.items()
  }
  p = _Picture(760, 340, 'Memory of attention with FIRE on a TPU v4')
  _chart(
    p,
    lines,
    y_range=(5, 8e6),
    y_ticks=(10.24, 1024, 102400),
    tick=lambda mib: f'{mib / 1024:g} GiB',
    log=True,
    title='temporary memory, forward and backward',
    below='tokens',
    limit=(32 * 1024, 'a chip has 32 GiB'),
  )
  return p


def _cost():
  """Instructions of kernels with a bias over those without."""
  found = json.loads((_RESULTS / 'attention_tpu_static.json').read_text())
  ratios = found['cells']['v5e, heads of 64']['ratios']
  names = {
    'FIRE, early': 'FIRE, queries 1024 to 2048',
    'FIRE': 'FIRE, queries from 4096 on',
    'ALiBi': 'a bias of distance alone',
    'none': 'no bias',
  }
  lines = {
    label: {int(k): v for k, v in ratios[name]['all'].items() if k != 'fits'}
    for name, label in names.items()
  }
  p = _Picture(
    760, 320, 'Instructions of a TPU kernel by rows that share a tile'
  )
  _chart(
    p,
    lines,
    y_range=(0.9, 2.8),
    y_ticks=(1, 1.5, 2, 2.5),
    title='instructions over those without a bias, v5e, heads of 64',
    below='rows of the batch that share a tile of the bias',
  )
  return p


def _chart(
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
  """Lines over lengths that double, each with its name at its end."""
  left, right, top, bottom = 84, 520, 52, p._size[1] - 52
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
    p.line([(left, y), (right, y)], _INK, wide=1, dashes='5 4')
    p.text(left + 6, y - 6, words, size=12)
  ends = []
  colors = (_BLUE, _RED, _GREEN, _PINK, _GOLD, _GRAY)
  for (name, values), color in zip(lines.items(), colors, strict=False):
    points = [at(*point) for point in values.items()]
    p.line(points, color, wide=2)
    for x, y in points:
      p.dot(x, y, color)
    ends.append([points[-1][1], name, color])
  # Names that would overlap move apart.
  ends.sort()
  for _ in range(100):
    for upper, lower in zip(ends, ends[1:], strict=False):
      if (over := 16 - (lower[0] - upper[0])) > 0:
        upper[0] -= over / 2
        lower[0] += over / 2
  for y, name, color in ends:
    p.text(right + 12, y + 4, name, color=color)


def _blocks():
  """Tiles of a causal attention matrix, and what is in one."""
  p = _Picture(760, 330, 'Attention goes tile by tile')
  size, left, top = 32, 60, 56
  p.text(left + 4 * size, 28, 'keys', size=12, at='middle')
  p.line([(left, 38), (left + 8 * size, 38)], arrow=True, wide=1)
  p.text(14, top + 4 * size, 'queries', size=12)
  for i in range(8):
    for j in range(8):
      x, y = left + size * j, top + size * i
      if j > i:
        p.box(x, y, size - 2, size - 2, 'white', '#DDDDDD')
      else:
        color = _RED if (i, j) == (5, 2) else _BLUE
        done = i < 5 or (i == 5 and j < 2)
        fill = _shade(0.55 if done else 0.15, _BLUE)
        p.box(x, y, size - 2, size - 2, _RED if color == _RED else fill)
  p.text(
    left + 5.2 * size, top + 1.4 * size, 'skipped', size=12, color='#777777'
  )
  p.line([(left + 3 * size, top + 5.5 * size), (386, 92)], _RED, wide=1)
  x = 390
  p.box(x, 56, 346, 250, 'white', _RED, radius=4)
  p.text(x + 16, 82, 'one tile, in the cache or on the chip', bold=True)
  for n, words in enumerate(
    (
      'logits = queries · keys',
      'bias = f(params, positions of both)',
      '  made here, from two short vectors of',
      '  positions; thrown away with the tile',
      'p = exp(logits + bias − largest so far)',
      'per query: the largest so far, the sum of',
      '  p, and the sum of p · values',
    )
  ):
    strong = words.startswith('bias') or words.startswith('  made') or n == 3
    p.text(
      x + 16 + 14 * words.startswith('  '),
      112 + 24 * n,
      words.strip(),
      color=_RED if strong else _INK,
    )
  p.text(
    x + 16, 292, 'nothing is as large as all pairs', size=12, color='#555555'
  )
  return p


def _strip():
  """From numbers by distance to a tile, and back."""
  p = _Picture(760, 300, 'A strip of numbers by distance becomes a tile')
  q = k = 5
  size, left = 30, 30

  def cell(x, y, distance, faint=False):
    part = (distance + q) / (q + k)
    fill = _shade(0.15 + 0.75 * part)
    p.box(x, y, size - 2, size - 2, '#F4F4F4' if faint else fill)
    color = '#BBBBBB' if faint else 'white' if part > 0.6 else _INK
    p.text(
      x + size / 2 - 1, y + 19, str(distance), size=12, at='middle', color=color
    )

  distances = range(q - 1, -k, -1)
  p.text(left, 30, 'one number per distance', bold=True)
  for n, distance in enumerate(distances):
    cell(left + size * n, 44, distance)
  p.text(left, 108, 'a row per query, each one further', bold=True)
  for row in range(q):
    for n, distance in enumerate(distances):
      inside = q - 1 - row <= n < q - 1 - row + k
      cell(left + size * n, 122 + size * row, distance, not inside)
  p.line([(left + 9 * size + 14, 197), (410, 197)], arrow=True)
  p.line([(left + 132, 78), (left + 132, 92)], arrow=True)
  p.text(430, 108, 'the tile', bold=True)
  for row in range(q):
    for column in range(k):
      cell(430 + size * column, 122 + size * row, row - column)
  x = 600
  for n, words in enumerate(
    (
      '5 + 5 − 1 numbers',
      'instead of 5 · 5;',
      '',
      'of 512 by 512,',
      '1023 instead',
      'of 262,144',
    )
  ):
    p.text(x, 136 + 19 * n, words, size=12)
  p.text(430, 44, 'and backward: the gradient of a number', size=12, color=_RED)
  p.text(430, 61, 'is the sum along its diagonal', size=12, color=_RED)
  return p


def _anchors():
  """FIRE between two anchors."""
  p = _Picture(760, 300, "FIRE's bias between two anchored queries")
  fire = functools.partial(_fire_bias, c=0.1, threshold=512.0)
  low, high = 0, 2048
  left, right, top, bottom = 70, 470, 56, 250

  def at(distance, value):
    return (
      left + (right - left) * distance / high,
      bottom - (bottom - top) * value,
    )

  p.text(24, 28, "what FIRE's MLP is given, for three queries", bold=True)
  p.line([(left, top), (left, bottom), (right, bottom)], wide=1)
  p.text((left + right) / 2, 282, 'distance', size=12, at='middle')
  for value in (0, 1):
    _, y = at(0, value)
    p.text(left - 8, y + 4, str(value), size=11, at='end', color='#555555')
  for distance in (0, 512, 1024, 2048):
    x, _ = at(distance, 0)
    p.text(x, bottom + 16, str(distance), size=11, at='middle', color='#555555')
  for position, color, dashes in (
    (1024, _BLUE, 'none'),
    (1536, _GRAY, '4 3'),
    (2048, _RED, 'none'),
  ):
    reach = [d for d in range(low, position + 1, 16)]
    points = [at(d, fire(d, position)) for d in reach]
    p.line(points, color, wide=2, dashes=dashes)
    x, y = points[-1]
    p.dot(x, y, color)
  for n, (words, color) in enumerate(
    (
      ('query 1024, an anchor', _BLUE),
      ('query 1536, between', '#777777'),
      ('query 2048, an anchor', _RED),
    )
  ):
    p.text(490, 96 + 22 * n, words, color=color)
  for n, words in enumerate(
    (
      'between anchors, at each distance:',
      'row = (1 − w) · before + w · after,',
      'w from 0 to 1 along the queries',
      '(anchors are far closer than here)',
    )
  ):
    p.text(490, 178 + 20 * n, words, size=12)
  return p


def _fire_bias(distance, position, *, c, threshold):
  """FIRE's input to its MLP, which is a bias for an MLP that keeps it."""
  return math.log(c * distance + 1) / math.log(c * max(position, threshold) + 1)


def _shared():
  """A tile of the bias that serves several rows of the batch."""
  p = _Picture(760, 260, 'A tile of the bias is made once for several rows')
  p.box(40, 70, 130, 70, _shade(0.35, _GOLD), radius=4)
  p.text(105, 100, 'rows by distance', size=12, at='middle')
  p.text(105, 118, '(made by XLA)', size=12, at='middle')
  p.line([(170, 105), (226, 105)], arrow=True)
  p.box(230, 60, 96, 90, _GOLD, radius=4)
  p.text(278, 100, 'tile of', at='middle')
  p.text(278, 118, 'the bias', at='middle')
  p.text(278, 172, 'once, into the', size=12, at='middle')
  p.text(278, 188, "chip's memory", size=12, at='middle')
  p.text(424, 24, 'rows of the batch', size=12)
  for n in range(4):
    y = 34 + 50 * n
    p.line([(326, 105), (420, y + 18)], _GOLD, arrow=True)
    p.box(424, y, 300, 36, _PALE, radius=4)
    name = ('row 0', 'row 1', 'row 2', 'row 7')[n]
    p.text(436, y + 23, name, bold=True)
    p.text(492, y + 23, 'q · k + bias, softmax, · v', size=12)
  p.text(574, 181, '⋮', at='middle')
  p.text(
    424, 244, 'the rest of a tile is per row, as ever', size=12, color='#555555'
  )
  return p


_ALL = {
  'positions': _positions,
  'schemes': _schemes,
  'windows': _windows,
  'curves': _curves,
  'blocks': _blocks,
  'strip': _strip,
  'anchors': _anchors,
  'shared': _shared,
  'cost': _cost,
  'memory': _memory,
}


def draw(folder):
  """Writes all pictures into a folder; returns their paths."""
  folder.mkdir(parents=True, exist_ok=True)
  paths = []
  for name, picture in _ALL.items():
    paths.append(folder / f'{name}.svg')
    picture().write(paths[-1])
  return paths


if __name__ == '__main__':
  for path in draw(PICTURES):
    print(f'wrote {path}', file=sys.stderr)
