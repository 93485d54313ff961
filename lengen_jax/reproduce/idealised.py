"""Idealised attention: the effect of distance alone on the score of a key.

The query, at position 0, and all keys have the same content, so RoPE's score,
scaled to 1 at distance 0, is a mean of cosines. Positions are float64, in
tokens. Each figure is a PNG and a CSV of its numbers, with deterministic bytes.

Source: Position-index warping, figures 1, 2, 4, A and B, and table 2.
"""

from collections.abc import Iterable, Mapping, Sequence
import math
import pathlib
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from lengen_jax import papers
from lengen_jax.analysis import plots, tables
from lengen_jax.positions import warped
from lengen_jax.training import files
from lengen_jax.types import PathLike

# {column: (L_train, L_test / L_train, c)}.
TABLE_2_COLUMNS = {
  '20:2x': (20, 2, 10),
  '20:4x': (20, 4, 10),
  '500:2x': (500, 2, 200),
  '500:4x': (500, 4, 200),
}
TABLE_2_TOLERANCE = 0.003
RATIOS = (1, 2, 4, 8)
# Steepest, middle and flattest of ALiBi's slopes for eight heads, by name.
_SLOPES = (2, 16, 256)
# Training lengths of the paper's language models and algorithmic tasks.
_TEXT_LENGTH, _TASK_LENGTH = 512, 20
# Positions at the end of a sequence, shown in figure A.
_TAIL = 50
# Skew functions and their labels.
_SKEWS = {'none': 'identity'} | {
  name: name for name in ('sqrt', 'log', 'sine', 'beta(2,5)', 'beta(1,3)')
}
_DISTANCE = 'distance of query and key, tokens'
_ATTENTION = 'idealised attention, exp(score)'
# Style of text in a figure.
_NOTE: dict[str, Any] = {
  'textcoords': 'offset points',
  'color': '0.4',
  'fontsize': 8,
}


def rope_score(
  distance: ArrayLike, d: int = 4096, base: float = 10000.0
) -> np.ndarray:
  """Returns RoPE's score, (2 / d) sum_s cos(theta_s k), s = 1 ... d / 2.

  theta_s = base^(-2 (s - 1) / d), k is the distance `[...]`, d the width of
  query and key. Scores `[...]` lie in [-1, 1].

  Source: Position-index warping, figure 1; theta_s of Su et al. (2021),
  arXiv:2104.09864, eq. 15.
  """
  s = np.arange(1, d // 2 + 1)
  theta = base ** (-2 * (s - 1) / d)
  angle = np.asarray(distance, np.float64)[..., None] * theta
  return 2 / d * np.cos(angle).sum(axis=-1)


def alibi_score(distance: ArrayLike, slope: float) -> np.ndarray:
  """Returns ALiBi's score `[...]`, 1 - slope |k|; that of the content is 1.

  Source: Position-index warping, eq. 4.
  """
  return 1 - slope * np.abs(np.asarray(distance, np.float64))


def attention(score: ArrayLike) -> np.ndarray:
  """Returns unnormalised attention, exp(score), `[...]`."""
  return np.exp(score)


def unseen(values: np.ndarray, trained: np.ndarray) -> np.ndarray:
  """Returns how far attention `[...]` is outside of its range in training."""
  beyond = np.maximum(values - trained.max(), trained.min() - values)
  return np.maximum(beyond, 0.0)


def sensitivity(positions: np.ndarray) -> np.ndarray:
  """Returns the decrease of RoPE's attention from key to key, `[n - 1]`."""
  return -np.diff(attention(rope_score(positions)))


def skew_values(x: np.ndarray, skew: str) -> np.ndarray:
  """Returns f(x) for x in [0, 1]; the skew function `none` is the identity.

  Raises:
    errors.SpecError: unknown skew function.
  """
  if skew == 'none':
    return x
  with jax.enable_x64(True):
    return np.asarray(warped.skew_function(skew)(x))


def train_positions(length: int, skew: str) -> np.ndarray:
  """Returns tail-warped training positions, p = l f(i / l), `[length]`.

  Source: Position-index warping, section 4.
  """
  return length * skew_values(np.arange(length) / length, skew)


def test_positions(length: int, train_length: int) -> np.ndarray:
  """Returns interpolated positions, i min(1, L_train / L_test), `[length]`.

  Source: Chen et al. (2023), arXiv:2306.15595, eq. 4.
  """
  return np.arange(length) * min(1.0, train_length / length)


def total_difference(train_length: int, ratio: int, skew: str, c: int) -> float:
  """Returns the difference of sensitivity between training and test tails.

  This is the sum over the last c - 1 steps of |training sensitivity - test
  sensitivity|; `ratio` is L_test / L_train.

  Source: Position-index warping, eq. 6 and table 2. Equation 6 uses the score;
  the values of the table result from its exponential.
  """
  train = train_positions(train_length, skew)[-c:]
  test = test_positions(ratio * train_length, train_length)[-c:]
  return float(np.abs(sensitivity(train) - sensitivity(test)).sum())


def table_2() -> dict[str, tuple[float, ...]]:
  """Returns {skew function: total differences} of the paper's table 2."""
  return {
    skew: tuple(
      total_difference(train_length, ratio, skew, c)
      for train_length, ratio, c in TABLE_2_COLUMNS.values()
    )
    for skew in papers.WARPING_TABLE_2
  }


def mismatches(
  table: Mapping[str, Sequence[float]],
) -> list[tuple[str, str, float, float]]:
  """Returns (row, column, ours, printed) of cells in which the two differ."""
  return [
    (skew, *cell)
    for skew, row in table.items()
    for cell in zip(
      TABLE_2_COLUMNS, row, papers.WARPING_TABLE_2[skew], strict=True
    )
    if abs(cell[1] - cell[2]) > TABLE_2_TOLERANCE
  ]


def deviations(_: Any) -> list[str]:
  """Returns a line for each cell of table 2 that differs from the paper."""
  return [
    f'{row} at {column}: {ours:.3f}, printed {printed:.3f}'
    for row, column, ours, printed in mismatches(table_2())
  ]


def least_attention() -> dict[str, tuple[float]]:
  """Returns the least idealised attention at distances up to 65536."""
  distance = np.arange(2**16 + 1)
  scores = {'rope': rope_score(distance), 'alibi': alibi_score(distance, 2**-8)}
  return {k: (float(attention(score).min()),) for k, score in scores.items()}


def most_unseen() -> dict[str, tuple[float]]:
  """Returns the largest `unseen` attention at distances from 512 to 2047."""
  distance = np.arange(4 * _TEXT_LENGTH)
  scores = {'rope': rope_score(distance)} | {
    f'alibi, slope 1/{2**n}': alibi_score(distance, 2.0**-n)
    for n in range(1, 9)
  }
  values = {name: attention(score) for name, score in scores.items()}
  return {
    name: (float(unseen(x, x[:_TEXT_LENGTH]).max()),)
    for name, x in values.items()
  }


def tail_sensitivity() -> dict[str, tuple[float, ...]]:
  """Returns the mean sensitivity of the last 50 interpolated positions."""
  tails = (_sensitivity_under_pi(_TEXT_LENGTH, n)[1][-_TAIL:] for n in RATIOS)
  return {'rope': tuple(float(tail.mean()) for tail in tails)}


def figure_1(folder: PathLike) -> list[pathlib.Path]:
  """Draws attention by distance: ALiBi's vanishes, RoPE's stays above e^-1."""
  distance = _log_spaced(2**16)
  curves = _attention_curves(distance, (4096, 64))
  figure, axes = plots.panels(1)
  rows = []
  for name, values in curves.items():
    rows += _draw(axes, (name,), distance, values, label=name)
  axes.axhline(math.exp(-1), color='0.4', linestyle='--', linewidth=1)
  place: Any = {'xycoords': ('axes fraction', 'data'), 'xytext': (-3, 3)}
  bound = 'e⁻¹, lower bound of RoPE'
  axes.annotate(bound, (1, math.exp(-1)), ha='right', **place, **_NOTE)
  _label(axes, _DISTANCE, _ATTENTION, log=True)
  header = ('curve', 'distance', 'attention')
  return _save(folder, 'figure_1', figure, header, rows)


def figure_2(folder: PathLike) -> list[pathlib.Path]:
  """Draws attention beyond the training length, and its `unseen` part.

  For a head of ALiBi, this part is at most exp(1 - slope (L_train - 1)).
  """
  distance = _log_spaced(RATIOS[-1] * _TEXT_LENGTH)
  both = np.concatenate([np.arange(_TEXT_LENGTH), distance])
  figure, (left, right) = plots.panels(2)
  rows = []
  for name, values in _attention_curves(both).items():
    seen, values = np.split(values, [_TEXT_LENGTH])
    beyond = unseen(values, seen)
    rows += _draw(left, (name,), distance, values, beyond, label=name)
    _draw(right, (name,), distance, beyond)
  _label(left, _DISTANCE, _ATTENTION, log=True, trained=_TEXT_LENGTH)
  outside = 'how far outside the range seen in training'
  _label(right, _DISTANCE, outside, log=True, trained=_TEXT_LENGTH)
  header = ('curve', 'distance', 'attention', 'unseen')
  return _save(folder, 'figure_2', figure, header, rows)


def figure_a(folder: PathLike) -> list[pathlib.Path]:
  """Draws sensitivity under interpolation, for whole sequences and tails."""
  short, long = _TASK_LENGTH, _TEXT_LENGTH
  figure, (left, right) = plots.panels(2)
  rows = []
  for ratio in RATIOS:
    label = f'L_test = {ratio} L_train' if ratio > 1 else 'L_test = L_train'
    curve = _sensitivity_under_pi(short, ratio)
    rows += _draw(left, (short, ratio), *curve, label=label)
    position, values = (x[-_TAIL:] for x in _sensitivity_under_pi(long, ratio))
    _draw(right, (), position - position[-1], values)
    rows += _rows((long, ratio), position, values)
  fall = 'sensitivity, fall of attention per token'
  position = f'position, tokens (L_train = {short})'
  _label(left, position, fall, log=True, trained=short)
  _label(right, f'tokens from the end (L_train = {long})', '')
  header = ('train_length', 'ratio', 'position', 'sensitivity')
  return _save(folder, 'figure_a', figure, header, rows)


def figure_4(folder: PathLike) -> list[pathlib.Path]:
  """Draws the skew functions on [0, 1]."""
  x = np.linspace(0, 1, 201)
  figure, axes = plots.panels(1)
  rows = []
  for skew, label in _SKEWS.items():
    rows += _draw(axes, (skew,), x, skew_values(x, skew), label=label)
  _label(axes, 'x = i / l', 'f(x)')
  return _save(folder, 'figure_4', figure, ('skew', 'x', 'f'), rows)


def figure_b(folder: PathLike) -> list[pathlib.Path]:
  """Draws the gaps between neighbouring positions of a warped tail.

  Grey lines are dynamic position interpolation. Gaps below 2^-8 appear in the
  CSV only.
  """
  figure, axes = plots.panels(1)
  position = np.arange(1, _TEXT_LENGTH)
  rows = []
  for skew, label in _SKEWS.items():
    gaps = np.diff(train_positions(_TEXT_LENGTH, skew))
    rows += _draw(axes, (skew,), position, gaps, label=label)
  for ratio in RATIOS[1:]:
    test = test_positions(ratio * _TEXT_LENGTH, _TEXT_LENGTH)
    gaps = np.diff(test)[: _TEXT_LENGTH - 1]
    name = f'PI, {ratio}x'
    axes.plot(position, gaps, color='0.5', linestyle='--', linewidth=1)
    axes.annotate(name, (position[0], gaps[0]), xytext=(40, 2), **_NOTE)
    rows += _rows((name,), position, gaps)
  axes.set_yscale('log', base=2)
  axes.set_ylim(2**-8, 2**5)
  gap = 'gap to the position before, tokens'
  _label(axes, f'position, tokens (l = {_TEXT_LENGTH})', gap)
  header = ('skew', 'position', 'gap')
  return _save(folder, 'figure_b', figure, header, rows)


def draw_table_2(folder: PathLike) -> list[pathlib.Path]:
  """Draws total differences as bars; hatched bars differ from the paper."""
  table = table_2()
  off = [cell[:2] for cell in mismatches(table)]
  figure, axes = plots.panels(1)
  rows = []
  for number, (skew, row) in enumerate(table.items()):
    printed = papers.WARPING_TABLE_2[skew]
    x = np.arange(len(row)) + 0.28 * (number - 1)
    axes.bar(
      x,
      row,
      width=0.26,
      color=plots.style(number)['color'],
      edgecolor='white',
      linewidth=0,
      hatch=['///' if (skew, c) in off else '' for c in TABLE_2_COLUMNS],
      label='no warping' if skew == 'none' else skew,
    )
    cells = zip(x, TABLE_2_COLUMNS, row, printed, strict=True)
    for place, name, value, paper in cells:
      text, top = f'{value:.3f}\n({paper:.3f})', (place, max(value, paper))
      above = {'xytext': (0, 5), 'textcoords': 'offset points', 'ha': 'center'}
      axes.annotate(text, top, fontsize=7, **above)
      rows.append((skew, name, value, paper, (skew, name) in off))
    diamond = {'color': 'white', 'markeredgecolor': 'black', 'markersize': 5}
    label = 'print, in brackets' if number == len(table) - 1 else None
    axes.plot(x, printed, 'D', label=label, **diamond)
  label = f'more than {TABLE_2_TOLERANCE} off the print'
  hatched = {'color': '0.7', 'edgecolor': 'white', 'hatch': '///'}
  axes.bar([0], [0], label=label, **hatched)
  axes.set_xticks(range(len(TABLE_2_COLUMNS)), TABLE_2_COLUMNS)
  total = 'total difference of sensitivity in the tail'
  _label(axes, 'L_train : L_test / L_train', total)
  axes.margins(y=0.1)
  header = ('skew', 'setting', 'total_difference', 'printed', 'mismatch')
  return _save(folder, 'table_2', figure, header, rows)


def _log_spaced(longest: int) -> np.ndarray:
  """Returns integers from 1 to `longest`, evenly spaced on a log axis."""
  octaves = math.log2(longest)
  return np.unique(np.round(2 ** np.linspace(0, octaves, int(30 * octaves))))


def _attention_curves(
  distance: np.ndarray, widths: Sequence[int] = (4096,)
) -> dict[str, np.ndarray]:
  """Returns RoPE's attention for each width, and ALiBi's for three slopes."""
  rope = {f'RoPE, d = {d}': rope_score(distance, d) for d in widths}
  alibi = {f'ALiBi, slope 1/{n}': alibi_score(distance, 1 / n) for n in _SLOPES}
  return {name: attention(score) for name, score in (rope | alibi).items()}


def _sensitivity_under_pi(
  train_length: int, ratio: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the indices of all tokens but the first, and sensitivities."""
  test = test_positions(ratio * train_length, train_length)
  return np.arange(1, len(test)), sensitivity(test)


def _draw(
  axes: Any, key: tuple[Any, ...], x: Any, *ys: Any, label: str | None = None
) -> list[tuple[Any, ...]]:
  """Draws the first of `ys` and returns CSV rows with all `ys`."""
  number = len(axes.lines)
  every = max(1, len(x) // 9)
  marks = (number * every // len(_SKEWS), every)
  axes.plot(x, ys[0], label=label, markevery=marks, **plots.style(number))
  return _rows(key, x, *ys)


def _label(
  axes: Any, x: str, y: str, log: bool = False, trained: int | None = None
) -> None:
  """Labels the axes and marks the training length."""
  if trained is not None:
    axes.axvline(trained, color='0.6', linewidth=1, zorder=1)
    place = {'xycoords': ('data', 'axes fraction'), 'xytext': (3, -10)}
    axes.annotate('L_train', (trained, 1), **place, **_NOTE)
  if log:
    axes.set_xscale('log', base=2)
  axes.set(xlabel=x, ylabel=y)


def _rows(names: tuple[Any, ...], *columns: Any) -> list[tuple[Any, ...]]:
  """Returns CSV rows: `names`, then one number from each column."""
  points = zip(*(column.tolist() for column in columns), strict=True)
  return [(*names, *point) for point in points]


def _save(
  folder: PathLike,
  name: str,
  figure: Any,
  header: Sequence[str],
  rows: Iterable[Any],
) -> list[pathlib.Path]:
  folder = files.make_folder(folder)
  picture, numbers = folder / f'{name}.png', folder / f'{name}.csv'
  plots.finish(figure, picture)
  tables.write_csv(numbers, header, rows)
  return [picture, numbers]
