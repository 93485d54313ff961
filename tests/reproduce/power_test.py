"""Tests `lengen_jax/reproduce/power.py`."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from lengen_jax.reproduce import claims, power, run
from lengen_jax.reproduce import experiment as experiment_lib

LOW = experiment_lib.Claim(
  'X1', 'low', experiment_lib.parse_comparisons('part: low < high @ 1')
)
EXPERIMENT = experiment_lib.Experiment('paper/table', '', (), claims=(LOW,))


def results(low, high):
  rows = {'low': low, 'high': high}
  return {
    'scale': 'cpu',
    'seeds': list(range(len(low))),
    'parts': [
      {
        'name': 'part',
        'columns': [1],
        'rows': [
          {'name': name, 'values': [[x] for x in values]}
          for name, values in rows.items()
        ],
      }
    ],
  }


def recorded_test(low, high):
  return claims.test(results(low, high), LOW.comparisons[0])


@pytest.mark.parametrize('seeds', [2, 3, 5])
@pytest.mark.parametrize('spread', [1.0, 2.5])
def test_detected_as_often_as_stated(seeds, spread):
  # Variances of 1 and spread**2, each of two seeds.
  half = np.sqrt(0.5)
  test = recorded_test((-half, half), (-half * spread, half * spread))
  difference = power.detectable(test, 2, seeds)
  rng = np.random.default_rng(seeds)
  low = rng.normal(0.0, 1.0, (20_000, seeds))
  high = rng.normal(difference, spread, (20_000, seeds))
  found = stats.ttest_ind(
    high, low, axis=1, equal_var=False, alternative='greater'
  )
  held = np.mean(found.pvalue < claims.LEVEL)
  assert abs(held - power.POWER) < 0.03


def test_windows_limit_what_seeds_detect():
  half = np.sqrt(0.5)
  found = results((-half, half), (-half, half))
  for row, windows in zip(
    found['parts'][0]['rows'], ([-3.0, 0.0, 3.0], [0.0, 0.0, 0.0]), strict=True
  ):
    row['windows'] = [{'mean': windows, 'noise': 0.0}]
  test = claims.test(found, LOW.comparisons[0])
  assert test.variances == pytest.approx((0.5, 0.5, 3.0))
  # With many seeds, two degrees of freedom and a variance of 3 remain.
  rng = np.random.default_rng(0)
  scores = power.detectable(test, 2, 500) + rng.normal(0, 3, (20_000, 3))
  found = stats.ttest_1samp(scores, 0, axis=1, alternative='greater')
  assert abs(np.mean(found.pvalue < claims.LEVEL) - power.POWER) < 0.03


@pytest.mark.parametrize('differences', [(1.5,), (-1.5,), (1.5, -1.2), (3, 3)])
def test_decided_as_often_as_stated(differences):
  """Simulated seeds of models whose scores differ confirm or refute a claim."""
  claim = experiment_lib.Claim(
    'X1',
    '',
    experiment_lib.parse_comparisons('part: low < high|other @ 1')[
      : len(differences)
    ],
  )
  half = np.sqrt(0.5)

  def scores(low, *others):
    found = results(low, others[0])
    rows = found['parts'][0]['rows']
    rows += [
      {'name': 'other', 'values': [[x] for x in each]} for each in others[1:]
    ]
    return found

  mean = (-half, half)
  before = scores(mean, *([x + d for x in mean] for d in differences))
  tests = [claims.test(before, one) for one in claim.comparisons]
  seeds, trials = 4, 400
  rng = np.random.default_rng(0)
  verdicts = [
    claims.judge(
      claim,
      scores(
        rng.normal(0, 1, seeds), *(rng.normal(d, 1, seeds) for d in differences)
      ),
    )['verdict']
    for _ in range(trials)
  ]
  found = np.mean([x in ('confirmed', 'refuted') for x in verdicts])
  # Comparisons with the same reference are not independent.
  allowed = 0.05 if len(differences) == 1 else 0.1
  assert abs(found - power.decided(tests, 2, seeds)) < allowed


def test_seeds_needed():
  test = recorded_test((-0.5, 0.0, 0.5), (0.1, 0.6, 1.1))
  needed = power.seeds_needed([test], 3)
  assert power.decided([test], 3, needed) >= power.POWER
  assert power.decided([test], 3, needed - 1) < power.POWER
  # The comparison that needs most decides.
  easy = recorded_test((-0.5, 0.0, 0.5), (9.1, 9.6, 10.1))
  assert power.seeds_needed([easy, test], 3) >= needed
  assert power.seeds_needed([easy], 3) < needed
  hopeless = recorded_test((-0.5, 0.0, 0.5), (-0.49, 0.01, 0.51))
  assert power.seeds_needed([hopeless], 3) is None
  # One comparison that fails refutes the claim.
  fails = recorded_test((9.1, 9.6, 10.1), (-0.5, 0.0, 0.5))
  assert power.seeds_needed([hopeless, fails], 3) < needed


@pytest.mark.parametrize(
  ('low', 'high', 'seeds', 'text'),
  [
    ((0, 1, 2), (2, 3, 4.5), 3, 'X1: 3 seeds detect differences of 3.1, and '),
    ((0, 1, 2), (2, 3, 4.5), 3, 'a probability of 53% if the recorded ones'),
    ((0, 1, 2), (2, 3, 4.5), 3, 'are true; 5 seeds decide it with a '),
    ((0, 1, 2), (0.1, 1.1, 2.1), 3, '; for 80%, it needs more than 50 seeds'),
    ((2, 3, 4), (0, 1, 2), 3, '; 1 of 1 recorded differences contradict it'),
  ],
)
def test_report(low, high, seeds, text):
  (line,) = power.report(EXPERIMENT, results(low, high), 'cpu', seeds)
  assert text in line, line


def test_no_variance_no_line():
  assert not [*power.report(EXPERIMENT, results((1, 1), (2, 2)), 'cpu', 3)]
  assert not [*power.report(EXPERIMENT, results((1,), (2,)), 'cpu', 3)]


def test_claims_that_a_scale_cannot_decide_have_no_line():
  found = results((0, 1, 2), (2, 3, 4.5))
  full = dataclasses.replace(LOW, full_size=True)
  experiment = dataclasses.replace(EXPERIMENT, claims=(full,))
  assert not [*power.report(experiment, found, 'cpu', 3)]
  assert [*power.report(experiment, found, 'paper', 3)]
  found['parts'][0]['same_kind'] = False
  assert not [*power.report(EXPERIMENT, found, 'cpu', 3)]


def test_comparisons_of_unknown_variance_confirm_nothing():
  sure = recorded_test((0.0, 0.1, 0.2), (9.0, 9.1, 9.2))
  assert power.decided([sure], 3, 3) == 1.0
  unknown = recorded_test((1.0, 1.0), (2.0, 2.0))
  assert unknown.error is None
  assert power.decided([sure, unknown], 3, 3) == 0.0
  # A failure refutes the claim all the same, also an exact one.
  fails = recorded_test((9.0, 9.1, 9.2), (0.0, 0.1, 0.2))
  assert power.decided([fails, unknown], 3, 3) == 1.0
  assert power.decided([unknown, sure, claims.Test(-1.0)], 3, 3) == 1.0


def test_models_that_diverged_decide_nothing():
  found = results((0.0, 0.1, 0.2), (9.0, 9.1, 9.2))
  other = {'name': 'other', 'values': [[9.0], [None], [9.2]]}
  found['parts'][0]['rows'].append(other)
  both = experiment_lib.parse_comparisons('part: low < high|other @ 1')
  claim = dataclasses.replace(LOW, comparisons=both)
  assert claims.judge(claim, found)['verdict'] == claims.UNMEASURED
  experiment = dataclasses.replace(EXPERIMENT, claims=(claim,))
  (line,) = power.report(experiment, found, 'cpu', 3)
  assert 'a probability of 0%' in line
  # Nor do some of the rows decide a claim about others.
  del found['parts'][0]['rows'][2]
  found['rows'] = ['low', 'high']
  (line,) = power.report(experiment, found, 'cpu', 3)
  assert 'a probability of 0%' in line


def test_results_of_more_seeds_are_preferred(tmp_path, monkeypatch):
  monkeypatch.setattr(power.config_file, 'folder', lambda: tmp_path / 'configs')
  for place, seeds in (
    ('docs/results/paper_table_cpu.json', 3),
    ('paper/table/cpu/reproduction.json', 2),
  ):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(results(range(seeds), range(seeds))))
  _, found = power.recorded(EXPERIMENT, 'cpu', tmp_path)
  assert len(found['seeds']) == 3


def test_drawings_have_no_variance(tmp_path, monkeypatch):
  found = results((0.0, 1.0, 2.0), (2.0, 3.0, 4.5))
  drawing = {'name': 'drawing', 'exact': True, 'columns': [], 'rows': []}
  monkeypatch.setattr(power, 'recorded', lambda *_: ('file', found))
  found['parts'].append(drawing)
  assert [*power.lines(EXPERIMENT, 'cpu', tmp_path, 3)]
  found['parts'] = [drawing]
  assert not [*power.lines(EXPERIMENT, 'cpu', tmp_path, 3)]


def test_some_rows():
  """Comparisons of other rows are not counted, and confirm nothing."""
  found = results((0, 1, 2), (9, 10, 11))
  (part,) = found['parts']
  names = [row['name'] for row in part['rows']]
  assert power._some(found, {'part': names})['parts'] == found['parts']
  assert not power._some(found, {'other': names})['parts']
  # The mean of some parts is not that of all.
  found['parts'].append(part | {'name': 'mean', 'of': [part['name'], 'other']})
  of_two = {part['name']: names, 'mean': names}
  assert power._some(found, of_two)['parts'] == [part]
  found['parts'].pop()
  found = power._some(found, {part['name']: names[:1]})
  assert [row['name'] for row in found['parts'][0]['rows']] == names[:1]
  assert not [*power.report(EXPERIMENT, found, 'cpu', 3)]
  sure = recorded_test((0.0, 0.1, 0.2), (9.0, 9.1, 9.2))
  assert power.decided([sure], 3, 3, partial=True) == 0.0
  fails = recorded_test((9.0, 9.1, 9.2), (0.0, 0.1, 0.2))
  assert power.decided([fails], 3, 3, partial=True) == 1.0


def test_it_is_printed_before_the_runs(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(power.config_file, 'folder', lambda: tmp_path / 'configs')
  part = run.parts_lib.Part(name='part')
  seen = []

  def start(self, request, previous):
    seen.append(capsys.readouterr().out)
    return results((1, 2), (3, 4))['parts'][0] | {'kind': 'x'}

  monkeypatch.setattr(run.parts_lib.Part, 'run', start)
  experiment = experiment_lib.Experiment(
    'paper/table', '', (part,), claims=(LOW,)
  )
  run.reproduce(experiment, 'hours', tmp_path)
  assert 'no recorded results' in seen[0]
  docs = tmp_path / 'docs/results'
  docs.mkdir(parents=True)
  (docs / 'paper_table_cpu.json').write_text(
    json.dumps(results((0, 1), (2, 3.5)))
  )
  # The result of the first call is of the same scale and comes first.
  for folder, name in (
    (tmp_path, 'paper/table/hours/reproduction.json'),
    (tmp_path / 'other', 'docs/results/paper_table_cpu.json'),
  ):
    run.reproduce(experiment, 'hours', folder)
    assert f'{name}, with' in seen[-1] and '3 seeds detect' in seen[-1]
  # One seed decides nothing: what those of the scale detect is printed.
  run.reproduce(experiment, 'hours', tmp_path / 'one', seeds=[0])
  assert 'use --seeds=0,1,2\n' in seen[-1] and '3 seeds detect' in seen[-1]
  # A damaged file is replaced by the run.
  damaged = tmp_path / 'paper/table/hours/reproduction.json'
  for text in ('{', '{}'):
    damaged.write_text(text)
    run.reproduce(experiment, 'hours', tmp_path)
    assert 'paper_table_cpu.json, with' in seen[-1]
  assert json.loads(damaged.read_text())['name'] == 'paper/table'
