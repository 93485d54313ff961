"""Tests `lengen_jax/reproduce/idealised.py` and its figures."""

import csv
import itertools
import math

import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.analysis import plots
from lengen_jax.reproduce import idealised

FIGURES = (
  'figure_1',
  'figure_2',
  'figure_a',
  'figure_4',
  'figure_b',
  'table_2',
)
all_figures = pytest.mark.parametrize('name', FIGURES)


@pytest.fixture(scope='module')
def drawn(tmp_path_factory):
  """Paths, and the axes of each figure as they were when it was saved."""
  folder, axes = tmp_path_factory.mktemp('figures') / 'new', {}
  finish = plots.finish

  def keep(figure, path):
    axes[path.stem] = figure.axes
    finish(figure, path)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(plots, 'finish', keep)
    paths = {name: draw(name, folder) for name in FIGURES}
  return paths, axes


def draw(name, folder):
  return getattr(idealised, name.replace('table', 'draw_table'))(folder)


def columns(path, keys):
  """Numbers in a CSV by its first `keys` columns, `[rows, columns]`."""
  with open(path, newline='') as file:
    _, *rows = csv.reader(file)
  return {
    key: np.array([row[keys:] for row in group], np.float64)
    for key, group in itertools.groupby(rows, lambda row: tuple(row[:keys]))
  }


def rope_attention(distance, d=4096):
  return np.exp(idealised.rope_score(distance, d))


def slow_attention(position):
  """exp of the mean cosine, a frequency at a time."""
  s = range(1, 2049)
  cosines = (math.cos(position * 10000 ** (-2 * (i - 1) / 4096)) for i in s)
  return math.exp(math.fsum(cosines) * 2 / 4096)


def test_rope_of_one_frequency():
  distance = [0, math.pi / 3, math.pi / 2, math.pi]
  score = idealised.rope_score(distance, d=2)
  np.testing.assert_allclose(score, [1, 0.5, 0, -1], atol=1e-15)


def test_rope_of_two_frequencies():
  # theta = 1 and 1 / sqrt(base).
  got = idealised.rope_score([[3.0, 20.0]], d=4, base=100.0)
  want = [
    (math.cos(3) + math.cos(0.3)) / 2,
    (math.cos(20) + math.cos(2)) / 2,
  ]
  np.testing.assert_allclose(got, [want], rtol=1e-13)
  got = idealised.rope_score(100.0, d=4)
  assert got == pytest.approx((math.cos(100) + math.cos(1)) / 2, rel=1e-13)


def test_alibi_by_hand():
  got = idealised.alibi_score([-2, 0, 3], slope=0.25)
  assert got.tolist() == [0.5, 1.0, 0.25]
  assert idealised.attention(got)[2] == pytest.approx(1.2840254166877414)


@pytest.mark.parametrize('d', [2, 4, 64, 4096])
def test_rope_stays_above_one_over_e(d):
  distance = np.concatenate(
    [np.arange(2000), np.geomspace(2000, 1e8, 1000), [math.pi]]
  )
  values = idealised.attention(idealised.rope_score(distance, d))
  assert values.min() >= math.exp(-1) * (1 - 1e-12)
  assert values.max() == pytest.approx(math.e)


@pytest.mark.parametrize('slope', [1 / 2, 1 / 16, 1 / 256])
def test_alibi_tends_to_zero(slope):
  distance = np.arange(0, 20000, 10)
  values = idealised.attention(idealised.alibi_score(distance, slope))
  assert values[0] == pytest.approx(math.e)
  assert (np.diff(values) <= 0).all()
  assert 0 <= values[-1] < 1e-30


def test_unseen_is_the_way_to_the_range():
  trained = np.array([3.0, 1.0, 2.0])
  values = np.array([0.25, 1.0, 1.7, 3.0, 5.0])
  got = idealised.unseen(values, trained)
  assert got.tolist() == [0.75, 0, 0, 0, 2]


def test_only_rope_has_unseen_values(drawn):
  curves = columns(drawn[0]['figure_2'][1], 1)
  assert len(curves) == 4
  for (name,), numbers in curves.items():
    distance, _, unseen = numbers.T
    assert (unseen[distance < 512] == 0).all()
    beyond = unseen[distance > 520]
    if name.startswith('RoPE'):
      assert (beyond > 1e-3).all()
      assert beyond[-1] > 0.2
    else:
      slope = 1 / int(name.partition('/')[2])
      # The flattest head has not come to 0 at the training length.
      assert beyond.max() <= math.exp(1 - slope * 511)
      if slope > 1 / 256:
        assert beyond.max() < 1e-10


def test_sensitivity_by_hand():
  positions = np.array([0.0, 0.5, 1.0, 7.25])
  values = [slow_attention(p) for p in positions]
  want = [a - b for a, b in itertools.pairwise(values)]
  got = idealised.sensitivity(positions)
  np.testing.assert_allclose(got, want, rtol=1e-11)


@pytest.mark.parametrize('train_length, c', [(20, 10), (500, 200)])
def test_tail_sensitivity_falls_with_length_under_pi(train_length, c):
  tails = []
  for ratio in (1, 2, 4, 8):
    positions = idealised.test_positions(ratio * train_length, train_length)
    assert len(positions) == ratio * train_length
    tails.append(np.abs(idealised.sensitivity(positions))[1 - c :].mean())
  for shorter, longer in itertools.pairwise(tails):
    assert longer < 0.7 * shorter


def test_positions_by_hand():
  got = idealised.test_positions(8, 4)
  assert got.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
  assert idealised.test_positions(2, 4).tolist() == [0, 1]
  assert idealised.train_positions(4, 'none').tolist() == [0, 1, 2, 3]
  for skew, want in {
    'sqrt': [0, 2, 8**0.5, 12**0.5],
    'sine': [4 * math.sin(math.pi / 8 * i) for i in range(4)],
    'log': [4 * math.log10(1 + 2.25 * i) for i in range(4)],
    # 1 - (1 - x)^6 - 6 x (1 - x)^5 at quarters.
    'beta(2,5)': [0, 1909 / 1024, 57 / 16, 4077 / 1024],
  }.items():
    got = idealised.train_positions(4, skew)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_unknown_skew():
  with pytest.raises(errors.SpecError, match='cubic'):
    idealised.train_positions(4, 'cubic')


def test_total_difference_by_hand():
  # The last 3 of 8 warped positions, the last 3 of 16 under PI: two steps.
  train = [slow_attention(8 * math.sqrt(i / 8)) for i in (5, 6, 7)]
  test = [slow_attention(i / 2) for i in (13, 14, 15)]
  want = sum(
    abs((train[k] - train[k + 1]) - (test[k] - test[k + 1])) for k in (0, 1)
  )
  got = idealised.total_difference(8, 2, 'sqrt', 3)
  assert got == pytest.approx(want, rel=1e-11)


# As printed, and which of the cells for 20 tokens differ from that.
PRINTED = {
  'none': [0.099, 0.069, 0.061, 0.066],
  'sqrt': [0.016, 0.063, 0.028, 0.031],
  'beta(2,5)': [0.054, 0.012, 0.031, 0.013],
}


def test_table_2():
  table = idealised.table_2()
  assert [*table] == [*PRINTED]
  for skew, row in table.items():
    np.testing.assert_allclose(row[2:], PRINTED[skew][2:], rtol=0, atol=0.003)
  # Warping brings the tail nearer to that of longer sequences.
  for warped in ('sqrt', 'beta(2,5)'):
    assert (np.array(table[warped]) < table['none']).all()


def test_mismatches_with_print_are_named():
  table = idealised.table_2()
  assert idealised.mismatches(table) == [
    (skew, '20:4x', table[skew][1], PRINTED[skew][1])
    for skew in ('none', 'sqrt', 'beta(2,5)')
  ]


# A figure of curves and one of bars.
@pytest.mark.parametrize('name', ['figure_4', 'table_2'])
def test_files_are_the_same_each_time(name, drawn, tmp_path):
  again = draw(name, tmp_path)
  assert [path.name for path in again] == [f'{name}.png', f'{name}.csv']
  for one, other in zip(drawn[0][name], again, strict=True):
    assert one.read_bytes() == other.read_bytes()
  assert again[0].read_bytes().startswith(b'\x89PNG')
  assert b'Software' not in again[0].read_bytes()


def want_figure_1(key, x):
  encoding, _, number = key[0].partition(', ')
  if encoding == 'RoPE':
    return [rope_attention(x, int(number.removeprefix('d = ')))]
  return [np.exp(1 - x / int(number.removeprefix('slope 1/')))]


def want_figure_2(key, x):
  trained = want_figure_1(key, np.arange(512))[0]
  (values,) = want_figure_1(key, x)
  return [values, idealised.unseen(values, trained)]


def want_figure_a(key, x):
  train_length, ratio = map(int, key)
  positions = idealised.test_positions(ratio * train_length, train_length)
  return [idealised.sensitivity(positions)[x.astype(int) - 1]]


def want_figure_4(key, x):
  return [idealised.skew_values(x, key[0])]


def want_figure_b(key, x):
  if key[0].startswith('PI'):
    return [1 / int(key[0][4:-1]) + 0 * x]
  positions = idealised.train_positions(512, key[0])
  return [np.diff(positions)[x.astype(int) - 1]]


@pytest.mark.parametrize(
  'name, keys, curves, want',
  [
    ('figure_1', 1, 5, want_figure_1),
    ('figure_2', 1, 4, want_figure_2),
    ('figure_a', 2, 8, want_figure_a),
    ('figure_4', 1, 6, want_figure_4),
    ('figure_b', 1, 9, want_figure_b),
  ],
)
def test_csv_is_what_is_computed_and_drawn(name, keys, curves, want, drawn):
  paths, axes = drawn
  by_key = columns(paths[name][1], keys)
  assert len({*by_key}) == curves
  lines = [line.get_ydata() for axis in axes[name] for line in axis.lines]
  for key, numbers in by_key.items():
    x, *ys = numbers.T
    assert len(x) > 15
    for y, wanted in zip(ys, want(key, x), strict=True):
      np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-15)
      assert any(np.array_equal(y, line) for line in lines)


def test_csv_of_table_2_is_the_table(drawn):
  paths, axes = drawn
  table = idealised.table_2()
  with open(paths['table_2'][1], newline='') as file:
    rows = [*csv.DictReader(file)]
  assert [(row['skew'], row['setting']) for row in rows] == [
    (skew, name)
    for skew in table
    for name in ('20:2x', '20:4x', '500:2x', '500:4x')
  ]
  heights = {bar.get_height() for bar in axes['table_2'][0].patches}
  for row in rows:
    value = float(row['total_difference'])
    column = ['20:2x', '20:4x', '500:2x', '500:4x'].index(row['setting'])
    assert value == table[row['skew']][column]
    assert value in heights
    assert float(row['printed']) == PRINTED[row['skew']][column]
    assert row['mismatch'] == str(row['setting'] == '20:4x')


@pytest.mark.parametrize(
  'name, lengths',
  [('figure_2', [512, 512]), ('figure_a', [20])],
)
def test_training_length_is_marked(name, lengths, drawn):
  marks = [
    text.xy[0]
    for axis in drawn[1][name]
    for text in axis.texts
    if text.get_text() == 'L_train'
  ]
  assert marks == lengths


@all_figures
def test_axes_are_labelled(name, drawn):
  axes = drawn[1][name]
  assert all(axis.get_xlabel() for axis in axes)
  assert axes[0].get_ylabel()
