"""Plots of results. Colour-blind safe, the same bytes for the same data."""

import matplotlib

matplotlib.use('Agg')

from matplotlib import pyplot as plt
from matplotlib import ticker

# Okabe and Ito's palette; further curves repeat it with other dashes.
_COLORS = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#56B4E9',
  '#000000',
)
_DASHES = ('-', '--', ':', '-.')
_MARKERS = 'osD^vPX'


def length_curves(results, names, path, *, unit):
  """Loss against length, all curves on the same tokens.

  Args:
    results: as in results.json.
    names: a name per curve.
    path: of the PNG.
    unit: what the loss is measured in.
  """
  figure, axes = plt.subplots(figsize=(7.2, 4.5), layout='constrained')
  for number, (curve, name) in enumerate(
    zip(results['curves'], names, strict=True)
  ):
    points = [
      (length, loss)
      for length, loss in zip(results['lengths'], curve['loss'], strict=True)
      if loss is not None
    ]
    if points:
      axes.plot(*zip(*points, strict=True), label=name, **style(number))
  axes.axvline(results['train_length'], color='0.6', linewidth=1, zorder=0)
  axes.annotate(
    'trained',
    (results['train_length'], 1),
    xycoords=('data', 'axes fraction'),
    xytext=(3, -10),
    textcoords='offset points',
    color='0.4',
    fontsize=8,
  )
  length_axis(axes, results['lengths'])
  axes.set_xlabel('context length at test time')
  axes.set_ylabel(unit)
  finish(figure, axes, path)


def position_curves(results, names, path, *, unit):
  """Loss against position within the longest window each curve has.

  Args:
    results: as in results.json.
    names: a name per curve.
    path: of the PNG.
    unit: what the loss is measured in.
  """
  figure, axes = plt.subplots(figsize=(7.2, 4.5), layout='constrained')
  for number, (curve, name) in enumerate(
    zip(results['curves'], names, strict=True)
  ):
    by_length = curve['loss_by_position']
    if not by_length:
      continue
    longest = by_length[max(by_length, key=int)]
    axes.plot(
      [position + 1 for position in longest['position']],
      longest['loss'],
      label=name,
      **{**style(number), 'marker': None},
    )
  axes.axvline(results['train_length'], color='0.6', linewidth=1, zorder=0)
  axes.set_xscale('log', base=2)
  axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
  axes.set_xlabel('position in the longest window')
  axes.set_ylabel(unit)
  finish(figure, axes, path)


def score_curves(results, path, *, unit, scale):
  """Score of a generated task against length, a curve of each run.

  Args:
    results: a sweep's results.json.
    path: of the PNG.
    unit: what the score is.
    scale: what it is multiplied by for that.
  """
  figure, axes = plt.subplots(figsize=(7.2, 4.5), layout='constrained')
  for number, run in enumerate(results['runs']):
    drawn = style(number)
    if len(results['lengths']) > 20:
      drawn['marker'] = None
    curve = [
      float('nan') if score is None else scale * score for score in run['curve']
    ]
    axes.plot(results['lengths'], curve, label=run['run'], **drawn)
  if results['score'] == 'accuracy':
    axes.axhline(
      scale * results['baselines']['positionwise'],
      color='0.6',
      linewidth=1,
      zorder=0,
      label='majority at each position',
    )
  if results['score'] != 'loss':
    axes.set_ylim(0, 1.02 * scale)
  axes.axvline(results['train_lengths'][1], color='0.6', linewidth=1, zorder=0)
  axes.set_xlabel('length (vertical line: trained up to here)')
  axes.set_ylabel(unit)
  finish(figure, axes, path)


def curves_beside(part, path):
  """Loss against length, ours and the paper's side by side.

  Args:
    part: a part of a reproduction's results, of kind 'curves'.
    path: of the PNG.
  """
  printed = [row for row in part['rows'] if row['paper']]
  figure, panels = plt.subplots(
    1,
    2 if printed else 1,
    figsize=(9.6 if printed else 6.4, 4.2),
    layout='constrained',
    squeeze=False,
  )
  ratios = part['columns']
  for number, row in enumerate(part['rows']):
    curves = [(panels[0, 0], row['value'])]
    if row['paper']:
      curves.append((panels[0, 1], row['paper']))
    for axes, values in curves:
      points = [
        (ratio, value)
        for ratio, value in zip(ratios, values, strict=True)
        if value is not None
      ]
      # Each name once: what the paper lacks is in our panel.
      label = row['name'] if axes is panels[0, 0] else None
      if points:
        axes.plot(*zip(*points, strict=True), label=label, **style(number))
    low, high = zip(*_ranges(row), strict=True)
    panels[0, 0].fill_between(
      ratios, low, high, color=style(number)['color'], alpha=0.15, linewidth=0
    )
  for axes, title in zip(panels[0], ('here', 'the paper'), strict=False):
    axes.axvline(1, color='0.6', linewidth=1, zorder=0)
    axes.set_title(title, fontsize=10)
    axes.set_xscale('log', base=2)
    axes.set_xticks(ratios, [f'{ratio:g}x' for ratio in ratios])
    axes.minorticks_off()
    axes.set_xlabel('context length, in training lengths')
    axes.grid(True, color='0.9')
    axes.spines[['top', 'right']].set_visible(False)
    if part['unit'] == 'perplexity':
      axes.set_yscale('log')
      # Numbers, not powers of ten: little lies between two of those.
      numbers = ticker.LogLocator(subs=(1, 1.5, 2, 3, 4, 6, 8))
      axes.yaxis.set_major_locator(numbers)
      axes.yaxis.set_major_formatter('{x:g}')
      axes.yaxis.set_minor_locator(ticker.NullLocator())
  panels[0, 0].set_ylabel(part['unit'])
  finish(figure, panels[0, 0], path, 4 if printed else 3)


def bars_beside(part, path):
  """A figure of each run, ours and the paper's: the mean, or the first.

  Args:
    part: a part of a reproduction's results.
    path: of the PNG.
  """
  rows = part['rows'][::-1]
  columns = part['columns']
  at = columns.index('mean') if 'mean' in columns else 0
  figure, axes = plt.subplots(
    figsize=(7.2, 1.2 + 0.42 * len(rows)), layout='constrained'
  )
  places = range(len(rows))
  axes.barh(
    places,
    [row['value'][at] or 0 for row in rows],
    xerr=list(zip(*(_errors(row, at) for row in rows), strict=True)),
    height=0.6,
    color=_COLORS[0],
    ecolor='0.3',
    label='here',
  )
  printed = [
    (row['paper'][at], place)
    for place, row in zip(places, rows, strict=True)
    if row['paper'] and row['paper'][at] is not None
  ]
  if printed:
    axes.plot(
      *zip(*printed, strict=True),
      linestyle='none',
      marker='D',
      color=_COLORS[1],
      label='the paper, at full size',
    )
  if part.get('chance'):
    axes.axvline(part['chance'], color='0.6', linewidth=1, label='chance')
  axes.set_yticks(places, [row['name'] for row in rows])
  column = columns[at] if isinstance(columns[at], str) else f'{columns[at]:g}x'
  axes.set_xlabel(f'{part["unit"]}, {column}')
  finish(figure, axes, path)


def _ranges(row):
  """(least, largest) over seeds of each column, nan where one has none."""
  return [
    (min(column), max(column))
    if None not in column
    else (float('nan'), float('nan'))
    for column in zip(*row['values'], strict=True)
  ]


def _errors(row, at):
  """How far the least and the largest of the seeds are from a figure.

  A mean of the best of each task may be better than the best of the means.
  """
  value, (low, high) = row['value'][at], _ranges(row)[at]
  if value is None:
    return 0, 0
  return max(0, value - low), max(0, high - value)


def style(number):
  """How a curve is drawn, by its number in the picture."""
  return {
    'color': _COLORS[number % len(_COLORS)],
    'linestyle': _DASHES[number // len(_COLORS) % len(_DASHES)],
    'marker': _MARKERS[number % len(_MARKERS)],
    'markersize': 4,
    'linewidth': 1.6,
  }


def length_axis(axes, lengths):
  """Lengths on a logarithmic scale, each with its number."""
  axes.set_xscale('log', base=2)
  axes.set_xticks(lengths, [str(length) for length in lengths])
  axes.minorticks_off()


def finish(figure, axes, path, legend_columns=1):
  """Adds grid and legend, writes a PNG, the same for the same, and closes."""
  axes.grid(True, color='0.9')
  axes.spines[['top', 'right']].set_visible(False)
  figure.legend(
    loc='outside lower left', frameon=False, fontsize=8, ncols=legend_columns
  )
  figure.savefig(path, dpi=160, metadata={'Software': None})
  plt.close(figure)
