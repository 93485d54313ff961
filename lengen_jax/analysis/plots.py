"""Plots of results in a color-blind safe palette, with deterministic bytes."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import matplotlib

matplotlib.use('Agg')

from matplotlib import pyplot as plt
from matplotlib import ticker

# Palette of Okabe and Ito; further curves repeat it with other dashes.
COLORS = (
  *('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9'),
  '#000000',
)
# Colors by the kinds of heads of `evaluation.bias_maps`.
KIND_COLORS = {
  'local': COLORS[0],
  'anti-local': COLORS[1],
  'flat/mixed': '#999999',
}
_DASHES = ('-', '--', ':', '-.')
_MARKERS = 'osD^vPX'
# Maximum loss for which an axis shows perplexity.
_MOST_NATS = 50


def length_curves(
  results: Mapping[str, Any], names: Sequence[str], path: Any, *, unit: str
) -> None:
  """Plots loss by length.

  Args:
    results: contents of results.json.
    names: a name per curve.
    path: path of the PNG file.
    unit: unit of the loss.
  """
  figure, axes = plt.subplots(figsize=(7.2, 4.5), layout='constrained')
  length_curves_on(axes, results, names, unit=unit)
  finish(figure, axes, path)


def length_curves_on(
  axes: Any, results: Mapping[str, Any], names: Sequence[str], *, unit: str
) -> None:
  """Draws `length_curves` on axes, the curve of run n with the gid 'run-n'."""
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
  _mark_trained(axes, results['train_length'])
  length_axis(axes, results['lengths'])
  axes.set_xlabel('context length at test time')
  axes.set_ylabel(unit)
  _perplexity_axis(axes)


def position_curves_on(
  axes: Any, results: Mapping[str, Any], names: Sequence[str], *, unit: str
) -> None:
  """Draws loss against position within the longest window each curve has.

  Args:
    axes: of matplotlib.
    results: contents of results.json.
    names: a name per curve.
    unit: unit of the loss.
  """
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
  _mark_trained(axes, results['train_length'])
  axes.set_xscale('log', base=2)
  axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
  axes.set_xlabel('position in the longest window')
  axes.set_ylabel(unit)
  _perplexity_axis(axes)


def score_curves(
  results: Mapping[str, Any], path: Any, *, unit: str, scale: float
) -> None:
  """Plots the scores of a sweep by length.

  Args:
    results: contents of a sweep's results.json.
    path: path of the PNG file.
    unit: unit of the scaled score.
    scale: factor of the score.
  """
  figure, axes = plt.subplots(figsize=(7.2, 4.5), layout='constrained')
  score_curves_on(axes, results, unit=unit, scale=scale)
  finish(figure, axes, path)


def score_curves_on(
  axes: Any, results: Mapping[str, Any], *, unit: str, scale: float
) -> None:
  """Draws `score_curves` on axes, the curve of run n with the gid 'run-n'."""
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
      zorder=1,
      label='majority at each position',
    )
  if results['score'] != 'loss':
    axes.set_ylim(0, 1.02 * scale)
  axes.axvline(results['train_lengths'][1], color='0.6', linewidth=1, zorder=1)
  axes.set_xlabel('length (vertical line: trained up to here)')
  axes.set_ylabel(unit)


def curves_beside(part: dict[str, Any], path: Any) -> None:
  """Plots loss by length, measured and in the paper, side by side.

  Args:
    part: a part of a reproduction's results, of kind 'curves'.
    path: path of the PNG file.
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
      # The legend has each name once. The first panel has all of them.
      label = row['name'] if axes is panels[0, 0] else None
      if points:
        axes.plot(*zip(*points, strict=True), label=label, **style(number))
    low, high = zip(*_ranges(row), strict=True)
    panels[0, 0].fill_between(
      ratios, low, high, color=style(number)['color'], alpha=0.15, linewidth=0
    )
  for axes, title in zip(panels[0], ('here', 'the paper'), strict=False):
    axes.axvline(1, color='0.6', linewidth=1, zorder=1)
    axes.set_title(title, fontsize=10)
    axes.set_xscale('log', base=2)
    axes.set_xticks(ratios, [f'{ratio:g}x' for ratio in ratios])
    axes.minorticks_off()
    axes.set_xlabel('context length, in training lengths')
    grid(axes)
    if part['unit'] == 'perplexity':
      axes.set_yscale('log')
      # Powers of ten alone would be too few ticks.
      numbers = ticker.LogLocator(subs=(1, 1.5, 2, 3, 4, 6, 8))
      axes.yaxis.set_major_locator(numbers)
      axes.yaxis.set_major_formatter('{x:g}')
      axes.yaxis.set_minor_locator(ticker.NullLocator())
  panels[0, 0].set_ylabel(part['unit'])
  finish(figure, panels[0, 0], path, 4 if printed else 3)


def bars_beside(part: dict[str, Any], path: Any) -> None:
  """Plots the mean, or the first column, of each run and of the paper.

  Args:
    part: a part of a reproduction's results.
    path: path of the PNG file.
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
    color=COLORS[0],
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
      color=COLORS[1],
      label='the paper, at full size',
    )
  if part.get('chance'):
    axes.axvline(part['chance'], color='0.6', linewidth=1, label='chance')
  axes.set_yticks(places, [row['name'] for row in rows])
  column = columns[at] if isinstance(columns[at], str) else f'{columns[at]:g}x'
  axes.set_xlabel(f'{part["unit"]}, {column}')
  finish(figure, axes, path)


def _ranges(row: Any) -> list[tuple[float, float]]:
  """Returns (minimum, maximum) of each column over seeds; NaN if unknown."""
  return [
    (min(column), max(column))
    if None not in column
    else (float('nan'), float('nan'))
    for column in zip(*row['values'], strict=True)
  ]


def _errors(row: Any, at: int) -> tuple[float, float]:
  """Returns the distances of a value to the minimum and maximum over seeds.

  They are at least 0: a mean of the best scores of each task may be better than
  the best mean.
  """
  value, (low, high) = row['value'][at], _ranges(row)[at]
  if value is None:
    return 0, 0
  return max(0, value - low), max(0, high - value)


def style(number: int) -> dict[str, Any]:
  """Returns the line style of curve `number`."""
  return {
    'color': COLORS[number % len(COLORS)],
    'linestyle': _DASHES[number // len(COLORS) % len(_DASHES)],
    'marker': _MARKERS[number % len(_MARKERS)],
    'markersize': 4,
    'linewidth': 1.6,
    'gid': f'run-{number}',
  }


def length_axis(axes: Any, lengths: Sequence[int]) -> None:
  """Sets a logarithmic axis with a tick at each length."""
  axes.set_xscale('log', base=2)
  axes.set_xticks(lengths, [str(length) for length in lengths])
  axes.minorticks_off()


def _mark_trained(axes: Any, length: int) -> None:
  axes.axvline(length, color='0.6', linewidth=1, zorder=1)
  axes.annotate(
    'trained',
    (length, 1),
    xycoords=('data', 'axes fraction'),
    xytext=(0, 3),
    textcoords='offset points',
    horizontalalignment='center',
    color='0.4',
    fontsize=8,
  )


def _perplexity_axis(axes: Any) -> None:
  """Adds an axis of perplexity to an axis in nats."""
  low, high = axes.get_ylim()
  if high > _MOST_NATS:
    return
  right = axes.twinx()
  right.set_ylim(low, high)
  numbers = _round_numbers(math.exp(low), math.exp(high))
  right.set_yticks([math.log(n) for n in numbers], [f'{n:g}' for n in numbers])
  right.set_ylabel('perplexity')
  right.spines[['top', 'right']].set_visible(False)


def _round_numbers(low: float, high: float) -> list[float]:
  """Returns at least four round numbers in a range."""
  tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
  for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
    numbers = [digit * 10.0**ten for ten in tens for digit in digits]
    numbers = [n for n in numbers if low <= n <= high]
    if len(numbers) >= 4:
      return numbers
  numbers = ticker.MaxNLocator(5).tick_values(low, high)
  return [n for n in numbers if low <= n <= high]


def panels(count: int) -> tuple[Any, Any]:
  """Returns a figure with `count` panels side by side, with grids."""
  figure, axes = plt.subplots(
    1, count, figsize=(7.2, 5.0), layout='constrained'
  )
  for each in axes if count > 1 else [axes]:
    grid(each)
  return figure, axes


def grid(axes: Any) -> None:
  """Adds a light grid and removes the top and right spines."""
  axes.set_axisbelow(True)
  axes.grid(True, color='0.9')
  axes.spines[['top', 'right']].set_visible(False)


def finish(figure: Any, axes: Any, path: Any, legend_columns: int = 1) -> None:
  """Adds grid and legend, writes the PNG file and closes the figure."""
  grid(axes)
  figure.legend(
    loc='outside lower left', frameon=False, fontsize=8, ncols=legend_columns
  )
  figure.savefig(path, dpi=160, metadata={'Software': None})
  plt.close(figure)
