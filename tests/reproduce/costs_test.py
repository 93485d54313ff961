"""What experiments cost, against counts by hand."""

import dataclasses

import pytest

from lengen_jax import reproduce
from lengen_jax.reproduce import costs, parts, run
from lengen_jax.training import runs as runs_lib

ONE_LAYER = ('--config.model.num_layers=1',)


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


def test_text_takes_forty_minutes_at_small():
  """Each of these experiments trains language models of one size."""
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
  monkeypatch.setattr(costs, '_step_seconds', lambda run: 450.0)
  experiment = reproduce.get('fire/threshold')
  request = parts.Request('tiny', (0, 1), (), str(tmp_path), experiment.name)
  (part,) = experiment.parts
  config, init, folder = part.prepared(request, ())
  assert init is None and config.train.steps == 8
  (line,) = costs.remaining(experiment.parts, request)
  # Four runs of eight steps of 7.5 minutes.
  assert line.startswith(
    'c4: 4 x 8 steps to train, about 240 min at 450 s per step of fire('
  )
  left = part.unfinished(request, ())
  assert ['fixed' in one.model.encoding for one in left] == [True, False] * 2
  results = [
    tmp_path / folder / f'seed{seed}' / runs_lib.folder(run) / 'curve.json'
    for seed in request.seeds
    for run in part.parse(config, 'tiny').values()
  ]
  for path in results:
    path.parent.mkdir(parents=True)
  for path in results[:3]:
    path.touch()
  (line,) = costs.remaining(experiment.parts, request)
  assert 'c4: 1 x 8 steps to train, about 60 min' in line
  results[3].touch()
  assert not [*costs.remaining(experiment.parts, request)]


@pytest.mark.one_jax
def test_runs_that_start_from_other_models(tmp_path, monkeypatch):
  monkeypatch.setattr(costs, '_TIMED_STEPS', 1)
  experiment = reproduce.get('randomized/table2')
  request = parts.Request(
    'tiny', (0,), ONE_LAYER, str(tmp_path), experiment.name
  )
  first, second = costs.remaining(experiment.parts, request)
  assert first.startswith('pretrained: 1 x 8 steps')
  assert second.startswith('finetuned: 3 x 8 steps')
  tuned = experiment.parts[1]
  known = [{'name': 'pretrained', 'trained': 'trained/x'}]
  left = tuned.unfinished(request, known)
  assert [one.train.init_from for one in left] == ['trained/x'] * 3
  config, _, folder = tuned.prepared(request, known)
  run = tuned.parse(config, 'tiny')['alibi']
  done = tmp_path / folder / 'seed0/from-rope' / runs_lib.folder(run)
  done.mkdir(parents=True)
  (done / 'curve.json').touch()
  assert len(tuned.unfinished(request, known)) == 2


@pytest.mark.parametrize(
  ('name', 'lines'),
  [
    # Three of eight rows of a part are trained.
    ('su/mlm', ['sinusoidal: 3 x 8', 'rope: 3 x 8']),
    pytest.param(
      'randomized/table3',
      ['imagenet: 12 x 8', 'no delimiter: 2 x 8'],
      marks=pytest.mark.slow,
    ),
    ('su/figure1', []),
  ],
)
def test_steps_of_each_architecture_are_timed(
  name, lines, tmp_path, monkeypatch
):
  monkeypatch.setattr(costs, '_TIMED_STEPS', 1)
  experiment = reproduce.get(name)
  request = parts.Request(
    'tiny', (0,), ONE_LAYER, str(tmp_path), experiment.name
  )
  found = [*costs.remaining(experiment.parts, request)]
  assert [line.partition(' steps ')[0] for line in found] == lines


@pytest.mark.parametrize(
  ('scale', 'timed'), [('hours', True), ('small', True), ('cpu', False)]
)
def test_the_time_is_printed_before_training(
  scale, timed, tmp_path, monkeypatch, capsys
):
  """Data is checked first."""
  order = []
  monkeypatch.setattr(parts.ConfiguredPart, 'check', lambda *_: order.append(1))
  monkeypatch.setattr(
    costs, 'remaining', lambda *_: order.append(2) or ['long']
  )

  def train(self, request, previous):
    order.append(3)
    return self.results([], columns=[])

  monkeypatch.setattr(parts.ConfiguredPart, 'run', train)
  experiment = dataclasses.replace(reproduce.get('fire/threshold'), claims=())
  run.reproduce(experiment, scale, tmp_path)
  assert order == ([1, 2, 3] if timed else [1, 3])
  assert ('fire/threshold: long' in capsys.readouterr().out) == timed
