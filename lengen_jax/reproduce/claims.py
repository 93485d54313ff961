"""Statistical tests of claims."""

from collections.abc import Sequence
import math
import statistics
from typing import Any, NamedTuple

from scipy import stats

from lengen_jax.reproduce.experiment import (
  Claim,
  Comparison,
  Operand,
  Results,
)

# Significance level of a one-sided test.
LEVEL = 0.05
UNMEASURED = 'not measured'
DEPENDS = 'depends on training'
# Verdict on a claim by the most adverse outcome of its comparisons.
_VERDICTS = {'fails': 'refuted', 'unclear': 'not seen', 'holds': 'confirmed'}


def judge(claim: Claim, results: Results) -> Results:
  """Returns a claim with its verdict after all training and at earlier steps.

  The verdict is 'depends on training' if the claim is confirmed at one of the
  steps and refuted at another.
  """
  judged = _judge(claim, results)
  steps = _common_steps(claim, results)
  verdicts = [
    _judge(claim, _at_step(results, n))['verdict'] for n in range(len(steps))
  ]
  if steps:
    judged['by_step'] = [list(x) for x in zip(steps, verdicts, strict=True)]
  if {'confirmed', 'refuted'} <= {*verdicts}:
    judged['verdict'] = DEPENDS
  return judged


def _common_steps(claim: Claim, results: Results) -> list[int]:
  """Returns the steps at which a claim's models were tested, [] if once."""
  names = _part_names(claim)
  steps = [
    row.get('trajectory', {}).get('steps', [])
    for part in results['parts']
    if part['name'] in names
    for row in part['rows']
  ]
  alike = steps and all(one == steps[0] for one in steps)
  return steps[0] if alike else []


def _at_step(results: Results, n: int) -> Results:
  """Returns results with the scores of the n-th step of trajectories."""

  def at(row: Results) -> Results:
    if 'trajectory' not in row:
      return row
    return row | {'values': [steps[n] for steps in row['trajectory']['values']]}

  parts = [
    part | {'rows': [at(row) for row in part['rows']]}
    for part in results['parts']
  ]
  return results | {'parts': parts}


def _judge(claim: Claim, results: Results) -> Results:
  """Returns a claim with its verdict and the outcomes of its comparisons.

  A comparison is Welch's one-sided t test (1947) over seeds, in each direction:
  it holds, fails, or is unclear. Each of its two models has a variance of its
  own, so that a noisy reference, or rows that differ in noise, do not make
  comparisons significant; that models of a seed share their data is not used.
  Failures are corrected for multiple comparisons by the method of Holm
  (1979). Comparisons that a scale omits are not counted; nor are those of means
  over fewer than half of their parts. On data of another kind than the paper's,
  or below the size that a claim needs, it is not comparable, whatever the
  outcomes.
  """
  tests = [test(results, one) for one in claim.comparisons]
  outcomes = _outcomes(tests)
  verdicts = (_VERDICTS[kind] for kind in _VERDICTS if kind in outcomes)
  verdict = next(verdicts, UNMEASURED)
  same_kind = all(
    part.get('same_kind', True)
    for part in results['parts']
    if part['name'] in _part_names(claim)
  )
  small = claim.full_size and results['scale'] != 'paper'
  if verdict != UNMEASURED and (small or not same_kind):
    verdict = 'not comparable'
  return {
    'key': claim.key,
    'text': claim.text,
    'verdict': verdict,
    'comparisons': [
      {
        'low': _as_json(one.low),
        'high': _as_json(one.high),
        'by': one.margin,
        'relative': one.relative,
        'outcome': outcome,
        'effect': None if test is None else test.mean + test.margin,
        'interval': _interval(test),
      }
      for one, test, outcome in zip(
        claim.comparisons, tests, outcomes, strict=True
      )
    ],
  }


def _part_names(claim: Claim) -> set[str]:
  """Returns the parts that a claim compares."""
  operands = (x for one in claim.comparisons for x in (one.low, one.high))
  return {x[0] for x in operands if isinstance(x, tuple)}


class Test(NamedTuple):
  """A comparison: high - low - margin.

  Attributes:
    mean: mean over seeds.
    error: standard error of the mean; 0 if exact, None if unknown.
    freedom: degrees of freedom.
    margin: the margin, in the unit of the scores.
  """

  mean: float
  error: float | None
  freedom: float = 1.0
  margin: float = 0.0


def test(results: Results, comparison: Comparison) -> Test | None:
  """Returns the test of a comparison; None if a score is missing."""
  low, high = (_scores(results, x) for x in (comparison.low, comparison.high))
  if not low or not high or None in low + high:
    return None
  by = comparison.margin
  bound = [x * (1 - by) if comparison.relative else x - by for x in high]
  margin = statistics.fmean(high) - statistics.fmean(bound)
  mean = statistics.fmean(bound) - statistics.fmean(low)
  exact = {part['name'] for part in results['parts'] if part.get('exact')}
  operands = (comparison.low, comparison.high)
  if {one[0] for one in operands if isinstance(one, tuple)} <= exact:
    return Test(mean, 0.0, margin=margin)
  seeds = len(low)
  if seeds < 2:
    return Test(mean, None, margin=margin)
  variances = [statistics.variance(scores) / seeds for scores in (low, bound)]
  # With coarse scores, a variance of 0 may be chance.
  if not any(variances):
    return Test(mean, None, margin=margin)
  squares = sum(variance**2 for variance in variances)
  freedom = (seeds - 1) * sum(variances) ** 2 / squares
  return Test(mean, math.sqrt(sum(variances)), freedom, margin)


def _interval(test: Test | None) -> list[float] | None:
  """Returns the 90 % interval of an effect, if there is one.

  A comparison holds if the interval is above its margin.
  """
  if test is None or not test.error:
    return None
  reach = float(stats.t.ppf(1 - LEVEL, test.freedom)) * test.error
  effect = test.mean + test.margin
  return [effect - reach, effect + reach]


def _outcomes(tests: Sequence[Test | None]) -> list[str]:
  """Returns 'holds', 'fails', 'unclear' or 'not measured' per comparison."""
  outcomes, failures = [], []
  for index, test in enumerate(tests):
    if test is None:
      outcomes.append(UNMEASURED)
    elif test.error is None:
      outcomes.append('unclear')
    elif not test.error:
      outcomes.append('holds' if test.mean > 0 else 'fails')
    else:
      t = test.mean / test.error
      holds = stats.t.sf(t, test.freedom) < LEVEL
      outcomes.append('holds' if holds else 'unclear')
      failures.append((stats.t.cdf(t, test.freedom), index))
  for number, (p, index) in enumerate(sorted(failures)):
    if p >= LEVEL / (len(failures) - number):
      break
    outcomes[index] = 'fails'
  return outcomes


def _scores(results: Results, operand: Operand) -> list[Any] | None:
  """Returns a score of each seed; None if it was not measured."""
  if not isinstance(operand, tuple):
    return [operand] * len(results['seeds'])
  name, row_name, column = operand
  for part in results['parts']:
    if 2 * len(part.get('of', ())) < part.get('of_all', 0):
      continue
    for row in part['rows']:
      if (part['name'], row['name']) == (name, row_name):
        if column in part['columns']:
          n = part['columns'].index(column)
          return [scores[n] for scores in row['values']]
  return None


def _as_json(operand: Operand) -> Any:
  return list(operand) if isinstance(operand, tuple) else operand
