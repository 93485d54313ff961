"""SVG figures of HTML reports, in the colors and font of the page.

Elements of run n have the attribute `data-run="n"`, by which the page hides
them.
"""

from collections.abc import Callable, Sequence
import html
import io
import re
from typing import Any

import matplotlib
from matplotlib import pyplot as plt
import numpy as np

from lengen_jax.analysis import plots

# Inches. At this width, text has the font size of the page.
_WIDTH, _HEIGHT = 4.4, 3.2
# Biases this far below the largest have no effect on the softmax.
MOST_NATS = 20
# The axis of biases reaches at least this far below the largest.
_LEAST_NATS = 0.01
# CSS values of the colors of `plots`; black is the color of text.
_INKS = {
  color.lower(): f'var(--curve-{n})' for n, color in enumerate(plots.COLORS)
}
_INKS |= {
  '#000000': 'currentColor',
  '#666666': 'var(--soft)',
  '#999999': 'var(--soft)',
  '#e6e6e6': 'var(--line)',
}
_STYLE: dict[Any, Any] = {
  'axes.facecolor': 'none',
  'figure.facecolor': 'none',
  'font.size': 9,
  # Makes ids deterministic.
  'svg.hashsalt': 'lengen_jax',
  # Text elements are smaller than paths and have the page's font.
  'svg.fonttype': 'none',
}


def ink(color: str) -> str:
  """Returns the CSS value of a color '#rrggbb'."""
  return _INKS.get(color.lower(), color)


def chart(
  label: str, names: Sequence[str], draw: Callable[..., None], *args: Any
) -> str:
  """Returns the SVG that `draw(axes, *args)`, a function in `plots`, draws.

  `label` describes the chart to screen readers. The curve with gid 'run-n' has
  the tooltip `names[n]`. A page may have one chart per `draw` function.
  """
  with matplotlib.rc_context(_STYLE):
    figure, axes = plots.panels(1, (_WIDTH, _HEIGHT))
    draw(axes, *args)
    return _svg(figure, draw.__name__, label, names)


def biases(number: int, layers: Any, drawn: Any, query: Any) -> str:
  """Returns an SVG of the biases of one query by distance, a panel per layer.

  `drawn` is the entry of the query in `evaluation.bias_maps.summary` of run
  `number`.
  """
  with matplotlib.rc_context(_STYLE):
    figure, panels = plots.layer_panels(layers, 3, (_WIDTH, 0.7), 1.3, True)
    # Keys that a layer does not see are NaN, as are values of a run that has
    # diverged.
    biases_NxHxK = np.asarray(drawn['bias'], np.float64)
    for axes, heads, kinds in zip(
      panels, biases_NxHxK, drawn['kind'], strict=True
    ):
      for bias, kind in zip(heads, kinds, strict=True):
        color = plots.KIND_COLORS[kind]
        axes.plot(drawn['distance'], bias, color=color, linewidth=1.2)
    # Panels share their axes: logarithmic, but linear between -1 and 1.
    axes.set_xscale('symlog', base=2, linthresh=1, linscale=0.5)
    doublings = max(*drawn['distance'], 1).bit_length() - 1
    step = doublings // 4 + 1
    ticks = [2**n for n in range(step, doublings + 1, step)]
    if ticks and min(drawn['distance']) < 0:
      ticks = [-ticks[-1], *ticks[-1:]]
    axes.set_xticks([0, *ticks], ['0', *map(str, ticks)])
    axes.minorticks_off()
    low = np.fmin.reduce(biases_NxHxK, axis=None, initial=-_LEAST_NATS)
    low = max(-MOST_NATS, low)
    axes.set_ylim(low, -0.05 * low)
    figure.supxlabel('distance of the key', fontsize=9)
    figure.supylabel('bias, nats', fontsize=9)
    label = f'Bias against distance, query at position {query}'
    return _svg(figure, f'biases-{number}-{query}', label)


def positions(number: int, layers: Any) -> str:
  """Returns an SVG of contextual positions by token, a panel per layer.

  `layers` is the `evaluation.position_maps.summary` of run `number`.
  """
  with matplotlib.rc_context(_STYLE):
    figure, panels = plots.layer_panels([*layers], 3, (_WIDTH, 0.7), 1.3)
    for axes, drawn in zip(panels, layers.values(), strict=True):
      for head, position in enumerate(drawn['position']):
        color = plots.COLORS[head % len(plots.COLORS)]
        axes.plot(drawn['token'], position, color=color, linewidth=1.2)
      # The limits are those of the heads, whose positions may be far smaller.
      axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
      index = drawn['token']
      axes.plot(index, index, '--', color='#666666', linewidth=1, zorder=1)
    figure.supxlabel('index of the token', fontsize=9)
    figure.supylabel('position', fontsize=9)
    return _svg(figure, f'positions-{number}', 'Positions against index')


def swatch(number: int) -> str:
  """Returns an SVG of the line style of curve `number`."""
  with matplotlib.rc_context(_STYLE):
    figure = plt.figure(figsize=(0.5, 0.14))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    drawn = plots.style(number) | {'gid': None}
    axes.plot([0, 1, 2], [0, 0, 0], markevery=[1], **drawn)
    axes.margins(0)
    return _svg(figure, f'swatch-{number}')


def _svg(
  figure: Any, name: str, label: str = '', names: Sequence[str] = ()
) -> str:
  """Returns a figure as SVG for a page, and closes the figure; see `chart`.

  `name` is the prefix of its ids. Without a label, screen readers skip the SVG.
  """
  file = io.StringIO()
  figure.savefig(
    file,
    format='svg',
    metadata=dict.fromkeys(('Creator', 'Date', 'Format', 'Type')),
  )
  plt.close(figure)
  svg = file.getvalue()
  svg = svg[svg.index('<svg') :].replace('xlink:href', 'href')
  view = re.search(r'viewBox="[^"]+"', svg)[0]
  seen = f'role="img" aria-label="{html.escape(label)}"'
  svg = re.sub(
    r'<svg[^>]+>', f'<svg {view} {seen if label else "aria-hidden=true"}>', svg
  )
  svg = re.sub(r'<defs>\s*<style.*?</style>\s*</defs>', '', svg, flags=re.S)
  svg = re.sub(r'font: ([\d.]+px)[^;"]*', r'font-size: \1', svg)
  svg = re.sub(r'font-family: [^;"]*;? ?', '', svg)
  svg = re.sub(r'#[0-9a-f]{6}\b', lambda m: ink(m[0]), svg)
  referred = {*re.findall(r'#(\w+)', svg)}

  def renamed(match: re.Match) -> str:
    kind, _, number = match[1].partition('-')
    if kind == 'run':
      title = html.escape(names[int(number)])
      return f' data-run="{number}"><title>{title}</title>'
    kept = f' id="{name}-{match[1]}"' if match[1] in referred else ''
    return kept + match[2]

  svg = re.sub(r' id="([^"]+)"(>?)', renamed, svg)
  svg = re.sub(r'(href="#|url\(#)', rf'\g<1>{name}-', svg)
  return svg.strip()
