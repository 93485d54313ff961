"""Figures of idealised attention, each a PNG and a CSV of the numbers drawn.

The query is at position 0; distances and positions are in tokens. Each function
takes a folder, which is created if missing, and returns the paths of PNG and
CSV. The files are reproducible byte by byte.

Source: Position-index warping, figures 1, 2, 4, A and B, and table 2.
"""

from collections.abc import Iterable, Sequence
import math
import pathlib
from typing import Any

import numpy as np

from lengen_jax.analysis import plots, tables
from lengen_jax.hints import PathLike
from lengen_jax.reproduce import idealised

# Steepest, middle and flattest of ALiBi's slopes for eight heads.
_SLOPES = {'1/2': 1 / 2, '1/16': 1 / 16, '1/256': 1 / 256}
# Training lengths of the paper's language models and algorithmic tasks.
_TEXT_LENGTH = 512
_TASK_LENGTH = 20
_RATIOS = (1, 2, 4, 8)
# Positions at the end of a sequence, shown in figure A.
_TAIL = 50
_SKEWS = ('none', 'sqrt', 'log', 'sine', 'beta(2,5)', 'beta(1,3)')


def figure_1(folder: PathLike) -> list[pathlib.Path]:
  """Draws attention by distance: ALiBi's vanishes, RoPE's stays above e^-1.

  RoPE is drawn for two widths d; it oscillates more at that of a single head.
  """
  distance = _log_spaced(2**16)
  curves = {
    f'RoPE, d = {d}': idealised.attention(idealised.rope_score(distance, d))
    for d in (4096, 64)
  } | _alibi(distance)
  figure, axes = plots.panels(1)
  rows: list[Any] = []
  for number, (name, values) in enumerate(curves.items()):
    _draw(axes, number, distance, values, name)
    rows += _rows((name,), distance, values)
  axes.axhline(math.exp(-1), color='0.4', linestyle='--', linewidth=1)
  axes.annotate(
    'e⁻¹, lower bound of RoPE',
    (1, math.exp(-1)),
    xycoords=('axes fraction', 'data'),
    xytext=(-3, 3),
    textcoords='offset points',
    ha='right',
    color='0.4',
    fontsize=8,
  )
  axes.set_xscale('log', base=2)
  axes.set_xlabel('distance of query and key, tokens')
  axes.set_ylabel('idealised attention, exp(score)')
  header = ('curve', 'distance', 'attention')
  return _save(folder, 'figure_1', figure, axes, header, rows)


def figure_2(folder: PathLike) -> list[pathlib.Path]:
  """Draws attention beyond the training length, and how far it is unseen.

  RoPE reaches values that do not occur in training. A head of ALiBi deviates
  by at most exp(-slope L_train), which is visible for the flattest heads only.
  """
  trained = np.arange(_TEXT_LENGTH)
  distance = _log_spaced(_RATIOS[-1] * _TEXT_LENGTH)
  both = np.concatenate([trained, distance])
  curves = {
    'RoPE, d = 4096': idealised.attention(idealised.rope_score(both))
  } | _alibi(both)
  figure, (left, right) = plots.panels(2)
  rows: list[Any] = []
  for number, (name, values) in enumerate(curves.items()):
    seen, values = np.split(values, [_TEXT_LENGTH])
    unseen = idealised.unseen(values, seen)
    _draw(left, number, distance, values, name)
    _draw(right, number, distance, unseen)
    rows += _rows((name,), distance, values, unseen)
  for axes in (left, right):
    _mark_trained(axes, _TEXT_LENGTH)
    axes.set_xscale('log', base=2)
    axes.set_xlabel('distance of query and key, tokens')
  left.set_ylabel('idealised attention, exp(score)')
  right.set_ylabel('how far outside the range seen in training')
  header = ('curve', 'distance', 'attention', 'unseen')
  return _save(folder, 'figure_2', figure, right, header, rows)


def figure_a(folder: PathLike) -> list[pathlib.Path]:
  """Draws sensitivity by position under dynamic position interpolation.

  The left panel shows whole sequences at the training length of the algorithmic
  tasks, the right one the tails at that of the language models.
  """
  figure, (left, right) = plots.panels(2)
  rows: list[Any] = []
  for number, ratio in enumerate(_RATIOS):
    position, values = _sensitivity_under_pi(_TASK_LENGTH, ratio)
    name = f'L_test = {ratio} L_train' if ratio > 1 else 'L_test = L_train'
    _draw(left, number, position, values, name)
    rows += _rows((_TASK_LENGTH, ratio), position, values)
    position, values = _sensitivity_under_pi(_TEXT_LENGTH, ratio)
    position, values = position[-_TAIL:], values[-_TAIL:]
    _draw(right, number, position - position[-1], values)
    rows += _rows((_TEXT_LENGTH, ratio), position, values)
  _mark_trained(left, _TASK_LENGTH)
  left.set_xscale('log', base=2)
  left.set_xlabel(f'position, tokens (L_train = {_TASK_LENGTH})')
  left.set_ylabel('sensitivity, fall of attention per token')
  right.set_xlabel(f'tokens from the end (L_train = {_TEXT_LENGTH})')
  header = ('train_length', 'ratio', 'position', 'sensitivity')
  return _save(folder, 'figure_a', figure, right, header, rows)


def figure_4(folder: PathLike) -> list[pathlib.Path]:
  """Draws the skew functions on [0, 1]."""
  x = np.linspace(0, 1, 201)
  figure, axes = plots.panels(1)
  rows: list[Any] = []
  for number, skew in enumerate(_SKEWS):
    values = idealised.skew_values(x, skew)
    _draw(axes, number, x, values, _skew_name(skew))
    rows += _rows((skew,), x, values)
  axes.set_xlabel('x = i / l')
  axes.set_ylabel('f(x)')
  return _save(folder, 'figure_4', figure, axes, ('skew', 'x', 'f'), rows)


def figure_b(folder: PathLike) -> list[pathlib.Path]:
  """Draws the gaps between neighbouring positions of a warped tail.

  Grey lines show the gaps of dynamic position interpolation. Gaps below 2^-8,
  at the end of the Beta functions, appear in the CSV only.
  """
  figure, axes = plots.panels(1)
  position = np.arange(1, _TEXT_LENGTH)
  rows: list[Any] = []
  for number, skew in enumerate(_SKEWS):
    gaps = np.diff(idealised.train_positions(_TEXT_LENGTH, skew))
    _draw(axes, number, position, gaps, _skew_name(skew))
    rows += _rows((skew,), position, gaps)
  for ratio in _RATIOS[1:]:
    test = idealised.test_positions(ratio * _TEXT_LENGTH, _TEXT_LENGTH)
    gaps = np.diff(test)[: _TEXT_LENGTH - 1]
    name = f'PI, {ratio}x'
    axes.plot(position, gaps, color='0.5', linestyle='--', linewidth=1)
    axes.annotate(
      name,
      (position[0], gaps[0]),
      xytext=(40, 2),
      textcoords='offset points',
      color='0.4',
      fontsize=8,
    )
    rows += _rows((name,), position, gaps)
  axes.set_yscale('log', base=2)
  axes.set_ylim(2**-8, 2**5)
  axes.set_xlabel(f'position, tokens (l = {_TEXT_LENGTH})')
  axes.set_ylabel('gap to the position before, tokens')
  header = ('skew', 'position', 'gap')
  return _save(folder, 'figure_b', figure, axes, header, rows)


def table_2(folder: PathLike) -> list[pathlib.Path]:
  """Draws total differences as bars; hatched bars deviate from print."""
  table = idealised.table_2()
  off = idealised.mismatches(table)
  figure, axes = plots.panels(1)
  rows: list[Any] = []
  for number, (skew, row) in enumerate(table.items()):
    printed = idealised.TABLE_2_PRINT[skew]
    x = np.arange(len(row)) + 0.28 * (number - 1)
    axes.bar(
      x,
      row.values(),
      width=0.26,
      color=plots.style(number)['color'],
      edgecolor='white',
      linewidth=0,
      hatch=['///' if (skew, name) in off else '' for name in row],
      label='no warping' if skew == 'none' else skew,
    )
    for place, value, paper in zip(x, row.values(), printed, strict=True):
      axes.annotate(
        f'{value:.3f}\n({paper:.3f})',
        (place, max(value, paper)),
        xytext=(0, 5),
        textcoords='offset points',
        ha='center',
        fontsize=7,
      )
    axes.plot(
      x,
      printed,
      'D',
      color='white',
      markeredgecolor='black',
      markersize=5,
      label='print, in brackets' if number == len(table) - 1 else None,
    )
    rows += [
      (skew, name, float(value), paper, (skew, name) in off)
      for (name, value), paper in zip(row.items(), printed, strict=True)
    ]
  axes.bar(
    [0],
    [0],
    color='0.7',
    edgecolor='white',
    hatch='///',
    label=f'more than {idealised.TABLE_2_TOLERANCE} off the print',
  )
  axes.set_xticks(
    range(len(idealised.TABLE_2_COLUMNS)), idealised.TABLE_2_COLUMNS
  )
  axes.set_xlabel('L_train : L_test / L_train')
  axes.set_ylabel('total difference of sensitivity in the tail')
  axes.margins(y=0.1)
  axes.set_axisbelow(True)
  header = ('skew', 'setting', 'total_difference', 'printed', 'mismatch')
  return _save(folder, 'table_2', figure, axes, header, rows)


def _log_spaced(longest: int) -> np.ndarray:
  """Returns integers from 1 to `longest`, evenly spaced on a log axis."""
  octaves = math.log2(longest)
  return np.unique(np.round(2 ** np.linspace(0, octaves, int(30 * octaves))))


def _alibi(distance: np.ndarray) -> dict[str, Any]:
  return {
    f'ALiBi, slope {name}': idealised.attention(
      idealised.alibi_score(distance, slope)
    )
    for name, slope in _SLOPES.items()
  }


def _sensitivity_under_pi(
  train_length: int, ratio: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the indices of all tokens but the first, and sensitivities."""
  test = idealised.test_positions(ratio * train_length, train_length)
  return np.arange(1, len(test)), idealised.sensitivity(test)


def _skew_name(skew: str) -> str:
  return 'identity' if skew == 'none' else skew


def _draw(
  axes: Any, number: int, x: np.ndarray, y: Any, name: str | None = None
) -> None:
  every = max(1, len(x) // 9)
  axes.plot(
    x,
    y,
    label=name,
    markevery=(number * every // len(_SKEWS), every),
    **plots.style(number),
  )


def _mark_trained(axes: Any, train_length: int) -> None:
  axes.axvline(train_length, color='0.6', linewidth=1, zorder=1)
  axes.annotate(
    'L_train',
    (train_length, 1),
    xycoords=('data', 'axes fraction'),
    xytext=(3, -10),
    textcoords='offset points',
    color='0.4',
    fontsize=8,
  )


def _rows(names: tuple[Any, ...], *columns: Any) -> list[tuple[Any, ...]]:
  """Returns CSV rows: `names`, then a number of each column."""
  points = zip(*(column.tolist() for column in columns), strict=True)
  return [(*names, *point) for point in points]


def _save(
  folder: PathLike,
  name: str,
  figure: Any,
  axes: Any,
  header: Sequence[str],
  rows: Iterable[Any],
) -> list[pathlib.Path]:
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  picture, numbers = folder / f'{name}.png', folder / f'{name}.csv'
  plots.finish(figure, axes, picture)
  tables.write_csv(numbers, header, rows)
  return [picture, numbers]
