"""Whether figures bear a claim out."""

import math
import statistics

from scipy import stats

LEVEL = 0.05


def judge(claim, found):
  """Whether figures bear a claim out.

  Each comparison has a difference per seed, in the direction of the claim. A
  one-sided t test says whether their mean is above 0, and the comparison holds,
  or below, and it fails. Few seeds tell little of their own deviation: taken is
  the larger of theirs and of that of all comparisons of the claim together,
  with a degree of freedom for each further seed of each pair of models: one
  pair at several lengths is still one. A claim of many comparisons would be
  refuted by chance: levels of failing are those of Holm (1979). What a scale
  leaves out is not measured and not counted.

  Args:
    claim: a Claim.
    found: what `run.reproduce` has.

  Returns:
    dict with the claim, its verdict and its comparisons.
  """
  differences = [_differences(found, less) for less in claim.comparisons]
  exact = [_is_exact(found, less) for less in claim.comparisons]
  models = [_models(less) for less in claim.comparisons]
  outcomes = _outcomes(differences, exact, models)
  if set(outcomes) == {'not measured'}:
    verdict = 'not measured'
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
        'low': _as_json(less.low),
        'high': _as_json(less.high),
        'by': less.by,
        'outcome': outcome,
        'effect': statistics.fmean(each) + less.by if each else None,
      }
      for less, each, outcome in zip(
        claim.comparisons, differences, outcomes, strict=True
      )
    ],
  }


def _differences(found, less):
  """By how much high is above low + by, per seed; None if one is missing."""
  low, high = (_values(found, at) for at in (less.low, less.high))
  if not low or not high or None in low + high:
    return None
  return [b - a - less.by for a, b in zip(low, high, strict=True)]


def _outcomes(differences, exact, models):
  """'holds', 'fails', 'unclear' or 'not measured' for each comparison."""
  several, further_seeds = [], {}
  for one, is_exact, pair in zip(differences, exact, models, strict=True):
    if one and len(one) > 1 and not is_exact:
      several.append(one)
      further_seeds[pair] = len(one) - 1
  freedom = sum(further_seeds.values())
  if several:
    pooled = sum(
      statistics.variance(one) * (len(one) - 1) for one in several
    ) / sum(len(one) - 1 for one in several)
  outcomes, failing = [], []
  for one, is_exact in zip(differences, exact, strict=True):
    if not one:
      outcomes.append('not measured')
      continue
    mean = statistics.fmean(one)
    if is_exact:
      outcomes.append('holds' if mean > 0 else 'fails')
      continue
    outcomes.append('unclear')
    if len(one) > 1:
      variance = max(statistics.variance(one), pooled)
      # No spread at all tells nothing: coarse scores happen to agree.
      t = mean / math.sqrt(variance / len(one)) if variance else 0.0
      if stats.t.sf(t, freedom) < LEVEL:
        outcomes[-1] = 'holds'
      failing.append((stats.t.cdf(t, freedom), len(outcomes) - 1))
  for number, (p, index) in enumerate(sorted(failing)):
    if p >= LEVEL / (len(failing) - number):
      break
    outcomes[index] = 'fails'
  return outcomes


def _models(less):
  """Which models a comparison is of: part and row of either side."""
  return frozenset(
    at[:2] for at in (less.low, less.high) if isinstance(at, tuple)
  )


def _values(found, at):
  """A figure of each seed; None if it is not there."""
  if not isinstance(at, tuple):
    return [at] * len(found['seeds'])
  name, row_name, column = at
  for part in found['parts']:
    if part['name'] == name and column in part['columns']:
      index = part['columns'].index(column)
      for row in part['rows']:
        if row['name'] == row_name:
          return [values[index] for values in row['values']]
  return None


def _is_exact(found, less):
  """Whether no figure of a comparison depends on a seed."""
  names = {at[0] for at in (less.low, less.high) if isinstance(at, tuple)}
  return all(
    part.get('exact', False) for part in found['parts'] if part['name'] in names
  )


def _as_json(at):
  return list(at) if isinstance(at, tuple) else at
