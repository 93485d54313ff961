"""Scores of answers to prompts as a table, the paper's beside ours."""

import rich.markup

from lengen_jax.analysis import tables
from lengen_jax.training import runs as runs_lib


def print_table(results):
  """Prints the scores of a run, a row per length or a row per task.

  Args:
    results: what `evaluate.answers` gives, with the facts of the run.
  """
  paper = results['paper'] or {'columns': [], 'rows': [], 'unit': 'percent'}
  ours = {
    length: {
      **{task: found['score'] for task, found in scores.items()},
      'average': results['average'][length],
    }
    for length, scores in results['scores'].items()
  }
  tasks = list(results['examples'])
  name = runs_lib.name(
    (results['encoding'], results['positions'], results['attention_scale'])
  )
  table = tables.create()
  table.add_column('')
  if len(tasks) == 1:
    rows = {length: scores[tasks[0]] for length, scores in ours.items()}
    table.add_column(tasks[0], justify='right')
    whole = {length: w[tasks[0]] for length, w in results['whole'].items()}
  else:
    length = next(iter(ours), None)
    rows = ours.get(length, {})
    table.add_column(f'length {length}', justify='right')
    whole = results['whole'].get(length, {})
  table.add_column('whole prompts', justify='right')
  for run, _ in paper['rows']:
    table.add_column(rich.markup.escape(f'paper: {run}'), justify='right')
  columns = [str(column) for column in paper['columns']]
  for row in dict.fromkeys([*rows, *columns]):
    table.add_row(
      row.removeprefix('super_').split('/')[-1],
      _cell(rows.get(row)),
      f'{100 * whole[row]:.0f} %' if row in whole else '',
      *(
        _cell(dict(zip(columns, values, strict=True)).get(row))
        for _, values in paper['rows']
      ),
    )
  tables.show(
    f'{paper["unit"]}, {name}, trained at {results["train_length"]}',
    table,
    [f'at {length}: {why}' for length, why in results['refused'].items()],
  )


def _cell(score):
  return '–' if score is None else f'{score:.2f}'
