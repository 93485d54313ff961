"""Lines of a table, from the figures of each seed."""

import statistics


def make(row, run, by_seed, of_seeds):
  """A line of a table.

  Args:
    row: an experiment.Row.
    run: what was run.
    by_seed: for each seed a figure per column, None where there is none.
    of_seeds: 'mean', 'min' or 'max'.
  """
  of = {'mean': statistics.fmean, 'min': min, 'max': max}[of_seeds]
  return {
    'name': row.name,
    'run': run,
    'values': by_seed,
    'value': [
      None if None in column else of(column)
      for column in zip(*by_seed, strict=True)
    ],
    'paper': None if row.paper is None else list(row.paper),
  }
