"""Tests `lengen_jax/analysis/report.py`: where plots and page are written."""

import pytest

from lengen_jax.analysis import report

_CURVE = {
  'encoding': 'fire',
  'positions': 'standard',
  'attention_scale': 'none',
  'loss': [2.0, 1.5],
  'loss_by_position': {'8': {'position': [0, 4], 'loss': [2.5, 1.5]}},
  'tokens': 16,
  'parameters': 3,
  'train_seconds': 1.0,
  'refused': {},
}


@pytest.fixture
def results():
  return {
    'train_length': 4,
    'lengths': [4, 8],
    'curves': [_CURVE],
    'corpus': {},
    'versions': {},
    'config': {},
  }


def test_a_folder_gets_plots_and_a_page(results, tmp_path):
  paths = report.write(results, tmp_path)
  assert sorted(path.name for path in paths[1:]) == sorted(
    path.name for path in tmp_path.iterdir()
  )
  assert len(paths) == 4


def test_a_bucket_gets_none(results, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (path,) = report.write(results, 'gs://bucket/runs')
  assert str(path) == 'gs://bucket/runs/results.json'
  assert list(tmp_path.iterdir()) == []
