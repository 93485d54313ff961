"""Idealised attention: the effect of distance alone on the score of a key.

The query and all keys have the same content, so RoPE's score, scaled to 1 at
distance 0, is a mean of cosines. Positions are float64, in tokens; the query is
at position 0 by default.

Source: Position-index warping, figures 1, 2 and A, and table 2.
"""

from collections.abc import Mapping

import jax
import numpy as np
from numpy.typing import ArrayLike

from lengen_jax.positions import warped

# Rows, and {column: (L_train, L_test / L_train, c)}.
TABLE_2_ROWS = ('none', 'sqrt', 'beta(2,5)')
TABLE_2_COLUMNS = {
  '20:2x': (20, 2, 10),
  '20:4x': (20, 4, 10),
  '500:2x': (500, 2, 200),
  '500:4x': (500, 4, 200),
}
# As printed in the paper.
TABLE_2_PRINT = {
  'none': (0.099, 0.069, 0.061, 0.066),
  'sqrt': (0.016, 0.063, 0.028, 0.031),
  'beta(2,5)': (0.054, 0.012, 0.031, 0.013),
}
TABLE_2_TOLERANCE = 0.003


def rope_score(
  distance: ArrayLike, d: int = 4096, base: float = 10000.0
) -> np.ndarray:
  """Returns RoPE's score, (2 / d) sum_s cos(theta_s k), s = 1 ... d / 2.

  theta_s = base^(-2 (s - 1) / d).

  Source: Position-index warping, figure 1; theta_s of Su et al. (2021),
  arXiv:2104.09864, eq. 15.

  Args:
    distance: k, of any shape `[...]`.
    d: width of query and key.
    base: base of the frequencies.

  Returns:
    Scores `[...]` in [-1, 1].
  """
  s = np.arange(1, d // 2 + 1)
  theta = base ** (-2 * (s - 1) / d)
  angle = np.asarray(distance, np.float64)[..., None] * theta
  return 2 / d * np.cos(angle).sum(axis=-1)


def alibi_score(distance: ArrayLike, slope: float) -> np.ndarray:
  """Returns ALiBi's score, -slope |k|, without the constant content score.

  Source: Press et al. (2022), arXiv:2108.12409, section 3.

  Args:
    distance: k, of any shape `[...]`.
    slope: slope of the head.

  Returns:
    Scores `[...]`.
  """
  return -slope * np.abs(np.asarray(distance, np.float64))


def attention(score: ArrayLike) -> np.ndarray:
  """Returns unnormalised attention, exp(score), `[...]`.

  Source: Position-index warping, figure 1.
  """
  return np.exp(score)


def unseen(values: np.ndarray, trained: np.ndarray) -> np.ndarray:
  """Returns the distance of attention from its range in training.

  Source: Position-index warping, figure 2, in numbers.

  Args:
    values: attention `[...]`.
    trained: attention at all distances in training, `[n]`.

  Returns:
    Distances `[...]`, 0 within the range.
  """
  beyond = np.maximum(values - trained.max(), trained.min() - values)
  return np.maximum(beyond, 0.0)


def sensitivity(positions: np.ndarray, query: float = 0.0) -> np.ndarray:
  """Returns the difference of RoPE's attention between neighbouring positions.

  Source: Position-index warping, figure A.

  Args:
    positions: positions of the keys, `[n]`.
    query: position of the query.

  Returns:
    Differences `[n - 1]`, positive where attention decreases.
  """
  return -np.diff(attention(rope_score(positions - query)))


def skew_values(x: np.ndarray, skew: str) -> np.ndarray:
  """Returns f(x) for a skew function; `none` is the identity.

  Source: Position-index warping, section 4.

  Args:
    x: `[...]` in [0, 1].
    skew: `none`, or an argument of `warped.skew_function`.

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

  It is the sum over the last c - 1 steps of |sensitivity in training - at
  test|, with warped training positions and interpolated test positions.

  Source: Position-index warping, eq. 6 and table 2. Equation 6 uses the score;
  the values of the table result from its exponential.

  Args:
    train_length: L_train, which is also the warped length l.
    ratio: L_test / L_train, an integer.
    skew: see `skew_values`.
    c: number of positions in the tail.
  """
  train = train_positions(train_length, skew)[-c:]
  test = test_positions(ratio * train_length, train_length)[-c:]
  return np.abs(sensitivity(train) - sensitivity(test)).sum()


def table_2() -> dict[str, dict]:
  """Returns {row: {column: total difference}} of the paper's table 2."""
  return {
    skew: {
      name: total_difference(train_length, ratio, skew, c)
      for name, (train_length, ratio, c) in TABLE_2_COLUMNS.items()
    }
    for skew in TABLE_2_ROWS
  }


def mismatches(table: Mapping[str, Mapping]) -> list[tuple]:
  """Returns (row, column) of the cells that deviate from print."""
  return [
    (skew, name)
    for skew, row in table.items()
    for (name, value), printed in zip(
      row.items(), TABLE_2_PRINT[skew], strict=True
    )
    if abs(value - printed) > TABLE_2_TOLERANCE
  ]
