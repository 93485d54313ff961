"""Tests `lengen_jax/analysis/sweep_report.py`."""

import csv

from matplotlib import pyplot as plt
import pytest

from lengen_jax import errors
from lengen_jax.analysis import plots, sweep_report
from tests.analysis import made_up


def sweep_results(steps=()):
  """Results of two runs, with scores at `steps` that grow by 0.1 each."""
  results = made_up.sweep_results(['fire', 'rope'], {})
  for number, run in enumerate(results['runs']):
    run['points'] = [dict(point) for point in run['points']]
    (point,) = run['points']
    if steps:
      scores = [
        [0.1 * n + number / 100] * len(results['lengths'])
        for n in range(len(steps))
      ]
      point['trajectory'] = {'steps': steps, 'loss': scores}
      point['trajectory'] |= {'accuracy': scores, 'exact': scores}
    # A worse point, which is not drawn.
    run['points'].append(point | {'seed': 1, 'trajectory': None})
  return results


@pytest.mark.parametrize('steps', [[], [100]])
def test_points_tested_at_their_end_have_no_curve_by_step(tmp_path, steps):
  found = sweep_report.write(sweep_results(steps), tmp_path)
  assert {path.name for path in found} == {
    *('results.json', 'curves.csv', 'accuracy.png', 'report.html')
  }
  assert 'training step' not in (tmp_path / 'report.html').read_text()


def test_only_points_that_are_not_drawn_have_curves_by_step(tmp_path):
  """Seeds were added, with `eval.steps`, and the best points are older."""
  results = sweep_results([25, 50])
  for run in results['runs']:
    best, other = run['points']
    other['trajectory'], best['trajectory'] = best['trajectory'], {'steps': []}
  found = {path.name for path in sweep_report.write(results, tmp_path)}
  assert 'trajectories.csv' in found and 'trajectories.png' not in found
  assert 'training step' not in (tmp_path / 'report.html').read_text()


def test_scores_by_step(tmp_path):
  results = sweep_results([25, 50, 100])
  found = {path.name for path in sweep_report.write(results, tmp_path)}
  assert {'trajectories.csv', 'trajectories.png'} < found
  rows = [*csv.DictReader((tmp_path / 'trajectories.csv').open())]
  assert len(rows) == 2 * 3 * len(results['lengths'])
  assert rows[3] == {
    'run': 'fire',
    'learning_rate': '0.1',
    'seed': '0',
    'step': '50',
    'length': '10',
    **dict.fromkeys(('accuracy', 'exact', 'loss'), '0.1'),
  }
  assert 'training step' in (tmp_path / 'report.html').read_text()


def test_curves_by_step_are_means_beyond_the_training_lengths():
  results = sweep_results([25, 100])
  for point in results['runs'][0]['points'][:1]:
    # Lengths 10, 20 and 40, trained up to 10.
    point['trajectory']['accuracy'] = [[0.9, 0.2, 0.4], [0.8, 0.5, 0.7]]
  results['train_lengths'] = [1, 10]
  figure, axes = plt.subplots()
  plots.score_trajectories(axes, results, 'percent', 100)
  plt.close(figure)
  (fire, rope) = axes.get_lines()
  assert [*fire.get_xdata()] == [25, 100]
  assert fire.get_ydata() == pytest.approx([30, 60])
  assert rope.get_ydata() == pytest.approx([1, 11])
  assert axes.get_ylabel() == 'percent, mean over lengths beyond 10'


def test_a_picture_that_cannot_be_written(tmp_path):
  (tmp_path / 'accuracy.png').mkdir()
  with pytest.raises(
    errors.WorkdirError, match=r'cannot write .*accuracy\.png'
  ):
    sweep_report.write(sweep_results(), tmp_path)
  assert not plt.get_fignums()
