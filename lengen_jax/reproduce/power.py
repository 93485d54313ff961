"""Power analysis: the differences that a number of seeds can detect.

The variances over seeds and over test windows or examples are estimated from
recorded results. More seeds reduce only the variance over seeds. A comparison
detects a difference if its test, see `claims`, holds with probability POWER in
simulations with normally distributed scores. A claim is decided if it is
confirmed or refuted.
"""

import bisect
from collections.abc import Collection, Iterator, Mapping
import contextlib
import pathlib

import numpy as np
from scipy import stats

from lengen_jax import errors
from lengen_jax.analysis import reproduction
from lengen_jax.reproduce import claims
from lengen_jax.reproduce.experiment import Experiment, Results, SCALES
from lengen_jax.training import config_file, files

POWER = 0.8
# Maximum number of seeds that is proposed.
_MOST = 50
# Number of simulated tests.
_DRAWS = 2000


def recorded(
  experiment: Experiment, scale: str, root: files.Path
) -> tuple[str, Results] | None:
  """Returns earlier results of an experiment and their file, or None.

  Searches the given scale, then smaller ones. At each scale, results of more
  seeds are preferred. With equal numbers of seeds, results in `root` are
  preferred to those in docs/results of a checkout.
  """
  docs = config_file.folder().parent / 'docs' / 'results'
  for each in SCALES[SCALES.index(scale) : SCALES.index('tiny')]:
    found = []
    for path in (
      root / experiment.name / each / reproduction.RESULTS,
      docs / f'{experiment.name.replace("/", "_")}_{each}.json',
    ):
      if path.exists():
        # A damaged file must not prevent the run that replaces it.
        with contextlib.suppress(errors.WorkdirError):
          read = files.read_json(path, ('seeds', 'parts'))
          found.append((_short(path), read))
    if found:
      return max(found, key=lambda one: len(one[1]['seeds']))
  return None


def lines(
  experiment: Experiment,
  scale: str,
  root: files.Path,
  seeds: int,
  rows: Mapping[str, Collection[str]] | None = None,
) -> Iterator[str]:
  """Yields what to print before an experiment starts; see `report`.

  `rows` are the chosen rows of each part, {part: rows}; None for all.
  """
  if not experiment.claims or scale == 'tiny':
    return
  name, found = recorded(experiment, scale, root) or ('', {'parts': ()})
  if found['parts'] and all(part.get('exact') for part in found['parts']):
    return
  if rows is not None:
    found = _some(found, rows)
  if seeds < 2:
    all_seeds = experiment.seeds_at(scale)
    yield (
      'one seed has no variance and decides no claim; use --seeds='
      + ','.join(map(str, all_seeds))
    )
    seeds = len(all_seeds)
  each = [*report(experiment, found, scale, seeds)] if name else []
  if not name:
    yield 'no recorded results: what the seeds detect is unknown'
  elif not each:
    yield f'no claim that scale {scale} decides has a variance in {name}'
  else:
    yield (
      f'by the variances in {name}, with a probability of {POWER:.0%} for each '
      'difference:'
    )
  yield from each


def _some(found: Results, rows: Mapping[str, Collection[str]]) -> Results:
  """Returns recorded results of some rows.

  It lacks means over parts that are not all chosen.
  """
  parts = [
    part
    | {'rows': [x for x in part['rows'] if x['name'] in rows[part['name']]]}
    for part in found['parts']
    if {part['name'], *part.get('of', ())} <= {*rows}
  ]
  return found | {'rows': sorted(set().union(*rows.values())), 'parts': parts}


def report(
  experiment: Experiment, found: Results, scale: str, seeds: int
) -> Iterator[str]:
  """Yields a line for each claim that a scale can decide.

  Each line has the differences that `seeds` seeds detect, beyond the claim's
  margin, the probability that they decide the claim, and the number of seeds
  that decide it, given recorded results. Claims without a known variance have
  no line. `seeds` is at least 2.
  """
  before = len(found['seeds'])
  has_curves = any(part.get('kind') == 'curves' for part in found['parts'])
  for claim in experiment.claims:
    tests = [claims.test(found, one) for one in claim.comparisons]
    measured = [one for one in tests if one is not None]
    known = [one for one in measured if one.error]
    if not known or not claims.comparable(claim, found, scale):
      continue
    # Some of the rows, or of their seeds, do not confirm a claim about all.
    partial = bool(found.get('rows')) and len(measured) < len(tests)
    partial |= any(claims.lacks_score(found, x) for x in claim.comparisons)
    with_tests = sum(len(one.variances or ()) > 2 for one in known)
    least = [detectable(one, before, seeds) for one in known]
    ends = dict.fromkeys(f'{x:.2g}' for x in (min(least), max(least)))
    text = (
      f'{claim.key}: {seeds} seeds detect differences of {" to ".join(ends)}, '
      'and decide the claim with a probability of '
      f'{decided(measured, before, seeds, partial):.0%} if the recorded ones '
      'are true'
    )
    if n := seeds_needed(measured, before, partial):
      if n > seeds:
        text += f'; {n} seeds decide it with a probability of {POWER:.0%}'
    else:
      text += f'; for {POWER:.0%}, it needs more than {_MOST} seeds'
      text += ', or more test data' if with_tests else ''
    if against := sum(one.mean <= 0 for one in known):
      text += f'; {against} of {len(known)} recorded differences contradict it'
    if has_curves and with_tests < len(known):
      text += ' (not all variances include that over test windows)'
    yield text


def detectable(test: claims.Test, before: int, seeds: int) -> float:
  """Returns the difference, beyond the margin, that `seeds` seeds detect.

  The variances are those of a test over `before` seeds.
  """
  rng = np.random.default_rng(0)
  noise_N, error_N, freedom_N = _simulated(test, before, seeds, rng)
  critical_N = stats.t.ppf(1 - claims.LEVEL, freedom_N)
  return float(np.quantile(critical_N * error_N - noise_N, POWER))


def decided(
  tests: list[claims.Test], before: int, seeds: int, partial: bool = False
) -> float:
  """Returns the probability that `seeds` seeds confirm or refute a claim.

  The differences and their variances are those of tests over `before` seeds,
  which are treated as independent. A comparison of unknown variance is unclear.
  A claim that has other comparisons, too (`partial`), is only refuted.
  """
  if any(one.error == 0 and one.mean <= 0 for one in tests):
    return 1.0
  known = [one for one in tests if one.error]
  rng = np.random.default_rng(0)
  holds_NxC, fails_NxC = (np.empty((_DRAWS, len(known))) for _ in range(2))
  for n, one in enumerate(known):
    noise_N, error_N, freedom_N = _simulated(one, before, seeds, rng)
    t_N = (one.mean + noise_N) / error_N
    holds_NxC[:, n] = stats.t.sf(t_N, freedom_N)
    fails_NxC[:, n] = stats.t.cdf(t_N, freedom_N)
  confirmed_N = (holds_NxC < claims.LEVEL).all(1)
  confirmed_N &= not partial and all(one.error is not None for one in tests)
  # By Holm's method, some comparison fails if that with the least p does.
  refuted_N = fails_NxC.min(1) < claims.LEVEL / len(known)
  return float((confirmed_N | refuted_N).mean())


def seeds_needed(
  tests: list[claims.Test], before: int, partial: bool = False
) -> int | None:
  """Returns how many seeds decide a claim, see POWER; None if too many."""
  counts = range(2, _MOST + 1)
  n = bisect.bisect_left(
    counts, POWER, key=lambda seeds: decided(tests, before, seeds, partial)
  )
  return counts[n] if n < len(counts) else None


def _simulated(
  test: claims.Test, before: int, seeds: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns (noise of the mean, its estimated error, freedom) of tests."""
  assert test.variances
  # The variances over seeds and, where it is known, that over test data.
  true_T = np.array(test.variances)
  true_T[:2] *= before / seeds
  freedom_T = np.array([seeds - 1, seeds - 1, *test.freedoms[2:]])
  noise_N = np.sqrt(true_T.sum()) * rng.standard_normal(_DRAWS)
  # The same draws for all numbers of seeds: more seeds never detect less.
  seen_NxT = stats.chi2.ppf(rng.random((_DRAWS, len(true_T))), freedom_T)
  seen_NxT *= true_T / freedom_T
  freedom_N = claims.combined_freedom(seen_NxT, freedom_T)
  return noise_N, np.sqrt(seen_NxT.sum(1)), freedom_N


def _short(path: files.Path) -> str:
  """Returns a path relative to the working directory if it is below it."""
  here = pathlib.Path.cwd()
  return str(path.relative_to(here) if path.is_relative_to(here) else path)
