"""What experiments cost, against counts by hand."""

import pytest

from lengen_jax import reproduce
from lengen_jax.reproduce import costs, parts


def test_operations_of_the_base_model():
  config = parts.load_config('fire_c4.py:base', 'paper', [])
  tokens = 600_000 * 256 * 2048
  # 125M parameters but for norms, and pairs of which half are seen.
  parameters = 12 * 12 * 768**2 + 768 * 50304
  assert parameters == pytest.approx(125e6, rel=0.02)
  pairs = 12 * 2 * (2048 / 2) * 768 * 2
  assert costs.operations(config) == pytest.approx(
    tokens * (6 * parameters + 3 * pairs)
  )


def test_hours_are_those_of_each_part_of_the_hardware():
  table_4 = costs.hours(reproduce.get('fire/table4'))
  config = parts.load_config('fire_c4.py:base', 'paper', [])
  # Seven rows, two seeds, 128 chips of 275e12, of which two fifths are reached.
  want = 7 * 2 * costs.operations(config) / (128 * 275e12 * 0.4 * 3600)
  assert table_4 == {(128, 'TPUv4'): pytest.approx(want)}
  finetuned = costs.hours(reproduce.get('fire/table13'))
  assert set(finetuned) == {(128, 'TPUv4'), (256, 'TPUv4'), (32, 'TPUv2')}
  assert set(costs.hours(reproduce.get('su/mlm'))) == {(1, 'TPUv4')}
  assert costs.hours(reproduce.get('warping/table2')) == {}


def test_minutes_count_what_is_trained():
  """Rows that differ in testing alone cost none."""
  mlm = costs.minutes(reproduce.get('su/mlm'))
  config = parts.load_config('mlm_positions.py', 'cpu', [])
  each = 30 + costs.operations(config) / 40e9
  assert mlm == pytest.approx(2 * 3 * 2 * each / 60)
