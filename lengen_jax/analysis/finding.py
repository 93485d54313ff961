"""One-sentence summaries of results."""

from collections.abc import Mapping, Sequence
from typing import Any

# Maximum number of names in a list. For more runs, only the number is given.
_FEW = 3


def of_curves(results: Mapping[str, Any], names: Sequence[str]) -> str:
  """Returns which run is best at the training length and at the longest."""
  lengths, trained = results['lengths'], results['train_length']
  short, long = min(lengths, key=lambda n: abs(n - trained)), max(lengths)
  # Losses are compared as rounded in the table.
  near, far = (
    {
      name: round(curve['loss'][lengths.index(length)], 3)
      for name, curve in zip(names, results['curves'], strict=True)
      if curve['loss'][lengths.index(length)] is not None
    }
    for length in (short, long)
  )
  where = 'the training length' if short == trained else 'the length'
  text = f'Best at {where} {short} {_best(near, " nats per token")}'
  if long > short:
    falls = [name for name in near if far.get(name, near[name]) < near[name]]
    text += (
      f'; best at the longest, {long}, {_best(far)}; from {short} to {long} '
      f'the loss falls in {len(falls)} of {len(names)} runs{_few(falls)}'
    )
  if missing := [name for name in names if name not in far]:
    have = 'has' if len(missing) == 1 else 'have'
    text += f'; {len(missing)} {have} no value at {long}{_few(missing)}'
  order = order_over_training(results, names, long)
  return f'{text}. F{order[1:]}.' if order else f'{text}.'


def order_over_training(
  results: Mapping[str, Any], names: Sequence[str], length: int
) -> str:
  """Returns whether the order of runs changed over the last doubling of steps.

  It is '' unless all runs were also evaluated at some step up to half of the
  last one.
  """
  if len(names) < 2:
    return ''
  found = [curve.get('trajectory') or {} for curve in results['curves']]
  steps = [*set.intersection(*({*one.get('steps', ())} for one in found))]
  halves = [step for step in steps if 2 * step <= max(steps)]
  column = results['lengths'].index(length)
  if not halves:
    return ''

  def losses(step: int) -> dict[str, float | None]:
    return {
      name: one['loss'][one['steps'].index(step)][column]
      for name, one in zip(names, found, strict=True)
    }

  half, last = max(halves), max(steps)
  before, after = losses(half), losses(last)
  known = [name for name in names if None not in (before[name], after[name])]
  if len(known) < 2:
    return ''

  def order(losses: Mapping[str, Any]) -> list[str]:
    return sorted(known, key=lambda name: round(losses[name], 3))

  text = f'from step {half} to {last}, the order of the runs at {length} '
  earlier, later = order(before), order(after)
  moved = sum(a != b for a, b in zip(earlier, later, strict=True))
  if not moved:
    return f'{text}does not change'
  text += f'changes in {moved} of {len(known)} places'
  if earlier[0] != later[0]:
    text += f'; the best run changes from {earlier[0]} to {later[0]}'
  return text


def of_scores(results: Mapping[str, Any], unit: str, scale: float) -> str:
  """Returns which run of a sweep is best beyond the training length.

  Scores are multiplied by `scale`, which makes their unit `unit`.
  """
  longest = results['train_lengths'][1]
  digits = 1 if scale > 1 else 3
  means = {
    run['run']: round(scale * run['mean'], digits)
    for run in results['runs']
    if run['mean'] is not None
  }
  better = min if results['score'] == 'loss' else max
  best = _best(means, f' ({unit})', better, digits)
  return f'Trained to length {longest}, best beyond it {best}.'


def _best(
  values: dict[str, float], unit: str = '', better: Any = min, digits: int = 3
) -> str:
  """Returns 'is a with 1.2', 'are a and b, equal at 1.2', or 'is none'."""
  if not values:
    return 'is none, because no run has a value'
  best = better(values.values())
  figure = f'{best:.{digits}f}{unit}'
  *others, last = (name for name, value in values.items() if value == best)
  if not others:
    return f'is {last} with {figure}'
  if len(others) >= _FEW:
    return f'are {len(others) + 1} runs, equal at {figure}'
  return f'are {", ".join(others)} and {last}, equal at {figure}'


def _few(names: Sequence[str]) -> str:
  return f' ({", ".join(names)})' if 0 < len(names) <= _FEW else ''
