"""What experiments cost, against counts by hand."""

import re

import pytest

from lengen_jax import reproduce
from lengen_jax.reproduce import costs, parts
from lengen_jax.training import runs as runs_lib


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
  mlm = costs.minutes(reproduce.get('su/mlm'), 'cpu')
  config = parts.load_config('mlm_positions.py', 'cpu', [])
  each = 30 + costs.operations(config) / 40e9
  assert mlm == pytest.approx(2 * 3 * 2 * each / 60)


def test_text_of_one_corpus_takes_forty_minutes_at_small():
  """Each of these experiments trains one size on one corpus."""
  names = (
    *(f'fire/table{n}' for n in (2, 3, 4, 5, 6, 7)),
    *('fire/figure6', 'fire/section3', 'fire/threshold', 'fire/yarn'),
    *('warping/table1', 'warping/table3', 'warping/tableB', 'warping/figure7'),
    *('randomized/table1', 'randomized/table2', 'randomized/table3'),
    *('su/mlm', 'su/entropy', 'su/order', 'su/window'),
  )
  for name in names:
    minutes = costs.minutes(reproduce.get(name), 'small')
    assert 2 < minutes <= 40, (name, minutes)


def test_remaining_runs_are_those_without_results(tmp_path, monkeypatch):
  # A step of the first run takes half a second.
  monkeypatch.setattr(costs, '_time_steps', lambda config: (10, 5.0))
  experiment = reproduce.get('fire/threshold')
  request = parts.Request('tiny', (0, 1), (), str(tmp_path), experiment.name)
  (part,) = experiment.parts
  steps = part.make_config(request).train.steps
  line = costs.remaining(experiment.parts, request)
  minutes = 4 * steps * 0.5 / 60
  assert line.startswith(f'4 runs to train, about {minutes:.0f} min')
  assert '10 timed steps of fire(' in line and '0.5 s each' in line
  folder, left = part.unfinished(request, ())
  assert [one.model.encoding.count('fixed') for one in left] == [1, 0, 1, 0]
  results = [
    tmp_path / folder / f'seed{seed}' / runs_lib.folder(run) / 'curve.json'
    for seed in request.seeds
    for run in part.parse(part.make_config(request), 'tiny').values()
  ]
  for path in results[:3]:
    path.parent.mkdir(parents=True)
    path.touch()
  assert costs.remaining(experiment.parts, request).startswith('1 runs')
  results[3].parent.mkdir(parents=True)
  results[3].touch()
  assert costs.remaining(experiment.parts, request) is None


def test_remaining_runs_of_models_that_start_from_others(tmp_path, monkeypatch):
  monkeypatch.setattr(costs, '_TIMED', 0)
  experiment = reproduce.get('randomized/table2')
  request = parts.Request('tiny', (0,), (), str(tmp_path), experiment.name)
  line = costs.remaining(experiment.parts, request)
  assert re.match('4 runs to train, about 0 min by 1 timed steps of rope', line)
  tuned = experiment.parts[1]
  known = [{'name': 'pretrained', 'trained': 'trained/x', 'rows': []}]
  folder, left = tuned.unfinished(request, known)
  assert [one.train.init_from for one in left] == ['trained/x'] * 3
  run = tuned.parse(tuned.make_config(request), 'tiny')['alibi']
  done = tmp_path / folder / 'seed0/from-rope' / runs_lib.folder(run)
  done.mkdir(parents=True)
  (done / 'curve.json').touch()
  assert len(tuned.unfinished(request, known)[1]) == 2


def test_sweeps_have_no_remaining_runs(tmp_path):
  experiment = reproduce.get('su/figure1')
  request = parts.Request('tiny', (0,), (), str(tmp_path), experiment.name)
  assert costs.remaining(experiment.parts, request) is None
