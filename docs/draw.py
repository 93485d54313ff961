"""Draws the pictures of the documentation: `python -m docs.draw`

Charts show numbers from `benchmarks/results` or from the table of a page.
"""

import functools
import json
import math
import pathlib
import re
import sys

import jax
import jax.numpy as jnp

from docs import svg
from docs.svg import BLUE, GOLD, GRAY, INK, PALE, RED
from lengen_jax import positions

_DOCS = pathlib.Path(__file__).parent
_RESULTS = _DOCS.parent / 'benchmarks' / 'results'
PICTURES = _DOCS / 'pictures'


def _positions():
  """Returns the picture of positions from the index to the layers."""
  p = svg.Picture(760, 250, 'Positions are made once and handed to every layer')
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
      fill = svg.shade(0.25 + 0.75 * value / 100, GOLD) if y == 188 else PALE
      p.box(x, y - 16, 40, 30, fill, radius=4)
      p.text(x + 20, y + 4, str(value), at='middle')
  p.line([(130, 114), (130, 166)], arrow=True)
  p.text(144, 136, 'a position scheme, once per batch', color=RED, bold=True)
  p.text(144, 155, '`randomized(max_position=100)`', size=12)
  p.text(110, 225, 'an array [B, L], handed down as an argument', size=12)
  p.line([(378, 187), (440, 187)])
  for n, name in enumerate(('input', 'layer 0', 'layer 1', 'layer N')):
    y = (22, 68, 114, 186)[n]
    p.line([(440, 187), (440, y + 17), (468, y + 17)], arrow=True)
    p.box(470, y, 262, 36, PALE, radius=4)
    p.text(482, y + 23, name, bold=True)
    hook = '`embed(x, p)`' if n == 0 else '`rotate`, `bias(p, p)`'
    p.text(550, y + 23, f'encoding: {hook}', size=12)
  p.text(601, 173, '⋮', at='middle')
  return p


def _schemes():
  """Returns the picture of the positions of 16 tokens by scheme."""
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
  p = svg.Picture(760, 60 + 44 * len(rows), 'Positions of 16 tokens by scheme')

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
      color = svg.shade(0.3 + 0.7 * token / (n - 1))
      p.dot(x(position), y, color, 4)
  y = 36 + 44 * len(rows)
  for position in range(0, limit + 1, 8):
    p.text(x(position), y, str(position), size=11, at='middle', color='#555555')
  return p


def _windows():
  """Returns the picture of the scored tokens for two kinds of windows."""
  p = svg.Picture(760, 336, 'The same tokens at every length, and not the same')
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
          # Tokens at the beginning of a document are dark: their loss is high.
          fill = svg.shade(1 - 0.75 * n / 9) if is_scored else '#F0F0F0'
          p.box(left + cell * n, top, cell - 1, 20, fill)
          if is_scored:
            edges = [n] * (n % length == 0) + [n + 1] * ((n + 1) % length == 0)
            for edge in edges:
              x = left + cell * edge - 0.5
              p.line([(x, top - 4), (x, top + 24)], RED)
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
  p.text(x, y + 51, 'red: ends of windows', size=12, color=RED)
  p.text(x, 252, 'what differs is the context', size=12)
  p.text(x, 269, 'alone', size=12)
  return p


def _losses(page, lengths):
  """Returns {name: {length: loss}} of the rows of the table on a page."""
  losses = r'(?: [\d.]+ \|)' * len(lengths)
  rows = re.findall(
    rf'^\| (.+?) \|({losses})', (_DOCS / page).read_text(), re.M
  )
  return {
    name: dict(
      zip(lengths, map(float, values.strip(' |').split('|')), strict=True)
    )
    for name, values in rows
  }


def _curves():
  """Returns the chart of the losses in the table of curves.md."""
  found = _losses('curves.md', (512, 1024, 2048, 4096, 8192))
  lines = {name.strip('`'): losses for name, losses in found.items()}
  p = svg.Picture(760, 330, 'Loss of a model without context, by construction')
  svg.chart(
    p,
    lines,
    y_range=(2.35, 2.95),
    y_ticks=(2.4, 2.5, 2.6, 2.7, 2.8, 2.9),
    title='nats per byte, of a model that sees one byte',
    below='length of the windows',
  )
  return p


def _extend():
  """Returns the chart of losses in the table of extend_rope.md."""
  names = {
    '`rope`': 'RoPE as trained',
    '`rope(scale=16.)` (PI)': 'PI',
    '`yarn(scale=16.)`': 'YaRN',
    '`rerope(window=64)`': 'ReRoPE',
    'YaRN, finetuned': 'YaRN, finetuned',
    'DroPE, 40 steps': 'DroPE',
  }
  found = _losses('extend_rope.md', (128, 256, 512, 1024, 2048))
  lines = {label: found[name] for name, label in names.items()}
  p = svg.Picture(760, 360, 'Loss by length, of one model with RoPE')
  svg.chart(
    p,
    lines,
    y_range=(1.5, 3.05),
    y_ticks=(1.6, 2.0, 2.4, 2.8),
    title='nats per byte, of a model trained on 128 bytes',
    below='length in bytes',
  )
  return p


def _memory():
  """Returns the chart of the memory of attention on a TPU v4.

  The memory is that of XLA's memory analysis.
  """
  found = json.loads((_RESULTS / 'attention_memory.json').read_text())
  names = {
    'naive': 'all pairs in memory',
    'anchored': 'blockwise, anchored',
    'blockwise': 'blockwise',
  }
  lines = {
    label: {int(k): v for k, v in found['cells']['chip']['mib'][name].items()}
    for name, label in names.items()
  }
  p = svg.Picture(760, 340, 'Memory of attention with FIRE on a TPU v4')
  svg.chart(
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
  """Returns the chart of instructions with a bias over those without one."""
  found = json.loads((_RESULTS / 'attention_tpu_static.json').read_text())
  ratios = found['cells']['v5e, heads of 64']['ratios']
  names = {
    'FIRE, early': 'FIRE, queries 1024 to 2048',
    'FIRE': 'FIRE, queries from 2048 on',
    'ALiBi': 'a bias of distance alone',
    'none': 'no bias',
  }
  lines = {
    label: {int(k): v for k, v in ratios[name]['all'].items() if k != 'fits'}
    for name, label in names.items()
  }
  p = svg.Picture(
    760, 320, 'Instructions of a TPU kernel by rows that share a tile'
  )
  svg.chart(
    p,
    lines,
    y_range=(0.9, 2.8),
    y_ticks=(1, 1.5, 2, 2.5),
    title='instructions over those without a bias, v5e, heads of 64',
    below='rows of the batch that share a tile of the bias',
  )
  return p


def _blocks():
  """Returns the picture of the tiles of causal attention, and of one tile."""
  p = svg.Picture(760, 330, 'Attention goes tile by tile')
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
        done = i < 5 or (i == 5 and j < 2)
        fill = svg.shade(0.55 if done else 0.15)
        p.box(x, y, size - 2, size - 2, RED if (i, j) == (5, 2) else fill)
  p.text(
    left + 5.2 * size, top + 1.4 * size, 'skipped', size=12, color='#777777'
  )
  p.line([(left + 3 * size, top + 5.5 * size), (386, 92)], RED, wide=1)
  x = 390
  p.box(x, 56, 346, 250, 'white', RED, radius=4)
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
      color=RED if strong else INK,
    )
  p.text(
    x + 16, 292, 'nothing is as large as all pairs', size=12, color='#555555'
  )
  return p


def _strip():
  """Returns the picture of a tile made of a row of biases by distance."""
  p = svg.Picture(760, 300, 'A strip of numbers by distance becomes a tile')
  q = k = 5
  size, left = 30, 30

  def cell(x, y, distance, faint=False):
    part = (distance + q) / (q + k)
    fill = svg.shade(0.15 + 0.75 * part)
    p.box(x, y, size - 2, size - 2, '#F4F4F4' if faint else fill)
    color = '#BBBBBB' if faint else 'white' if part > 0.6 else INK
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
  p.text(430, 44, 'and backward: the gradient of a number', size=12, color=RED)
  p.text(430, 61, 'is the sum along its diagonal', size=12, color=RED)
  return p


def _anchors():
  """Returns the picture of FIRE's input at two anchors and between them."""
  p = svg.Picture(760, 300, "FIRE's bias between two anchored queries")
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
    (1024, BLUE, 'none'),
    (1536, GRAY, '4 3'),
    (2048, RED, 'none'),
  ):
    reach = [d for d in range(low, position + 1, 16)]
    points = [at(d, fire(d, position)) for d in reach]
    p.line(points, color, wide=2, dashes=dashes)
    x, y = points[-1]
    p.dot(x, y, color)
  for n, (words, color) in enumerate(
    (
      ('query 1024, an anchor', BLUE),
      ('query 1536, between', '#777777'),
      ('query 2048, an anchor', RED),
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
  """Returns the input of FIRE's MLP for a query at `position`."""
  return math.log(c * distance + 1) / math.log(c * max(position, threshold) + 1)


def _shared():
  """Returns the picture of a bias tile that several rows of a batch share."""
  p = svg.Picture(760, 260, 'A tile of the bias is made once for several rows')
  p.box(40, 70, 130, 70, svg.shade(0.35, GOLD), radius=4)
  p.text(105, 100, 'rows by distance', size=12, at='middle')
  p.text(105, 118, '(made by XLA)', size=12, at='middle')
  p.line([(170, 105), (226, 105)], arrow=True)
  p.box(230, 60, 96, 90, GOLD, radius=4)
  p.text(278, 100, 'tile of', at='middle')
  p.text(278, 118, 'the bias', at='middle')
  p.text(278, 172, 'once, into the', size=12, at='middle')
  p.text(278, 188, "chip's memory", size=12, at='middle')
  p.text(424, 24, 'rows of the batch', size=12)
  for n in range(4):
    y = 34 + 50 * n
    p.line([(326, 105), (420, y + 18)], GOLD, arrow=True)
    p.box(424, y, 300, 36, PALE, radius=4)
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
  'extend': _extend,
  'blocks': _blocks,
  'strip': _strip,
  'anchors': _anchors,
  'shared': _shared,
  'cost': _cost,
  'memory': _memory,
}


def draw(folder):
  """Writes all pictures into a folder and returns their paths."""
  folder.mkdir(parents=True, exist_ok=True)
  paths = []
  for name, picture in _ALL.items():
    paths.append(folder / f'{name}.svg')
    picture().write(paths[-1])
  return paths


if __name__ == '__main__':
  for path in draw(PICTURES):
    print(f'wrote {path}', file=sys.stderr)
