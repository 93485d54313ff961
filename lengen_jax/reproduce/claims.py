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


def judge(claim: Claim, results: Results) -> Results:
  """Returns a claim with its verdict and the outcomes of its comparisons.

  The paired differences of a comparison, one per seed, are tested with a
  one-sided t test in each direction: the comparison holds, fails, or is
  unclear. As few seeds estimate a variance poorly, the test uses the larger of
  the comparison's own variance and the one pooled over the claim, with one
  degree of freedom for each further seed of each distinct pair of models.
  Failures are corrected for multiple comparisons as by Holm (1979).
  Comparisons that a scale omits are not counted.

  Args:
    claim: the claim.
    results: results of the experiment.
  """
  differences = [_differences(results, one) for one in claim.comparisons]
  exact = [_is_exact(results, one) for one in claim.comparisons]
  models = [_models(one) for one in claim.comparisons]
  outcomes = _outcomes(differences, exact, models)
  if set(outcomes) == {UNMEASURED}:
    verdict = UNMEASURED
  elif 'fails' in outcomes:
    verdict = 'refuted'
  elif 'unclear' in outcomes:
    verdict = 'not seen'
  else:
    verdict = 'confirmed'
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


def _differences(
  results: Results, comparison: Comparison
) -> list[float] | None:
  """Returns high - low - margin of each seed; None if a score is missing."""
  low = _scores(results, comparison.low)
  high = _scores(results, comparison.high)
  if not low or not high or None in low + high:
    return None
  return [b - a - comparison.margin for a, b in zip(low, high, strict=True)]


def _outcomes(
  differences: Sequence[list[float] | None],
  exact: Sequence[bool],
  models: Sequence[frozenset[Any]],
) -> list[str]:
  """Returns 'holds', 'fails', 'unclear' or 'not measured' per comparison."""
  several, further_seeds = [], {}
  for each, is_exact, pair in zip(differences, exact, models, strict=True):
    if each and len(each) > 1 and not is_exact:
      several.append(each)
      further_seeds[pair] = len(each) - 1
  freedom = sum(further_seeds.values())
  pooled = 0.0
  if several:
    pooled = sum(
      statistics.variance(each) * (len(each) - 1) for each in several
    ) / sum(len(each) - 1 for each in several)
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
      # Without any variance, coarse scores happen to agree.
      t = mean / math.sqrt(variance / len(each)) if variance else 0.0
      if stats.t.sf(t, freedom) < LEVEL:
        outcomes[index] = 'holds'
      failures.append((stats.t.cdf(t, freedom), index))
  for number, (p, index) in enumerate(sorted(failures)):
    if p >= LEVEL / (len(failures) - number):
      break
    outcomes[index] = 'fails'
  return outcomes


def _operands(comparison: Comparison) -> list[tuple[str, str, Any]]:
  """Returns the operands that are scores."""
  operands = (comparison.low, comparison.high)
  return [one for one in operands if isinstance(one, tuple)]


def _models(comparison: Comparison) -> frozenset[Any]:
  """Returns the (part, row) pairs that a comparison involves."""
  return frozenset(operand[:2] for operand in _operands(comparison))


def _scores(results: Results, operand: Operand) -> list[Any] | None:
  """Returns a score of each seed; None if it was not measured."""
  if not isinstance(operand, tuple):
    return [operand] * len(results['seeds'])
  part_name, row_name, column = operand
  for part in results['parts']:
    if part['name'] == part_name and column in part['columns']:
      index = part['columns'].index(column)
      for row in part['rows']:
        if row['name'] == row_name:
          return [scores[index] for scores in row['values']]
  return None


def _is_exact(results: Results, comparison: Comparison) -> bool:
  """Whether no score of a comparison depends on the seed."""
  names = {part for part, _, _ in _operands(comparison)}
  return all(
    part.get('exact', False)
    for part in results['parts']
    if part['name'] in names
  )


def _as_json(operand: Operand) -> Any:
  return list(operand) if isinstance(operand, tuple) else operand
