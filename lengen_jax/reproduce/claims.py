"""Whether figures bear a claim out."""

import statistics

from scipy import stats

LEVEL = 0.05


def judge(claim, found):
  """Whether figures bear a claim out.

  A comparison holds, or fails, if a one-sided t test of its differences, one of
  each seed, says so at LEVEL; with a single seed that is not to be told.

  Args:
    claim: a Claim.
    found: what `reproduce` has so far.

  Returns:
    dict with the claim, its verdict and its comparisons.
  """
  compared = []
  for less in claim.comparisons:
    low, high = (_values(found, at) for at in (less.low, less.high))
    outcome, effect = 'not measured', None
    if low and high and None not in low + high:
      differences = [b - a - less.by for a, b in zip(low, high, strict=True)]
      effect = statistics.fmean(differences) + less.by
      outcome = 'unclear'
      if len(differences) > 1:
        outcome = _outcome(differences)
    compared.append(
      {
        'low': _as_json(less.low),
        'high': _as_json(less.high),
        'by': less.by,
        'outcome': outcome,
        'effect': effect,
      }
    )
  outcomes = [one['outcome'] for one in compared]
  if 'not measured' in outcomes:
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
    'comparisons': compared,
  }


def _outcome(differences):
  """What a t test of differences says, one of each seed."""
  if len(set(differences)) == 1:
    # The limit of the test: no spread.
    difference = differences[0]
    return 'holds' if difference > 0 else 'fails' if difference else 'unclear'
  for alternative, outcome in (('greater', 'holds'), ('less', 'fails')):
    test = stats.ttest_1samp(differences, 0, alternative=alternative)
    if test.pvalue < LEVEL:
      return outcome
  return 'unclear'


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


def _as_json(at):
  return list(at) if isinstance(at, tuple) else at
