"""Statistical tests of claims."""

from collections.abc import Collection, Iterable, Sequence
import math
import statistics
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from lengen_jax.analysis.reproduction import UNMEASURED
from lengen_jax.reproduce.experiment import (
  Claim,
  Comparison,
  EARLY,
  Operand,
  Results,
)

# Significance level of a one-sided test.
LEVEL = 0.05
DEPENDS = 'depends on training'
# Verdicts that leave a claim undecided.
OPEN = ('not seen', 'not comparable', UNMEASURED)
VERDICTS = ('confirmed', 'refuted', DEPENDS, *OPEN)
# Verdict on a claim by the most adverse outcome of its comparisons.
_VERDICTS = {'fails': 'refuted', 'unclear': 'not seen', 'holds': 'confirmed'}


def judge(claim: Claim, results: Results, partial: bool = False) -> Results:
  """Returns a claim with its verdict after all training and at earlier steps.

  The verdict is 'depends on training' if the claim is confirmed at one of the
  steps and refuted at another. The models of a part from which another part of
  the claim starts are those after all of their training.

  Args:
    claim: the claim.
    results: results of its experiment.
    partial: whether `results` lack rows that the scale has. A claim with
      comparisons that were not measured can then only be refuted, as where a
      score of some seed is missing, such as that of a model that diverged.
  """
  partial = partial or bool(results.get('rows'))
  places = _places(claim)
  names = {name for name, _ in places}
  parts = [part for part in results['parts'] if part['name'] in names]
  results = results | {'parts': parts}
  judged = _judge(claim, results, partial)
  initial = {part.get('init_part') for part in parts}
  steps = _shared_steps(
    row
    for part in parts
    for row in part['rows']
    if part['name'] not in initial and (part['name'], row['name']) in places
  )
  verdicts = [
    _judge(claim, at_step(results, step, initial), partial)['verdict']
    for step in steps
  ]
  if steps:
    judged['by_step'] = [list(x) for x in zip(steps, verdicts, strict=True)]
  if {'confirmed', 'refuted'} <= {*verdicts}:
    judged['verdict'] = DEPENDS
  return judged


def _shared_steps(rows: Iterable[Results]) -> list[int]:
  """Returns the steps at which all rows were tested.

  It is [] if they were tested at the last step only, or if this differs.
  """
  steps = [row.get('trajectory', {}).get('steps', []) for row in rows]
  if len({tuple(one[-1:]) for one in steps}) != 1:
    return []
  common = set(steps[0]).intersection(*steps)
  return sorted(common) if len(common) > 1 else []


def at_step(
  results: Results, step: int, kept: Collection[str | None] = ()
) -> Results:
  """Returns results with the scores of trajectories at a step.

  Rows that were not tested at this step, and parts that are `kept`, keep those
  of the last.
  """

  def at(row: Results) -> Results:
    tested = row.get('trajectory', {'steps': ()})
    if step not in tested['steps'][:-1]:
      return row
    n = tested['steps'].index(step)
    # Those of the last step do not replace missing ones.
    of_tests = dict.fromkeys(('windows', 'examples'))
    for key in of_tests.keys() & tested.keys():
      of_tests[key] = tested[key][n]
    return row | of_tests | {'values': [x[n] for x in tested['values']]}

  parts = [
    part
    if part['name'] in kept
    else part | {'rows': [at(row) for row in part['rows']]}
    for part in results['parts']
  ]
  return results | {'parts': parts}


def _judge(claim: Claim, results: Results, partial: bool) -> Results:
  """Returns a claim with its verdict and the outcomes of its comparisons.

  Each comparison is tested by one-sided t tests over seeds, in both directions.
  Its outcome is 'holds', 'fails', 'unclear' or 'not measured'.

  Variance over seeds: paired scores are compared by their differences. Other
  scores are compared by Welch's test (1947), which allows different variances
  of the two models. It does not use that models of a seed share their data.

  Variance over test windows: all models are tested on the same few windows. If
  the scores of single windows are known, the variance of the difference over
  windows is added; a bootstrap over windows estimates the same quantity. The
  variance over seeds already includes the interaction of seed and window. For
  unpaired scores, this noise is therefore subtracted; see `curves.crossed`.

  Variance over test examples: examples of a task are treated as windows if
  single answers are known. If only their number is known, the variances of both
  models on independent examples are added. The sum is too large if the errors
  of the models are correlated. The effect of random positions that all examples
  of a batch share is not included.

  Failures are corrected for multiple comparisons by the method of Holm (1979).
  Comparisons that a scale omits are not counted, nor are comparisons of means
  over fewer than half of their parts. For missing rows or scores, see `partial`
  of `judge`. The verdict is 'not comparable', whatever the outcomes, if the
  data is of another kind than the paper's, or if the claim requires the full
  size.
  """
  tests = [test(results, one) for one in claim.comparisons]
  outcomes = _outcomes(tests)
  verdicts = (_VERDICTS[kind] for kind in _VERDICTS if kind in outcomes)
  verdict = next(verdicts, UNMEASURED)
  # Some of the rows cannot confirm a claim about others.
  partial |= any(lacks_score(results, one) for one in claim.comparisons)
  if partial and verdict != 'refuted' and UNMEASURED in outcomes:
    verdict = UNMEASURED
  if verdict != UNMEASURED and not comparable(claim, results, results['scale']):
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
        'paired': one.paired,
        'outcome': outcome,
        'effect': None if test is None else test.mean + test.margin,
        'interval': _interval(test),
      }
      for one, test, outcome in zip(
        claim.comparisons, tests, outcomes, strict=True
      )
    ],
  }


def comparable(claim: Claim, results: Results, scale: str) -> bool:
  """Returns whether a scale, with the data of results, can decide a claim."""
  same_kind = all(
    part.get('same_kind', True)
    for part in results['parts']
    if part['name'] in {name for name, _ in _places(claim)}
  )
  return same_kind and not (claim.full_size and scale != 'paper')


def _places(claim: Claim) -> set[tuple[str, str]]:
  """Returns (part, row) of all rows that a claim compares."""
  operands = (x for one in claim.comparisons for x in (one.low, one.high))
  return {x[:2] for x in operands if isinstance(x, tuple)}


class Test(NamedTuple):
  """A comparison: high - low - margin.

  Attributes:
    mean: mean over seeds.
    margin: the margin, in the unit of the scores.
    variances: terms of the variance of the mean: those of low and of high over
      seeds, or that of the differences of paired scores and 0, then, where
      known, that of the difference over test windows or test examples; () if
      the mean is exact, None if the variance is unknown.
    freedoms: degrees of freedom of each term.
  """

  mean: float
  margin: float = 0.0
  variances: tuple[float, ...] | None = ()
  freedoms: tuple[int, ...] = ()

  @property
  def error(self) -> float | None:
    """Standard error of the mean; 0 if exact, None if unknown."""
    return None if self.variances is None else math.sqrt(sum(self.variances))

  @property
  def freedom(self) -> float:
    """Degrees of freedom of the error; see `combined_freedom`."""
    return float(combined_freedom(np.array(self.variances), self.freedoms))


def combined_freedom(
  variances_T: np.ndarray, freedoms: Sequence[int] | np.ndarray
) -> np.ndarray:
  """Returns the degrees of freedom of a sum of variances `[..., T]`.

  Over seeds, the first two terms, they are those of Welch and Satterthwaite.
  The reciprocals over seeds and over windows or examples are averaged, weighted
  by the variances. Satterthwaite's formula for all terms gives too many if two
  seeds dominate: in simulations, a test at 5 % then holds in 8.4 % of the
  cases.
  """
  freedom_T = np.array(freedoms)
  seeds_T, total = variances_T[..., :2], variances_T.sum(-1)
  over_seeds = seeds_T.sum(-1)
  # All seeds may have the same score.
  weighted = (seeds_T**2 / freedom_T[:2]).sum(-1)
  weighted /= np.where(over_seeds, over_seeds, 1.0)
  others = (variances_T[..., 2:] / freedom_T[2:]).sum(-1)
  return total / (weighted + others)


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
    return Test(mean, margin)
  seeds = len(low)
  if seeds < 2:
    return Test(mean, margin, None)
  if comparison.paired:
    # Without rounding errors, so that equal differences have no variance.
    differences = [round(b - a, 9) for a, b in zip(low, bound, strict=True)]
    variances = [statistics.variance(differences), 0.0]
  else:
    variances = [*map(statistics.variance, (low, bound))]
  variances = [each / seeds for each in variances]
  freedoms = [seeds - 1, seeds - 1]
  of_tests = _over_windows(results, comparison)
  examples = _over_examples(results, operands, of_tests)
  # With coarse scores, a variance of 0 may be chance.
  if not examples and not any(variances):
    return Test(mean, margin, None)
  if of_tests := examples or of_tests:
    variances.append(of_tests[0])
    freedoms.append(of_tests[1])
  return Test(mean, margin, tuple(variances), tuple(freedoms))


def _over_examples(
  results: Results,
  operands: Sequence[Operand],
  windows: tuple[float, int] | None,
) -> tuple[float, int] | None:
  """Returns the variance due to the test examples of tasks, and its freedom.

  `windows` has those over single examples, if they are known. Two examples of
  each length are then added, one answered by each operand, because operands
  that answer all examples may still differ. Otherwise, the variance is the sum
  of those of the operands. Returns None if the number of examples is unknown.
  """
  found = [_find(results, x) for x in operands if isinstance(x, tuple)]
  known = [
    row['examples'][n]
    for row, n in filter(None, found)
    if row.get('examples') and row['examples'][n]
  ]
  least = min((one['count'] for one in known), default=0)
  if least < 2:
    return None
  if windows is None:
    return sum(one['variance'] for one in known), least - 1
  variance, freedom = windows
  added = sum(100**2 / one['count'] / (freedom + 1) for one in known)
  return variance + added, freedom


def _over_windows(
  results: Results, comparison: Comparison
) -> tuple[float, int] | None:
  """Returns the variance of high - low over test windows, and its freedom.

  It is the variance of the mean; for scores that are not paired, the noise of
  seeds is subtracted. Returns None if the scores of windows are unknown, or if
  low and high have different windows.
  """
  operands = (comparison.low, comparison.high)
  digests = {_digest(results, x[0]) for x in operands if isinstance(x, tuple)}
  low, high = (_window_scores(results, x) for x in operands)
  if low is None or high is None or len(digests) > 1:
    return None
  factor = 1 - comparison.margin if comparison.relative else 1.0
  difference_W = factor * np.array(high['mean']) - np.array(low['mean'])
  count = difference_W.size
  if count < 2:
    return None
  # The noise of a paired difference is not recorded. Without subtracting it,
  # the variance is too large rather than too small.
  noise = 0.0
  if not comparison.paired:
    noise = (factor**2 * high['noise'] + low['noise']) / len(results['seeds'])
  variance = float(difference_W.var(ddof=1)) - noise
  return max(variance, 0.0) / count, count - 1


def _digest(results: Results, name: str) -> str:
  """Returns what identifies the test windows of a part: a digest, or its name.

  Parts of earlier versions have no digest.
  """
  (part,) = (part for part in results['parts'] if part['name'] == name)
  return part.get('windows_digest') or name.removesuffix(EARLY)


def _window_scores(results: Results, operand: Operand) -> Results | None:
  """Returns the scores of windows; those of a constant are the constant."""
  if not isinstance(operand, tuple):
    return {'mean': operand, 'noise': 0.0}
  row, n = _find(results, operand) or ({}, 0)
  return row['windows'][n] if row.get('windows') else None


def _interval(test: Test | None) -> list[float] | None:
  """Returns the 90 % interval of an effect, if there is one.

  A comparison holds if the interval is above its margin.
  """
  if test is None or not test.error:
    return None
  reach = float(special.stdtrit(test.freedom, 1 - LEVEL)) * test.error
  effect = test.mean + test.margin
  return [effect - reach, effect + reach]


def _outcomes(tests: Sequence[Test | None]) -> list[str]:
  """Returns 'holds', 'fails', 'unclear' or 'not measured' per comparison.

  They are those of t-tests; `special.stdtr` is the distribution function of t.
  """
  outcomes, failures = [], []
  for index, test in enumerate(tests):
    if test is None:
      outcomes.append(UNMEASURED)
    elif test.error is None:
      outcomes.append('unclear')
    elif not test.error:
      outcomes.append('holds' if test.mean > 0 else 'fails')
    else:
      t, freedom = test.mean / test.error, test.freedom
      holds = special.stdtr(freedom, -t) < LEVEL
      outcomes.append('holds' if holds else 'unclear')
      failures.append((special.stdtr(freedom, t), index))
  for number, (p, index) in enumerate(sorted(failures)):
    if p >= LEVEL / (len(failures) - number):
      break
    outcomes[index] = 'fails'
  return outcomes


def _scores(results: Results, operand: Operand) -> list[Any] | None:
  """Returns a score of each seed; None if it was not measured."""
  if not isinstance(operand, tuple):
    return [operand] * len(results['seeds'])
  if (found := _find(results, operand)) is None:
    return None
  row, n = found
  return [scores[n] for scores in row['values']]


def lacks_score(results: Results, comparison: Comparison) -> bool:
  """Returns whether a row that was tested lacks the score of some seed."""
  scores = (_scores(results, x) for x in (comparison.low, comparison.high))
  return any(each is not None and None in each for each in scores)


def _find(
  results: Results, operand: tuple[str, str, Any]
) -> tuple[Results, int] | None:
  """Returns the row of a score and its column; None if it was not measured."""
  name, row_name, column = operand
  for part in results['parts']:
    if 2 * len(part.get('of', ())) < part.get('of_all', 0):
      continue
    for row in part['rows']:
      if (part['name'], row['name']) == (name, row_name):
        if column in part['columns']:
          return row, part['columns'].index(column)
  return None


def _as_json(operand: Operand) -> Any:
  return list(operand) if isinstance(operand, tuple) else operand
