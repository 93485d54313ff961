"""Table of scores of answers to prompts, with the paper's scores."""

from collections.abc import Mapping
from typing import Any

import rich.markup

from lengen_jax.analysis import tables
from lengen_jax.training import runs as runs_lib


def print_table(results: Mapping[str, Any]) -> None:
  """Prints the scores of a run, a row per length, or per task if several.

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
  # Rows are the paper's columns: lengths of one task, or tasks.
  if len(tasks) == 1:
    (task,) = tasks
    columns = {
      task: {length: scores[task] for length, scores in ours.items()},
    }
    whole = {
      'whole prompts': {n: of[task] for n, of in results['whole'].items()}
    }
  else:
    columns = {f'length {length}': scores for length, scores in ours.items()}
    whole = {f'whole at {n}': of for n, of in results['whole'].items()}
  papers = {
    f'paper: {run}': dict(zip(map(str, paper['columns']), values, strict=True))
    for run, values in paper['rows']
  }
  for name_of_column in (*columns, *whole, *papers):
    table.add_column(rich.markup.escape(name_of_column), justify='right')
  rows = [row for values in columns.values() for row in values]
  for row in dict.fromkeys([*rows, *map(str, paper['columns'])]):
    table.add_row(
      row.removeprefix('super_').split('/')[-1],
      *(_cell(values.get(row)) for values in columns.values()),
      *(f'{100 * v[row]:.0f} %' if row in v else '' for v in whole.values()),
      *(_cell(values.get(row)) for values in papers.values()),
    )
  tables.show(
    f'{paper["unit"]}, {name}, trained at {results["train_length"]}',
    table,
    [f'at {length}: {why}' for length, why in results['refused'].items()],
  )


def _cell(score: float | None) -> str:
  return '–' if score is None else f'{score:.2f}'
