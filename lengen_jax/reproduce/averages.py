"""Makes `experiment.Average`: means over other parts."""

import statistics

from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce import rows as rows_lib


def check(part, request):
  """Nothing can be wrong with it."""
  del part, request


def run(part, request, before):
  """The means, of each seed; a part of the results."""
  del request
  parts = [one for one in before if one['name'] in part.of]
  first = parts[0]
  rows = []
  for row in first['rows']:
    same = [
      one
      for other in parts
      for one in other['rows']
      if one['name'] == row['name']
    ]
    if len(same) == len(parts):
      papers = [one['paper'] for one in same]
      line = experiment_lib.Row(
        row['name'], row['run'], None if None in papers else _means(papers)
      )
      by_seed = [
        _means(found)
        for found in zip(*(one['values'] for one in same), strict=True)
      ]
      made = rows_lib.make(line, row['run'], by_seed, first['of_seeds'])
      # As the papers do: the best of the seeds first, then the mean.
      rows.append(made | {'value': _means([one['value'] for one in same])})
  return {
    'kind': 'average',
    'name': part.name,
    'unit': first['unit'],
    'columns': first['columns'],
    'of': [one['name'] for one in parts],
    'of_all': len(part.of),
    'of_seeds': first['of_seeds'],
    'rows': rows,
    'standin': first['standin'],
    'differences': [],
    'train_seconds': 0.0,
  }


def _means(lines):
  """Means over lines, column by column; None where one has none."""
  return [
    None if None in column else statistics.fmean(column)
    for column in zip(*lines, strict=True)
  ]
