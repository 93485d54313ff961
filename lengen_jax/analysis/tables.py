"""Tables on a terminal, or in a log as wide as they need."""

import csv
import io

import rich.console
import rich.table

from lengen_jax.training import workdir


def create():
  """An empty table."""
  return rich.table.Table(box=None)


def show(title, table, notes=()):
  """Prints a title, a table, and lines below it."""
  console = rich.console.Console(highlight=False)
  if not console.is_terminal:
    console.width = 200
  console.print(title, markup=False, style='italic', soft_wrap=True)
  console.print(table)
  for note in notes:
    console.print(note, markup=False, soft_wrap=True)


def write_csv(path, header, rows):
  """Writes a table as CSV, the same bytes for the same table.

  Args:
    path: of the file.
    header: names of the columns.
    rows: lists of values.
  """
  text = io.StringIO()
  lines = csv.writer(text, lineterminator='\n')
  lines.writerow(header)
  lines.writerows(rows)
  workdir.write_text(path, text.getvalue())
