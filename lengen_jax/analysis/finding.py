"""One-sentence summaries of results."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Values are compared as rounded in the table.
_DIGITS = 3
# Maximum number of names in a list; beyond it, their number is given.
_FEW = 3


def of_curves(results: Mapping[str, Any], names: Sequence[str]) -> str:
  """Returns which run is best at the training length and at the longest.

  Args:
    results: contents of results.json.
    names: a name per curve.
  """
  lengths, trained = results['lengths'], results['train_length']
  short, long = min(lengths, key=lambda n: abs(n - trained)), max(lengths)
  near, far = (_at(results, names, length) for length in (short, long))
  where = f'{"the training" if short == trained else "the"} length {short}'
  clauses = [f'best at {where} {_best(near, " nats per token")}']
  if long > short:
    clauses.append(f'best at the longest, {long}, {_best(far)}')
    falls = [name for name in near if far.get(name, near[name]) < near[name]]
    clauses.append(
      f'from {short} to {long} the loss falls in {len(falls)} of {len(names)} '
      f'runs{_few(falls)}'
    )
  missing = [name for name in names if name not in far]
  if missing:
    clauses.append(
      f'{len(missing)} {"has" if len(missing) == 1 else "have"} no value at '
      f'{long}{_few(missing)}'
    )
  sentence = '; '.join(clauses)
  return f'{sentence[0].upper()}{sentence[1:]}.'


def of_scores(results: Mapping[str, Any], unit: str, scale: float) -> str:
  """Returns which run of a sweep is best beyond the training length.

  Args:
    results: contents of a sweep's results.json.
    unit: unit of the scaled score.
    scale: factor of the score.
  """
  longest = results['train_lengths'][1]
  digits = 1 if scale > 1 else _DIGITS
  means = {
    run['run']: round(scale * run['mean'], digits)
    for run in results['runs']
    if run['mean'] is not None
  }
  better = min if results['score'] == 'loss' else max
  best = _best(means, f' ({unit})', better, digits)
  return f'Trained to length {longest}, best beyond it {best}.'


def _at(
  results: Mapping[str, Any], names: Sequence[str], length: int
) -> dict[str, float]:
  """Returns the rounded loss of each run at a length."""
  at = results['lengths'].index(length)
  losses = (curve['loss'][at] for curve in results['curves'])
  return {
    name: round(loss, _DIGITS)
    for name, loss in zip(names, losses, strict=True)
    if loss is not None
  }


def _best(
  values: Any,
  unit: str = '',
  better: Callable[..., Any] = min,
  digits: int = _DIGITS,
) -> str:
  """Returns 'is a with 1.2', 'are a and b, equal at 1.2', or 'is none'."""
  if not values:
    return 'is none, because no run has a value'
  best = better(values.values())
  figure = f'{best:.{digits}f}{unit}'
  level = [name for name, value in values.items() if value == best]
  if len(level) == 1:
    return f'is {level[0]} with {figure}'
  if len(level) > _FEW:
    return f'are {len(level)} runs, equal at {figure}'
  *others, last = level
  return f'are {", ".join(others)} and {last}, equal at {figure}'


def _few(names: Sequence[str]) -> str:
  return f' ({", ".join(names)})' if 0 < len(names) <= _FEW else ''
