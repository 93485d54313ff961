"""Plots of results in a color-blind safe palette, with deterministic bytes."""

from collections.abc import Callable, Mapping, Sequence
import io
import textwrap
from typing import Any

import matplotlib

matplotlib.use('Agg')

from matplotlib import pyplot as plt
from matplotlib import ticker
import numpy as np

from lengen_jax import errors
from lengen_jax.training import files

# Palette of Okabe and Ito. Further curves repeat its colors with other dashes.
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
# Characters of a line of a vertical label, beside which a long legend has room.
_LABEL_WIDTH = 36
# Least distance between two ticks, as a fraction of a logarithmic axis.
_TICK_DISTANCE = 0.06


def write(path: Any, draw: Callable[..., None], *args: Any) -> None:
  """Writes a PNG file drawn by `draw(axes, *args)`."""
  figure, axes = panels(1)
  draw(axes, *args)
  finish(figure, path)


def length_curves(
  axes: Any, results: Mapping[str, Any], names: Sequence[str], unit: str
) -> None:
  """Draws loss against length, given the contents of results.json.

  The curve of run n gets the gid 'run-n'.
  """
  lengths = results['lengths']
  for n, (curve, name) in enumerate(zip(results['curves'], names, strict=True)):
    axes.plot(lengths, floats(curve['loss']), label=name, **style(n))
  length_axis(axes, lengths)
  _loss_axes(axes, results, 'context length at test time', unit)


def position_curves(
  axes: Any, results: Mapping[str, Any], names: Sequence[str], unit: str
) -> None:
  """Draws loss against position in the longest window of each curve."""
  for n, (curve, name) in enumerate(zip(results['curves'], names, strict=True)):
    by_length = curve['loss_by_position']
    if by_length:
      longest = by_length[max(by_length, key=int)]
      positions = np.array(longest['position']) + 1
      drawn = style(n) | {'marker': None}
      axes.plot(positions, longest['loss'], label=name, **drawn)
  axes.set_xscale('log', base=2)
  axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
  _loss_axes(axes, results, 'position in the longest window', unit)


def trajectories(
  axes: Any, results: Mapping[str, Any], names: Sequence[str], unit: str
) -> None:
  """Draws the gap between two lengths by step; see `gap_lengths`."""
  lengths = results['lengths']
  near, far = gap_lengths(results)
  columns = [lengths.index(near), lengths.index(far)]
  drawn = []
  for curve in results['curves']:
    found = curve.get('trajectory') or {'steps': [], 'loss': []}
    losses = [floats(loss)[columns] for loss in found['loss']]
    drawn.append((found['steps'], [long - short for short, long in losses]))
  by_step(axes, drawn, names, f'{unit}: length {far} minus length {near}')
  axes.axhline(0, color='0.6', linewidth=1, zorder=1)


def gap_lengths(results: Mapping[str, Any]) -> tuple[int, int]:
  """Returns the length nearest to that of training, and a long one.

  The long one is the longest of up to 8 training lengths, or the longest of all
  if there is none.
  """
  lengths, trained = results['lengths'], results['train_length']
  near = min(lengths, key=lambda n: abs(n - trained))
  within = [n for n in lengths if near < n <= 8 * trained]
  return near, max(within or lengths)


def by_step(
  axes: Any,
  curves: Sequence[tuple[Sequence[int], Sequence[float]]],
  names: Sequence[str],
  label: str,
) -> None:
  """Draws curves, each of steps and scores, against the training step."""
  for n, ((steps, scores), name) in enumerate(zip(curves, names, strict=True)):
    known = np.isfinite(floats(scores)).any()
    label_of_run = name if known else f'{name} (no value)'
    axes.plot(steps, scores, label=label_of_run, **style(n))
  length_axis(axes, sorted({step for steps, _ in curves for step in steps}))
  axes.set(xlabel='training step', ylabel=textwrap.fill(label, _LABEL_WIDTH))


def _loss_axes(
  axes: Any, results: Mapping[str, Any], along: str, unit: str
) -> None:
  """Labels the axes, marks the training length and adds a perplexity axis."""
  axes.axvline(results['train_length'], color='0.6', linewidth=1, zorder=1)
  axes.annotate(
    'trained',
    (results['train_length'], 1),
    xycoords=('data', 'axes fraction'),
    xytext=(0, 3),
    textcoords='offset points',
    horizontalalignment='center',
    color='0.4',
    fontsize=8,
  )
  axes.set(xlabel=along, ylabel=unit)
  if axes.get_ylim()[1] > _MOST_NATS:
    return
  right = axes.twinx()
  right.set_yscale('log')
  low, high = np.exp(axes.get_ylim())
  right.set_ylim(low, high)
  # Chooses the coarsest tick spacing with at least four visible ticks.
  for subs in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
    locator = ticker.LogLocator(subs=subs)
    ticks = locator.tick_values(low, high)
    if np.sum((ticks >= low) & (ticks <= high)) >= 4:
      break
  right.yaxis.set_major_locator(locator)
  right.yaxis.set_major_formatter('{x:g}')
  right.minorticks_off()
  right.set_ylabel('perplexity')
  right.spines[['top', 'right']].set_visible(False)


def score_curves(
  axes: Any, results: Mapping[str, Any], unit: str, scale: float
) -> None:
  """Draws the scores of a sweep times `scale`, in `unit`, against length.

  The curve of run n gets the gid 'run-n'.
  """
  lengths = results['lengths']
  for n, run in enumerate(results['runs']):
    drawn = style(n) | ({'marker': None} if len(lengths) > 20 else {})
    curve = scale * floats(run['curve'])
    axes.plot(lengths, curve, label=run['run'], **drawn)
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
  axes.set(xlabel='length (vertical line: trained up to here)', ylabel=unit)


def best_point(run: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the results of the best learning rate and seed of a run."""
  best = run['best_at']
  (point,) = (p for p in run['points'] if best.items() <= p.items())
  return point


def score_trajectories(
  axes: Any, results: Mapping[str, Any], unit: str, scale: float
) -> None:
  """Draws mean scores beyond the training lengths, times `scale`, by step.

  The curve of a run is that of its best point, as in `score_curves`.
  """
  longest = results['train_lengths'][1]
  beyond = np.array(results['lengths']) > longest
  drawn = []
  for run in results['runs']:
    found = best_point(run).get('trajectory') or {'steps': []}
    by_length = [floats(x) for x in found.get(results['score'], [])]
    means = [scale * scores[beyond].mean() for scores in by_length]
    drawn.append((found['steps'], means))
  names = [run['run'] for run in results['runs']]
  by_step(axes, drawn, names, f'{unit}, mean over lengths beyond {longest}')
  if results['score'] != 'loss':
    axes.set_ylim(0, 1.02 * scale)


def operand_maps(results: Mapping[str, Any], path: Any) -> None:
  """Plots the right answers of a sweep by the digits of both operands.

  A run with a map has a panel, with lines at the training length.
  """
  maps = {
    run['run']: floats(run['operands']['share'])
    for run in results['runs']
    if run.get('operands')
  }
  columns = min(3, len(maps))
  names = [textwrap.fill(name, 34) for name in maps]
  size = (1.4 + 2.6 * columns, 0.7)
  figure, drawn = layer_panels(names, columns, size, 2.6)
  for axes, share in zip(drawn, maps.values(), strict=True):
    axes.grid(False)
    axes.set_facecolor('0.85')
    # Pixels are centered at the numbers of digits.
    edges = 0.5, len(share) + 0.5
    image = axes.imshow(
      100 * share,
      cmap='viridis',
      vmin=0,
      vmax=100,
      origin='lower',
      extent=(*edges, *edges),
    )
    trained = results['train_lengths'][1] + 0.5
    for mark in (axes.axvline, axes.axhline):
      mark(trained, color=COLORS[1], linewidth=1.2, linestyle='--')
    whole = ticker.MaxNLocator(integer=True)
    axes.xaxis.set_major_locator(whole)
    axes.yaxis.set_major_locator(whole)
  figure.colorbar(image, ax=list(drawn), label='right answers, percent')
  figure.supxlabel('digits of the second operand', fontsize=9)
  figure.supylabel('digits of the first operand', fontsize=9)
  save(figure, path)


def curves_beside(part: dict[str, Any], path: Any) -> None:
  """Plots scores by length, measured and in the paper, side by side."""
  rows, ratios = part['rows'], part['columns']
  printed = any(row['paper'] for row in rows)
  size = (9.6 if printed else 6.4, 4.2)
  figure, drawn = panels(2 if printed else 1, size)
  here, *paper = drawn if printed else [drawn]
  for number, row in enumerate(rows):
    lines = style(number)
    # The legend has each name once.
    here.plot(ratios, floats(row['value']), label=row['name'], **lines)
    if row['paper']:
      paper[0].plot(ratios, floats(row['paper']), **lines)
    here.fill_between(
      ratios, *_range(row), color=lines['color'], alpha=0.15, linewidth=0
    )
  for axes, title in zip((here, *paper), ('here', 'the paper'), strict=False):
    axes.axvline(1, color='0.6', linewidth=1, zorder=1)
    axes.set_title(title, fontsize=10)
    axes.set_xscale('log', base=2)
    axes.set_xticks(ratios, [f'{ratio:g}x' for ratio in ratios])
    axes.minorticks_off()
    axes.set_xlabel('context length, in training lengths')
    if part['unit'] == 'perplexity':
      axes.set_yscale('log')
      # Ticks at powers of ten only would be too few.
      numbers = ticker.LogLocator(subs=(1, 1.5, 2, 3, 4, 6, 8))
      axes.yaxis.set_major_locator(numbers)
      axes.yaxis.set_major_formatter('{x:g}')
      axes.yaxis.set_minor_locator(ticker.NullLocator())
  here.set_ylabel(part['unit'])
  finish(figure, path)


def bars_beside(part: dict[str, Any], path: Any) -> None:
  """Plots each run's mean, or its first column, beside that of the paper."""
  rows, columns = part['rows'][::-1], part['columns']
  at = columns.index('mean') if 'mean' in columns else 0
  values = floats([row['value'][at] for row in rows])
  low, high = np.array([_range(row)[:, at] for row in rows]).T
  # A mean of the best scores of each task may be better than the best mean.
  errors = np.maximum(0, [values - low, high - values])
  paper = floats([row['paper'] and row['paper'][at] for row in rows])
  figure, axes = panels(1, (7.2, 1.2 + 0.42 * len(rows)))
  places = range(len(rows))
  axes.barh(
    places,
    values,
    xerr=errors,
    height=0.6,
    color=COLORS[0],
    ecolor='0.3',
    label='here',
  )
  if not np.isnan(paper).all():
    label = 'the paper, at full size'
    axes.plot(paper, places, 'D', color=COLORS[1], label=label)
  if part.get('chance'):
    axes.axvline(part['chance'], color='0.6', linewidth=1, label='chance')
  missing = np.isnan(values)
  axes.set_yticks(
    places,
    [
      row['name'] + (' (no score)' if absent else '')
      for row, absent in zip(rows, missing, strict=True)
    ],
  )
  column = columns[at] if isinstance(columns[at], str) else f'{columns[at]:g}x'
  axes.set_xlabel(f'{part["unit"]}, {column}')
  finish(figure, path)


def floats(values: Sequence[float | None]) -> np.ndarray:
  """Returns an array with NaN for None."""
  return np.array(values, float)


def _range(row: dict[str, Any]) -> np.ndarray:
  """Returns minimum and maximum of each column over seeds, NaN if unknown."""
  values = floats(row['values'])
  return np.array([values.min(0), values.max(0)])


def style(number: int) -> dict[str, Any]:
  """Returns the line style of curve `number`; 196 of them differ."""
  dashes, colors = divmod(number, len(COLORS))
  rounds, dashes = divmod(dashes, len(_DASHES))
  return {
    'color': COLORS[colors],
    'linestyle': _DASHES[dashes],
    'marker': _MARKERS[(number + rounds) % len(_MARKERS)],
    'markersize': 4,
    'linewidth': 1.6,
    'gid': f'run-{number}',
  }


def length_axis(axes: Any, lengths: Sequence[int]) -> None:
  """Sets a logarithmic axis with a tick at each length that has room.

  The longest has a tick; the others are at least a distance from the next.
  """
  axes.set_xscale('log', base=2)
  ratio = (max(lengths) / min(lengths)) ** _TICK_DISTANCE
  ticks: list[int] = []
  for length in sorted({*lengths}, reverse=True):
    if not ticks or ticks[-1] >= ratio * length:
      ticks.append(length)
  ticks.reverse()
  axes.set_xticks(ticks, [str(length) for length in ticks])
  axes.minorticks_off()


def panels(
  count: int, size: tuple[float, float] = (7.2, 5.0)
) -> tuple[Any, Any]:
  """Returns a figure of `size` inches and `count` axes side by side."""
  figure, axes = plt.subplots(1, count, figsize=size, layout='constrained')
  for each in axes if count > 1 else [axes]:
    grid(each)
  return figure, axes


def layer_panels(
  layers: Sequence[str],
  columns: int,
  size: tuple[float, float],
  height: float,
  share: bool = False,
) -> tuple[Any, Any]:
  """Returns a figure with a panel per layer, and the panels.

  Args:
    columns: maximum number of panels in a row.
    size: width of the figure, and its height without panels, inches.
    height: height of a row of panels, inches.
    share: whether panels share their axes.
  """
  rows = -(-len(layers) // columns)
  figure, panels_ = plt.subplots(
    rows,
    min(columns, len(layers)),
    figsize=(size[0], size[1] + height * rows),
    layout='constrained',
    sharex=share,
    sharey=share,
    squeeze=False,
  )
  for axes in panels_.flat[len(layers) :]:
    axes.set_visible(False)
  for axes, layer in zip(panels_.flat, layers, strict=False):
    axes.set_title(layer, fontsize=9)
    axes.tick_params(labelsize=8)
    grid(axes)
  return figure, panels_.flat[: len(layers)]


def grid(axes: Any) -> None:
  """Adds a light grid and removes the top and right spines."""
  axes.set_axisbelow(True)
  axes.grid(True, color='0.9')
  axes.spines[['top', 'right']].set_visible(False)


def finish(figure: Any, path: Any) -> None:
  """Adds a legend, writes the PNG file and closes the figure."""
  names = [
    name for each in figure.axes for name in each.get_legend_handles_labels()[1]
  ]
  # A line and its space are 0.55 inches wide, a character 0.065.
  widest = 0.55 + 0.065 * max(map(len, names), default=0)
  columns = max(1, int(figure.get_figwidth() / widest))
  legend = figure.legend(
    loc='outside lower left',
    frameon=False,
    fontsize=8,
    ncols=columns,
    handlelength=3,
  )
  # The axes keep their height below a legend of many rows.
  rows = -(-len(legend.get_texts()) // columns)
  figure.set_figheight(figure.get_figheight() + 0.17 * max(0, rows - 8))
  save(figure, path)


def save(figure: Any, path: Any) -> None:
  """Writes the PNG file and closes the figure.

  Raises:
    errors.WorkdirError: the file cannot be written.
  """
  try:
    picture = io.BytesIO()
    figure.savefig(picture, dpi=160, metadata={'Software': None})
    files.locate(path).write_bytes(picture.getvalue())
  except OSError as error:
    raise errors.WorkdirError(
      f'cannot write {path}: {errors.reason(error)}'
    ) from None
  finally:
    plt.close(figure)
