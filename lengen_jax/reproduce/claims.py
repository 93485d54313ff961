"""Statistical tests of claims."""

from collections.abc import Sequence
import math
import statistics
from typing import Any

from scipy import stats

from lengen_jax.reproduce.experiment import Claim, Comparison, Operand, Results

# Significance level of a one-sided test.
LEVEL = 0.05
UNMEASURED = 'not measured'
# Verdict on a claim by the most adverse outcome of its comparisons.
_VERDICTS = {'fails': 'refuted', 'unclear': 'not seen', 'holds': 'confirmed'}


def judge(claim: Claim, results: Results) -> Results:
  """Returns a claim with its verdict and the outcomes of its comparisons.

  The paired differences of a comparison, one per seed, are tested with a
  one-sided t test in each direction: the comparison holds, fails, or is
  unclear. A variance estimated from few seeds is unreliable. The test therefore
  uses the larger of two variances: that of the comparison, and that pooled over
  the claim. Each distinct pair of models with n seeds adds n - 1 degrees of
  freedom. Failures are corrected for multiple comparisons by the method of Holm
  (1979). Comparisons that a scale omits are not counted; nor are those of means
  over fewer than half of their parts. On data of another kind than the paper's,
  a claim is not comparable, whatever the outcomes.
  """
  differences = [_differences(results, one) for one in claim.comparisons]
  outcomes = _outcomes(results, claim.comparisons, differences)
  verdicts = (_VERDICTS[kind] for kind in _VERDICTS if kind in outcomes)
  verdict = next(verdicts, UNMEASURED)
  if verdict != UNMEASURED and not all(
    part.get('same_kind', True)
    for part in results['parts']
    if part['name'] in _part_names(claim)
  ):
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
        'outcome': outcome,
        'effect': statistics.fmean(each) + one.margin if each else None,
      }
      for one, each, outcome in zip(
        claim.comparisons, differences, outcomes, strict=True
      )
    ],
  }


def _part_names(claim: Claim) -> set[str]:
  """Returns the parts that a claim compares."""
  operands = (x for one in claim.comparisons for x in (one.low, one.high))
  return {x[0] for x in operands if isinstance(x, tuple)}


def _differences(results: Results, comparison: Comparison) -> list[float]:
  """Returns high - low - margin of each seed; [] if a score is missing."""
  low, high = (_scores(results, x) for x in (comparison.low, comparison.high))
  if not low or not high or None in low + high:
    return []
  return [b - a - comparison.margin for a, b in zip(low, high, strict=True)]


def _outcomes(
  results: Results,
  comparisons: Sequence[Comparison],
  differences: Sequence[list[float]],
) -> list[str]:
  """Returns 'holds', 'fails', 'unclear' or 'not measured' per comparison."""
  exact_parts = {p['name'] for p in results['parts'] if p.get('exact')}
  operands = [
    [one for one in (each.low, each.high) if isinstance(one, tuple)]
    for each in comparisons
  ]
  exact = [{one[0] for one in each} <= exact_parts for each in operands]
  squares, count, further_seeds = 0.0, 0, {}
  for each, is_exact, scores in zip(differences, exact, operands, strict=True):
    if len(each) > 1 and not is_exact:
      further = len(each) - 1
      squares += statistics.variance(each) * further
      count += further
      further_seeds[frozenset(one[:2] for one in scores)] = further
  freedom = sum(further_seeds.values())
  pooled = squares / count if count else 0.0
  outcomes, failures = [], []
  for index, (each, is_exact) in enumerate(
    zip(differences, exact, strict=True)
  ):
    if not each:
      outcomes.append(UNMEASURED)
      continue
    mean = statistics.fmean(each)
    if is_exact:
      outcomes.append('holds' if mean > 0 else 'fails')
      continue
    outcomes.append('unclear')
    if len(each) > 1:
      variance = max(statistics.variance(each), pooled)
      # With coarse scores, a variance of 0 may be chance.
      t = mean / math.sqrt(variance / len(each)) if variance else 0.0
      if stats.t.sf(t, freedom) < LEVEL:
        outcomes[index] = 'holds'
      failures.append((stats.t.cdf(t, freedom), index))
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
