"""Lines of a table, from the figures of each seed."""

import statistics


def make(row, run, by_seed, of_seeds):
  """A line of a table, from figures of each seed."""
  columns = list(zip(*by_seed, strict=True))
  whole = [None not in column for column in columns]
  of = {'mean': statistics.fmean, 'min': min, 'max': max}[of_seeds]
  return {
    'name': row.name,
    'run': run,
    'values': by_seed,
    'value': [
      of(c) if ok else None for c, ok in zip(columns, whole, strict=True)
    ],
    'spread': [
      (max(c) - min(c)) / 2 if ok else None
      for c, ok in zip(columns, whole, strict=True)
    ],
    'paper': None if row.paper is None else list(row.paper),
  }
