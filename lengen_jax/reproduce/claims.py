"""Whether figures bear a claim out."""

import statistics


def judge(claim, found):
  """Whether figures bear a claim out.

  A comparison holds if it does so with every seed, by more than seeds differ.

  Args:
    claim: a Claim.
    found: what `reproduce` has so far.

  Returns:
    dict with the claim, its verdict and its comparisons.
  """
  parts = {part['name']: part for part in found['parts']}
  compared = []
  for less in claim.comparisons:
    low, high = (
      _values(parts.get(less.part), at) for at in (less.low, less.high)
    )
    outcome, effect = 'not measured', None
    if low and high and None not in low + high:
      differences = [b - a for a, b in zip(low, high, strict=True)]
      effect = statistics.fmean(differences)
      noise = max(max(x) - min(x) for x in (low, high)) / 2
      outcome = 'unclear'
      if abs(effect) > noise:
        if min(differences) > 0:
          outcome = 'holds'
        elif max(differences) < 0:
          outcome = 'fails'
    compared.append(
      {
        'low': list(less.low),
        'high': list(less.high),
        'part': less.part,
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


def _values(part, at):
  """A figure of each seed; None if it is not there."""
  if part is None:
    return None
  name, column = at
  rows = {row['name']: row for row in part['rows']}
  if name not in rows or column not in part['columns']:
    return None
  index = part['columns'].index(column)
  return [values[index] for values in rows[name]['values']]
